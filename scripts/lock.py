"""Write requirements/lock.txt: the exact versions of what the pinned packages brought along.

Run it in .venv after changing a pin and running ``make setup``: ``python scripts/lock.py``.
"""

import re
from importlib.metadata import distributions
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / 'requirements'
HEADER = '# What the pinned packages bring along; pip reads this file as constraints.\n'
# Not from a requirement file: the package itself, its interfaces, the tool that installs, and what
# a CUDA build of torch pins by itself.
OWN = re.compile(r'flashrt-|pip$|triton$|nvidia-|cuda-')


def plain(name: str) -> str:
    """Return a package name as indexes compare it."""
    return re.sub(r'[-_.]+', '-', name).lower()


def main() -> None:
    """Compare what is installed with what is asked for by name; write the rest."""
    asked = set()
    for path in REQUIREMENTS.glob('*.txt'):
        if path.name != 'lock.txt':
            asked |= {
                plain(n) for n in re.findall(r'^([\w.-]+)==', path.read_text(), re.MULTILINE)
            }
    rest = set()
    for found in distributions():
        name = plain(found.metadata['Name'])
        # The ROS wheels carry metadata of their Python modules too; no installer wrote those.
        by_pip = (found.read_text('INSTALLER') or '').strip() == 'pip'
        if by_pip and name not in asked and not OWN.match(name):
            rest.add(f'{name}=={found.version}')
    (REQUIREMENTS / 'lock.txt').write_text(HEADER + '\n'.join(sorted(rest)) + '\n')
    print(f'lock.txt: {len(rest)} packages')


if __name__ == '__main__':
    main()
