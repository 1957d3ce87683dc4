"""Launch files: every package, executable and parameter file they name is there.

The files run against stand-ins for ``launch`` and ``launch_ros``, which write down what they are
asked to start; so the check needs no ROS installation, and sees names that come out of a table.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from repo_checks.packaging import setup_arguments
from repo_checks.tree import files

PACKAGE = 'flashrt_ros'


def processes(root: Path, path: Path) -> list[dict[str, Any]]:
    """Return package, executable, name and parameter files of all that a launch file starts.

    Raises:
        RuntimeError: The launch file itself fails; the message is its last line.
    """
    probe = Path(__file__).with_name('launch_probe.py')
    env = {**os.environ, 'FLASHRT_ROOT': str(root.resolve())}
    command = [sys.executable, str(probe), str(path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ['it printed nothing'])[-1])
    started: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return started


def launch_faults(root: Path) -> list[str]:
    """Return every name in a launch file that leads nowhere."""
    scripts = setup_arguments(root)['entry_points']['console_scripts']
    executables = {line.partition('=')[0].strip() for line in scripts}
    faults = []
    for path in files(root / 'launch', '.py'):
        where = path.relative_to(root)
        try:
            started = processes(root, path)
        except RuntimeError as error:
            faults.append(f'{where}: does not run: {error}')
            continue
        if not started:
            faults.append(f'{where}: starts nothing')
        for process in started:
            package, executable = process['package'], process['executable']
            if package == PACKAGE and executable not in executables:
                faults.append(f'{where}: {PACKAGE} has no executable {executable}')
            for file in process['parameter_files']:
                if not Path(file).is_file():
                    faults.append(f'{where}: {executable}: no parameter file {file}')
    return faults
