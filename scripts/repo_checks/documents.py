"""Links of the documents: what they point at exists."""

import re
from pathlib import Path
from urllib.parse import unquote

from repo_checks.tree import files

LINK = re.compile(r'!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|(?:src|href)="([^"]+)"')
HEADING = re.compile(r'^#{1,6}\s+(.*?)\s*#*$', re.MULTILINE)
FENCE = re.compile(r'^(```|~~~).*?^\1', re.MULTILINE | re.DOTALL)


def headings(path: Path) -> set[str]:
    """Return the anchors of a Markdown file's headings, as the usual viewers make them."""
    text = FENCE.sub('', path.read_text('utf-8'))
    plain = [re.sub(r'[*_`]|\[([^\]]*)\]\([^)]*\)', r'\1', h) for h in HEADING.findall(text)]
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in plain}


def dead_links(root: Path) -> list[str]:
    """Return every relative link or image of a Markdown file whose target is not there."""
    faults = []
    for path in files(root, '.md'):
        text = FENCE.sub('', path.read_text('utf-8'))
        for match in LINK.finditer(text):
            link = match.group(1) or match.group(2)
            if re.match(r'[a-z][a-z+.-]*:', link):
                continue  # another site: nothing here can promise it
            target, _, anchor = unquote(link).partition('#')
            file = (path.parent / target).resolve() if target else path
            where = f'{path.relative_to(root)}: {link}'
            if not file.exists():
                faults.append(f'{where}: no such file')
            elif not file.is_relative_to(root.resolve()):
                faults.append(f'{where}: outside the repository')
            elif anchor and file.suffix == '.md' and anchor not in headings(file):
                faults.append(f'{where}: no such heading')
    return faults
