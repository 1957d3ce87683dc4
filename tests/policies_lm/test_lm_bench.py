"""The planner's benchmark runs on the CPU and names its rows as documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from flashrt_ros.bench import page, peer, planner, planner_peers, report
from flashrt_ros.bench.report import Row


def test_rows_of_a_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cold, warm, decode and revisited prompts, each with what the report needs."""
    torch.set_num_threads(1)
    small = {**planner.SMALL, 'hidden_size': 32, 'intermediate_size': 32, 'vocab_size': 64}
    monkeypatch.setattr(planner, 'SMALL', small)
    bench = planner.Bench('cpu', 400)
    rows = planner.cold_rows(bench, [128], 1) + planner.warm_rows(bench, [128, 256], 2)
    rows += [planner.decode_row(bench, 64, 3), planner.turn_row(bench, 2, 128, 2)]
    works = ['cold 128', 'warm 128', 'warm 256', 'decode', 'revisit 2']
    assert [row.work for row in rows] == works
    assert all(row.ours > 0 and row.unit == 'ms' for row in rows)
    assert rows[-1].spread['slowest over quickest'] >= 1
    assert bench.registry.usage('gpu').capsules == 0  # every capsule was given back


def test_floors_count_what_the_model_holds() -> None:
    """The parameters behind the floors are those of the weights themselves."""
    from flashrt_policies.hybrid_lm.config import parse_config
    from flashrt_policies.hybrid_lm.weights import allocate

    config = parse_config(planner.SMALL)
    weights = allocate(config, torch.device('meta'), torch.float32)
    held = sum(
        w.numel()
        for layer in weights.layers
        for w in (layer.w_in, layer.w_out, layer.w_gate_up, layer.w_down)
    )
    assert planner.matrix_parameters(config) == held
    real = parse_config(planner.QWEN_0_8B)
    assert 2.6 < planner.cold_floor(real, 2048)[0] < 3.1
    assert 0.3 < planner.step_floor(real, 2048)[0] < 0.4


def test_peers_are_measured_on_the_same_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library alone, on the CPU, tells a figure for every kind of row."""
    pytest.importorskip('transformers', reason='the peer')
    torch.set_num_threads(1)
    monkeypatch.setattr(planner_peers, 'REVISITED', 64)
    monkeypatch.setenv('FLASHRT_PEER_STARTED', '0')
    small = {**planner.SMALL, 'hidden_size': 32, 'intermediate_size': 32, 'vocab_size': 64}
    works = ['start empty cache', 'cold 128', 'warm 128', 'decode', 'revisit 2', 'other']
    found: dict[str, float] = {}
    planner_peers.transformers_fla(
        small, 'cpu', works, lambda work, measure: found.update({work: measure()})
    )
    assert list(found) == works[:-1] and all(value > 0 for value in found.values())
    assert planner_peers.count('16k') == 16384 and planner_peers.count('20') == 20


def test_a_peer_that_is_not_there_leaves_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Missing packages, a device that does not fit, and works it does not have are written."""
    told: list[str] = []

    def peers(device: str) -> list[object]:
        works = ('cold 2k', 'start empty cache', 'start full cache', 'warm 32k')
        rows = [Row(work, 1.0, 'ms') for work in works]
        crew = planner_peers.Crew(('flide',), {}, device, tmp_path)
        crew.compiled()
        crew.measure(rows, told.append)
        return [row.peers['flide'] for row in rows]

    assert peers('cpu') == ['needs an NVIDIA GPU'] * 4 and len(told) == 4
    monkeypatch.setattr(planner_peers, 'NEEDS', {'flide': ('nowhere', 'json')})
    assert peers('cuda') == ['nowhere not installed'] * 4
    monkeypatch.setattr(planner_peers, 'NEEDS', {'flide': ()})
    calls: list[list[str]] = []

    def run(command: list[str], *rest: object) -> peer.Found:
        calls.append([word for word in command if ' ' in word])
        if len(calls) == 1:
            return {'start empty cache': 9.5, '': 'not one of its works'}
        return {'cold 2k': 3.5, '': 'exit 1: no luck'}

    monkeypatch.setattr(planner_peers.peer, 'run', run)
    assert peers('cuda') == [3.5, 9.5, 'exit 1: no luck', 'exit 1: no luck']
    assert calls == [['start empty cache'], ['start full cache', 'cold 2k', 'warm 32k']]


def test_a_peer_runs_apart_and_what_it_told_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Figures told before a crash, an exception or the end of its time stand in the report."""

    def run(code: str) -> peer.Found:
        start = 'from flashrt_ros.bench.peer import attempt, tell\n'
        return peer.run([sys.executable, '-c', start + code], 3000.0)

    told = "tell('a', 1.5); print('noise'); attempt('b', lambda: 1 / 0); "
    b = 'ZeroDivisionError: division by zero'
    assert run(told) == {'a': 1.5, 'b': b, '': 'not one of its works'}
    assert run(told + 'exit("no\\nluck")') == {'a': 1.5, 'b': b, '': 'exit 1: luck'}
    cut = """print('@peer ["c", 1')"""
    assert run(told + cut) == {'a': 1.5, 'b': b, '': 'not one of its works'}

    class WhenTold(threading.Thread):
        """A timer whose time has come when the peer writes to a pipe, however long that takes."""

        def __init__(self, seconds: float, end: Callable[[], None]) -> None:
            super().__init__(daemon=True)
            self.end = end

        def run(self) -> None:
            pipe.read_bytes()
            self.end()

        def cancel(self) -> None:
            """It has come already."""

    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    monkeypatch.setattr(peer.threading, 'Timer', WhenTold)
    hangs = f'open({str(pipe)!r}, "w").close(); import threading; threading.Event().wait()'
    assert run(told + hangs) == {'a': 1.5, 'b': b, '': 'not reached within 3000 s'}
    # Whoever it has started holds its output open, and is ended, too.
    wait = 'import threading; threading.Event().wait()'
    worker = f'import subprocess, sys; subprocess.Popen([sys.executable, "-c", "{wait}"]); '
    assert run(told + worker + hangs) == {'a': 1.5, 'b': b, '': 'not reached within 3000 s'}


def test_what_was_measured_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each row is written as it comes; a start that fails is told and loses no other row."""

    def no_start(*args: object) -> list[Row]:
        raise subprocess.TimeoutExpired('python', 100.0)

    path, told, seen = tmp_path / 'planner.json', [], []

    def own(device: str) -> Iterator[Row]:
        yield Row('cold 2k', 6.0, 'ms')
        seen.append(json.loads(path.read_text())['rows'])
        yield Row('decode', 0.9, 'ms')
        seen.append(json.loads(path.read_text())['rows'])

    monkeypatch.setattr(planner, 'start_rows', no_start)
    monkeypatch.setattr(planner, 'own_rows', own)
    keep = report.keeper('planner', 'cpu', path)
    rows = planner.measure('cpu', ('flide',), told.append, keep)
    assert [[row['work'] for row in rows] for rows in seen] == [['cold 2k'], ['cold 2k', 'decode']]
    assert told[0].startswith('start: ') and len(rows) == 2
    last = json.loads(path.read_text())['rows']
    assert [row['peers'] for row in last] == [{'flide': 'needs an NVIDIA GPU'}] * 2
    assert list(tmp_path.iterdir()) == [path]
    report.keeper('planner', 'cpu', None)(rows)  # without a file nothing is written


def test_the_page_shows_figures_and_reasons(tmp_path: Path) -> None:
    """A report of this benchmark, whose peers are figures or words, becomes a page."""
    rows = [
        Row('cold 2k', 6.4, 'ms', peers={'flide': 8.6, 'transformers-fla': 45.0},
            floor={'value': 2.8, 'how': 'arithmetic'}, spread={'p99': 6.5}),
        Row('decode', 0.9, 'ms', peers={'flide': 'it writes no text', 'transformers-fla': 60.0}),
    ]  # fmt: skip
    (tmp_path / 'benchmarks').mkdir()
    report.write(report.build('planner', 'cpu', rows), tmp_path / 'benchmarks/planner-x.json')
    written = page.pages(tmp_path)
    text = written[tmp_path / 'benchmarks.md']
    assert '| cold 2k | 6.4 | 6.5 | 8.6 | 45 | 2.8 | ms |' in text
    assert '| decode | 0.9 | – | it writes no text | 60 | – | ms |' in text
    assert '<svg' in written[tmp_path / 'pictures' / 'benchmark-planner-x.svg']


@pytest.mark.slow
def test_a_process_answers_from_nothing(tmp_path: Path) -> None:
    """The start of a process to its first token, twice; what is asked for happens in between."""
    between: list[str] = []
    rows = planner.start_rows('cpu', tmp_path, lambda: between.append('once'))
    assert between == ['once']
    assert [row.work for row in rows] == ['start empty cache', 'start full cache']
    assert all(row.ours > 100 for row in rows)
