"""`flashrt bench`: wrong names are one line, rows have one form, and no row is measured cold."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import pytest

from flashrt_ros import cli
from flashrt_ros.bench import capsule, report
from flashrt_ros.commands import bench


@pytest.mark.parametrize(
    ('argv', 'words'),
    [
        (['melt'], "no benchmark 'melt': name capsule, "),
        (['capsule', '--peer', 'nobody'], "no peer 'nobody': name full-copy"),
        (['capsule', '--device', 'abacus'], "unknown device 'abacus'"),
        (['capsule', '--json', '.'], 'is a folder: name a file'),
    ],
)
def test_wrong_input_is_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the line says what would be right."""
    assert cli.main(['bench', *argv]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count('\n') == 1


@pytest.mark.parametrize('name', bench.BENCHES)
def test_every_benchmark_has_the_same_form(name: str) -> None:
    """PEERS and measure(device, peers, log, ...), as the command calls it."""
    module = importlib.import_module(f'flashrt_ros.bench.{name}')
    assert module.PEERS
    assert list(inspect.signature(module.measure).parameters)[:3] == ['device', 'peers', 'log']


def test_a_report_is_written_as_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file holds machine, versions, commit and the rows of the table."""
    rows = capsule.robot_rows('cpu', 2)
    monkeypatch.setattr(capsule, 'measure', lambda device, peers, log: rows)
    file = tmp_path / 'new' / 'capsule.json'
    assert cli.main(['bench', 'capsule', '--json', str(file)]) == 0
    written = json.loads(file.read_text())
    assert [row['work'] for row in written['rows']] == ['robot snapshot', 'robot restore']
    assert written['name'] == 'capsule'
    assert {'machine', 'versions', 'commit'} <= set(written)
    assert 'robot restore' in capsys.readouterr().out


def test_calls_are_timed_in_turn_after_a_warm_up() -> None:
    """No case is measured before every case has run three times; `before` is not counted."""
    order: list[str] = []
    cases = [
        (lambda name=name: order.append('before ' + name), lambda name=name: order.append(name))
        for name in 'ab'
    ]
    times = report.interleaved(cases, lambda: None, 4, warm_seconds=0.0)
    assert [len(each.samples) for each in times] == [4, 4]
    assert order == ['before a', 'a', 'before b', 'b'] * 7


def test_a_report_names_the_commit_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the tree may stand in a checkout of something else: what is said goes first."""
    monkeypatch.setenv('FLASHRT_COMMIT', 'abc123')
    assert report.commit() == 'abc123'
    monkeypatch.delenv('FLASHRT_COMMIT')
    assert report.commit() != 'abc123'
