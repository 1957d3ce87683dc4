"""Where the files that are not Python stand: configuration, launch files, package.xml."""

import os
import sys
import sysconfig
from pathlib import Path

PACKAGE = 'flashrt_ros'


def share() -> Path:
    """Return the folder that holds ``config/`` and ``launch/``.

    In a checkout (also one installed with ``pip install -e``) it is the checkout itself, so that
    an edited file counts at once; otherwise ``share/flashrt_ros`` of the prefix the package was
    installed in, by colcon or by pip.

    Raises:
        FileNotFoundError: The package was copied somewhere without its ``share`` folder.
    """
    checkout = Path(__file__).resolve().parent.parent
    prefixes = [Path(p) for p in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if p]
    # lib/python3.x/site-packages of a prefix -> that prefix; colcon's folders have the same depth.
    prefixes += [*checkout.parents[2:3], Path(sysconfig.get_path('data')), Path(sys.prefix)]
    candidates = [checkout] + [prefix / 'share' / PACKAGE for prefix in prefixes]
    for folder in candidates:
        if (folder / 'package.xml').is_file() and (folder / 'config').is_dir():
            return folder
    raise FileNotFoundError(
        f'{PACKAGE}: no folder with package.xml and config/ in {candidates[0]} or any '
        f'share/{PACKAGE}; install the package with `pip install .` or `colcon build`'
    )


def config(name: str) -> Path:
    """Return the path of ``config/NAME`` (for example ``robot.yaml``).

    Raises:
        FileNotFoundError: There is none; the message lists those there are.
    """
    path = share() / 'config' / name
    if not path.is_file():
        there = ', '.join(sorted(p.name for p in path.parent.glob('*.yaml'))) or 'none'
        raise FileNotFoundError(f'no configuration {name!r}; there is: {there}')
    return path
