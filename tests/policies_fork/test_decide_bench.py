"""`flashrt bench decide`: rows in the form of every report, whatever peers there are."""

from __future__ import annotations

import pytest

from flashrt_policies.hybrid_lm.fork.request import Request
from flashrt_ros.bench import decide, decide_peers, report
from flashrt_ros.bench.decide import Shape
from flashrt_ros.bench.report import Row


def test_rows_have_ids_peers_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape is a row, the bitwise ones stand beside the default's, and peers say why not."""
    shapes = {'RACE1': Shape(70, 1, 9), 'resume 2k': Shape(160, 1, 32, 128)}
    monkeypatch.setattr(decide, 'SHAPES', shapes)
    monkeypatch.setattr(decide, 'BITWISE', ('RACE1',))
    rows = decide.measure('cpu', ('flide',), lambda text: None)
    assert [row.work for row in rows] == [
        'RACE1 small', 'resume 2k small', 'bitwise RACE1 small',
    ]  # fmt: skip
    for row in rows:
        assert row.unit == 'ms' and row.ours > 0 and row.better == 'lower'
        assert row.spread['runs'] == 2 and not row.floor
        assert row.peers == {'flide': 'needs an NVIDIA GPU'}
    assert rows[2].spread['over the default'] > 0
    assert rows[1].spread['rows'] == 64
    assert report.table(report.build('decide', 'cpu', rows))


def test_floors_count_what_must_be_computed_or_read() -> None:
    """Short rounds are bound by the weights' bytes, long ones by arithmetic; resuming saves it."""
    config = decide.parse_config(decide.QWEN_0_8B)
    short, how = decide.floor(config, Shape(2080, 1, 32, 2048))
    assert 'GB' in how and 0.2 < short < 0.4
    long, how = decide.floor(config, decide.SHAPES['6k x64'])
    assert 'TFLOP' in how and 13 < long < 20


def test_a_grown_state_keeps_what_it_grew_from() -> None:
    """The rounds of a `resume` row start with the state that left the checkpoint."""
    bench = decide.Bench('cpu', 400, (512,))
    base = bench.words(128)
    request = bench.request(Shape(160, 1, 32, 128), base)
    assert list(request.state[:128]) == list(base) and len(request.state) == 160
    assert isinstance(request, Request) and request.keep


def test_a_peer_that_is_not_installed_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started for it."""
    monkeypatch.setattr(decide_peers.importlib.util, 'find_spec', lambda name: None)
    row = Row('RACE1', 1.0, 'ms')
    decide_peers.measure([row], ['flide'], {}, 'cuda', lambda text: None)
    assert row.peers == {'flide': 'transformers and flide not installed'}
