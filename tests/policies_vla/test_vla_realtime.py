"""Real-time chunking: chunks join, and how well is measured with and without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from vla_cases import FAMILIES, load

from flashrt_policies.kernels.vla import frame
from flashrt_policies.vla import flow

ELAPSED, DELAY = 4, 2


def jumps(family: str, guided: bool) -> list[float]:
    """Return how far the action at each switch is from what the chunk before had for it."""
    bench = load(family)
    bench.say(bench.tasks[0])
    before: np.ndarray | None = None
    found = []
    for turn in range(8):
        bench.see(turn % 2)
        if guided and before is not None:
            bench.policy.pace(ELAPSED, DELAY)
        chunk = bench.policy.plan()
        if before is not None:
            found.append(float(np.abs(chunk[DELAY] - before[ELAPSED + DELAY]).mean()))
        before = chunk
    return found


@pytest.mark.parametrize('family', FAMILIES)
def test_guided_chunks_join_better(family: str) -> None:
    """At the switch the guided chunk is less than half as far from the one before."""
    free, held = np.mean(jumps(family, False)), np.mean(jumps(family, True))
    print(f'{family}: jump {free:.3f} without guidance, {held:.3f} with')
    assert held < 0.5 * free


@pytest.mark.parametrize('family', FAMILIES)
def test_a_first_chunk_is_not_guided(family: str) -> None:
    """Without a previous chunk the pace says so, and the bits are those of no pace at all."""
    bench = load(family)
    bench.say(bench.tasks[0])
    chunks = []
    for told in (False, True):
        bench.policy.reset(2)
        bench.see(0)
        if told:
            bench.policy.pace(0, 6)
        chunks.append(bench.policy.plan())
    np.testing.assert_array_equal(chunks[0], chunks[1])


def test_a_pace_holds_for_one_chunk() -> None:
    """Who does not repeat it gets a free chunk."""
    bench = load('smolvla')
    bench.see(0)
    bench.policy.plan()
    bench.policy.pace(ELAPSED, DELAY)
    bench.policy.plan()
    assert bench.policy.pacing.tensor.tolist() == [0, 0]


def test_the_soft_mask_is_the_papers() -> None:
    """Equation 5 of arXiv 2506.07339: ones, an exponential fall, zeros; none before a chunk."""
    horizon, elapsed, delay = 10, 3, 2
    mask = frame.soft_mask(horizon, torch.tensor([elapsed]), torch.tensor([delay]))
    end = horizon - elapsed
    fall = [(end - i) / (end - delay + 1) for i in range(horizon)]
    want = [
        1.0 if i < delay else 0.0 if i >= end else c * np.expm1(c) / np.expm1(1)
        for i, c in enumerate(fall)
    ]
    np.testing.assert_allclose(mask.numpy(), want, atol=1e-6)
    assert not frame.soft_mask(horizon, torch.tensor([0]), torch.tensor([delay])).any()
    late = frame.soft_mask(horizon, torch.tensor([8]), torch.tensor([6]))
    assert late.tolist() == [1.0, 1.0] + [0.0] * 8


def test_the_pull_is_clipped() -> None:
    """Without end at the noise, the paper's weight in between, nothing at the actions."""
    assert flow.pull(1.0) == flow.STRONGEST
    assert flow.pull(0.5) == pytest.approx(2.0)
    assert flow.pull(0.0) == 0.0


def test_what_is_left_is_the_previous_chunk_from_now_on() -> None:
    """Actions of ticks that have passed are gone; behind the end stand zeros."""
    previous = torch.arange(10.0).reshape(5, 2)
    rest = frame.left_over(previous, torch.tensor([3]))
    assert rest.tolist() == [[6.0, 7.0], [8.0, 9.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
