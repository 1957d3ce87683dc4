"""The planner's benchmark runs on the CPU and names its rows as documented."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.bench import planner, planner_peers
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


def test_a_peer_that_is_not_there_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing packages, and a peer that fails, are written instead of a figure."""

    def broken(dims: object) -> dict[str, float]:
        raise RuntimeError('no\nluck')

    monkeypatch.setattr(planner_peers.torch.cuda, 'empty_cache', lambda: None)
    monkeypatch.setattr(
        planner_peers, 'KNOWN', {'flide': (broken, ('json',)), 'other': (broken, ('nowhere',))}
    )
    rows, told = [Row('cold 2k', 1.0, 'ms')], []
    planner_peers.measure(rows, ('flide', 'other'), {}, told.append)
    assert rows[0].peers == {
        'flide': 'RuntimeError: no luck', 'other': 'nowhere not installed'
    }  # fmt: skip
    assert told == ['flide: RuntimeError: no luck']


@pytest.mark.slow
def test_a_process_answers_from_nothing() -> None:
    """The start of a process to its first token, twice."""
    rows = planner.start_rows('cpu')
    assert [row.work for row in rows] == ['start empty cache', 'start full cache']
    assert all(row.ours > 100 for row in rows)
