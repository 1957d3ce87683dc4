"""Write requirements/lock.txt: the exact versions of what the pinned packages bring along.

Run it in .venv after changing a pin and running ``make setup``: ``python scripts/lock.py``.
"""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

REQUIREMENTS = Path(__file__).resolve().parent.parent / 'requirements'
HEADER = '# What the pinned packages bring along; pip reads this file as constraints.\n'
# What a CUDA build of torch pins by itself.
TORCH_OWN = re.compile(r'triton$|nvidia-|cuda-')


def plain(name: str) -> str:
    """Return a package name as indexes compare it."""
    return re.sub(r'[-_.]+', '-', name).lower()


def brought(requirement: Requirement) -> list[Requirement]:
    """Return what an installed package asks for, given the extras it was asked for with."""
    found = []
    for line in distribution(requirement.name).requires or ():
        child = Requirement(line)
        extras = ('', *requirement.extras)
        if child.marker is None or any(child.marker.evaluate({'extra': e}) for e in extras):
            found.append(child)
    return found


def main() -> None:
    """Follow what is asked for to all that it brings along, and write down the versions."""
    lines = []
    for path in REQUIREMENTS.glob('*.txt'):
        if path.name not in ('lock.txt', 'apart.txt'):
            lines += re.findall(r'^[\w.-]+==\S+', path.read_text(), re.MULTILINE)
    asked = [Requirement(line) for line in lines]
    todo, seen, lock = list(asked), set(), set()
    while todo:
        requirement = todo.pop()
        key = (plain(requirement.name), *sorted(requirement.extras))
        if key in seen or TORCH_OWN.match(key[0]):
            continue
        seen.add(key)
        try:
            todo += brought(requirement)
            lock.add(f'{key[0]}=={distribution(requirement.name).version}')
        except PackageNotFoundError:
            print(f'not installed: {requirement}; run `make setup` first')
    names = {plain(requirement.name) for requirement in asked}
    rest = sorted(line for line in lock if line.split('==')[0] not in names)
    (REQUIREMENTS / 'lock.txt').write_text(HEADER + '\n'.join(rest) + '\n')
    print(f'lock.txt: {len(rest)} packages')


if __name__ == '__main__':
    main()
