"""`flashrt decide`: questions from the command line, one clear line for what cannot be asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flashrt_policies.planner_lm.questions import Choice, Score, YesNo
from flashrt_ros.cli import main
from flashrt_ros.commands.decide import parse
from flashrt_ros.errors import FlashrtError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'policies_decide'))


@pytest.fixture(scope='module')
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny checkpoint."""
    from decide_tiny import checkpoint

    return str(checkpoint(tmp_path_factory.mktemp('decide') / 'tiny'))


def test_what_a_question_means() -> None:
    """Yes or no, options with and without descriptions, levels."""
    assert parse('Is it done?') == YesNo('Is it done?')
    assert parse('Which? left | right') == Choice('Which?', ('left', 'right'))
    assert parse('Which? left: near the wall | right') == Choice(
        'Which?', ('left', 'right'), ('near the wall', '')
    )
    assert parse('How much? 0..3') == Score('How much?', ('0', '1', '2', '3'))
    with pytest.raises(FlashrtError, match='want 2 to 255'):
        parse('Which? only this')


def test_asks_and_prints(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Every question is one line with its answers; the likeliest comes first."""
    state = tmp_path / 'state.txt'
    state.write_text('task: open the drawer\n')
    asked = ['--ask', 'Is it done?', '--ask', 'Which? a | b | c', '--ask', 'How much? 0..4']
    assert main(['decide', '--planner', tiny, '--state', str(state), *asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split('?')[0] for line in lines] == ['Is it done', 'Which', 'How much']
    assert 'expected' in lines[2]
    shares = [float(part.split()[-2]) for part in lines[1].split('?')[1].split(',')]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_checks_and_writes(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """`--check` counts every decision and writes what it measured."""
    out = tmp_path / 'measured.json'
    assert main(['decide', '--planner', tiny, '--check', '2', '--json', str(out)]) == 0
    assert 'calibration error' in capsys.readouterr().out
    facts = json.loads(out.read_text())
    assert facts['decisions']['decisions']['count'] == 8
    assert facts['situations'] == 2


@pytest.mark.parametrize(
    ('argv', 'said'),
    [
        ([], 'want --state'),
        (['--state', 'no-such-file', '--ask', 'Is it?'], 'is no file'),
        (['--check', '0'], 'want 1 or more'),
        (['--check', '1'], 'neither a checkpoint folder'),
    ],
)
def test_wrong_input_is_one_line(
    argv: list[str], said: str, capsys: pytest.CaptureFixture
) -> None:
    """Exit code 2 and one line that says what would be right."""
    assert main(['decide', '--planner', 'no-such-planner', *argv]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert '\n' not in error
