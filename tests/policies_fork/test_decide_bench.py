"""`flashrt bench decide`: rows in the form of every report, whatever peers there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashrt_policies.hybrid_lm.fork.request import Request
from flashrt_ros.bench import decide, decide_peers, peer, report
from flashrt_ros.bench.decide import Shape
from flashrt_ros.bench.report import Row


def test_rows_have_ids_peers_and_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape is a row, the bitwise ones stand beside the default's, and peers say why not."""
    shapes = {'RACE1': Shape(70, 1, 9), 'resume 2k': Shape(160, 1, 32, 128)}
    monkeypatch.setattr(decide, 'SHAPES', shapes)
    monkeypatch.setattr(decide, 'BITWISE', ('RACE1',))
    kept: list[list[object]] = []
    rows = decide.measure(
        'cpu', ('flide',), lambda text: None,
        lambda rows: kept.append([(row.work, bool(row.peers)) for row in rows]),
    )  # fmt: skip
    one, two, three = ('RACE1', False), ('resume 2k', False), ('bitwise RACE1', False)
    assert kept[:-1] == [[one], [one, two], [one, two, three]]  # whatever comes after is not lost
    assert kept[-1] == [(work, True) for work, _ in kept[2]]
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


def test_only_graphs_that_rounds_take_are_captured() -> None:
    """A round runs in the graph that it would take of the whole family."""
    shapes = decide.SHAPES.values()
    some = decide.streams_of(shapes)
    assert len(some) < 15 and set(some) < set(decide.family(decide.LARGEST))
    for shape in shapes:
        taken = [
            next(size for size in sizes if size >= shape.rows)
            for sizes in (some, decide.family(decide.LARGEST))
        ]
        assert taken[0] == taken[1]


def test_a_peer_runs_twice_and_leaves_figures_or_reasons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once to compile, once to be measured within what is left; nothing where it is missing."""
    calls: list[list[str]] = []

    def peers(figures: peer.Found) -> dict[str, object]:
        def run(command: list[str], seconds: float, environment: dict[str, str]) -> peer.Found:
            assert 0 < seconds <= decide_peers.SECONDS and environment['TRITON_CACHE_DIR']
            calls.append(command[-4:] if '--runs' in command else command[-2:])
            return figures

        monkeypatch.setattr(decide_peers.peer, 'run', run)
        shapes = {'RACE1': Shape(250, 1, 75)}
        rows = [Row(work, 1.0, 'ms') for work in ('RACE1', 'bitwise RACE1', 'DI')]
        crew = decide_peers.Crew(['flide'], shapes, {}, 'cuda', tmp_path)
        crew.compiled()
        crew.measure(rows, lambda text: None)
        return {row.work: row.peers['flide'] for row in rows}

    monkeypatch.setattr(decide_peers.importlib.util, 'find_spec', lambda name: None)
    reason = 'transformers and flide not installed'
    assert set(peers({}).values()) == {reason} and not calls
    monkeypatch.setattr(decide_peers.importlib.util, 'find_spec', lambda name: name)
    found = peers({'RACE1': 2.9, '': 'not reached within 60 s'})
    assert found == {'RACE1': 2.9, 'bitwise RACE1': 2.9, 'DI': 'not reached within 60 s'}
    assert calls == [['--runs', '1', '--warm', '0'], ['--work', 'RACE1 250 1 75 0']]
