"""The page on decisions: its example runs as printed, on whatever checkpoint one has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / 'docs' / 'decisions.md'


def example() -> str:
    """Return the page's Python example."""
    found = re.search(r'```python\n(.*?)```', PAGE.read_text('utf-8'), re.DOTALL)
    assert found is not None
    return found[1]


def test_ten_lines_ask_ones_own_checkpoint(tiny: Path) -> None:
    """The example, with a checkpoint's folder in the place of the page's, prints its answers."""
    code = example()
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    assert code.count('models/my-checkpoint') == 1
    code = code.replace('models/my-checkpoint', str(tiny))
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r'(take a cup|wipe the table) [01]\.\d\d [01]\.\d\d \d\.\d\n', done.stdout)


def test_a_missing_checkpoint_is_noticed() -> None:
    """Negative control: as printed, without such a folder, the example fails with one reason."""
    done = subprocess.run([sys.executable, '-c', example()], capture_output=True, text=True)
    assert done.returncode != 0
    assert 'models/my-checkpoint is neither a checkpoint folder nor' in done.stderr
