"""What the engine promises around a round: graphs, splits, read-out, checkpoints, refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from fork_trees import Trees

from flashrt_policies.hybrid_lm.fork import layers
from flashrt_policies.hybrid_lm.fork.engine import ForkEngine, family
from flashrt_policies.hybrid_lm.fork.request import Answer, Branch, ForkError, Request
from flashrt_policies.hybrid_lm.prefix import TextRegistry
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.session import Session


def test_large_rounds_are_split_and_one_too_large_runs_uncaptured() -> None:
    """A round is cut along its requests; a single request beyond the largest is counted."""
    trees = Trees(11, streams=(128, 256), slots=4)
    done = trees.engine.statistics
    trees.engine.round([trees.request(60, 2, 20) for _ in range(3)])
    assert (done.rounds, done.passes, done.uncaptured, done.branches) == (1, 1, 0, 6)
    requests = [trees.request(100, 2, 20) for _ in range(4)]
    assert trees.worst(requests) < 2e-5
    assert done.passes == 3 and done.uncaptured == 0
    before = done.uncaptured
    assert trees.worst([trees.request(400, 2, 30)]) < 2e-5
    assert done.uncaptured == before + 1


def test_more_requests_than_slots_are_split() -> None:
    """Requests beyond the slots go into another pass."""
    trees = Trees(12, slots=2)
    assert trees.worst([trees.request(30, 1, 10) for _ in range(5)]) < 2e-5
    assert trees.engine.statistics.passes == 3


def test_only_what_is_read_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer's MLP sees the read rows alone, the head only the options' rows."""
    trees = Trees(13)
    rows: list[int] = []
    inner = layers.Products.gated

    def counted(self: Any, h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows.append(h.shape[0])
        return inner(self, h, weight)

    monkeypatch.setattr(layers.Products, 'gated', counted)
    monkeypatch.setattr(torch.nn.functional, 'linear', _refuses(torch.nn.functional.linear))
    request = trees.request(100, 5, 30)
    trees.engine.round([request])
    total = 100 + sum(len(branch.tokens) for branch in request.branches)
    assert rows == [total] * (len(rows) - 1) + [5]


def _refuses(inner: Any) -> Any:
    def checked(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        assert weight.shape[0] != 61, 'the whole head was multiplied'
        return inner(x, weight, bias)

    return checked


def test_a_grown_state_resumes_from_a_capsule_of_the_registry() -> None:
    """Checkpoints stand at multiples of 64 before the end, as capsules, and are found again."""
    trees = Trees(14)
    state, done = trees.words(300), trees.engine.statistics
    trees.engine.round([Request(state[:200], [Branch([1], [1])])])
    assert [capsule.position for capsule in trees.registry.capsules] == [192]
    assert trees.worst([Request(state, [Branch([1, 2], [1, 3])])]) < 2e-5
    assert done.resumed == 192 and done.checkpoints == 2
    assert sorted(capsule.position for capsule in trees.registry.capsules) == [192, 256]
    rows = done.rows
    assert trees.worst([Request(state, [Branch([4], [1, 3])])]) < 2e-5
    assert done.rows - rows == 300 - 256 + 1 and done.checkpoints == 2
    other = [*state[:255], (state[255] + 1) % 61, *state[256:]]
    assert trees.worst([Request(other, [Branch([4], [1, 3])])]) < 2e-5
    assert done.resumed == 192 + 256 + 192


def test_a_checkpoint_resumes_in_another_slot_and_from_host_memory() -> None:
    """All slots share one schema; a demoted capsule comes back by itself."""
    trees = Trees(15)
    trees.registry = Registry(trees.lm.ctx, 1 << 26, host_bytes=1 << 26)
    trees.engine = ForkEngine.of(
        trees.lm, trees.registry, slots=2, capacity=600, streams=(1024,), name='other'
    )
    state = trees.words(140)
    branches = [Branch([1], [1, 2])]
    trees.engine.round([Request(state, branches)])
    twins = [Request([*state, 5], branches), Request([*state, 6], branches)]
    assert trees.worst(twins) < 2e-5
    assert trees.engine.statistics.resumed == 256
    trees.registry.demote(trees.registry.capsules[0], 'host', wait=True)
    for slot in trees.engine.slots.all:
        slot.recurrent.tensor.fill_(7.0)  # so that no slot holds it any more
    assert trees.worst([Request([*state, 7], branches)]) < 2e-5
    assert trees.engine.statistics.resumed == 384


def test_a_checkpoint_that_a_slot_holds_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again, or grown since it was left, it costs no restore; anybody's write makes it."""
    trees = Trees(21)
    state, restored = trees.words(300), []
    inner = Session.restore

    def counted(self: Session, capsule: Any) -> None:
        restored.append(capsule.position)
        inner(self, capsule)

    monkeypatch.setattr(Session, 'restore', counted)
    trees.engine.round([Request(state[:140], [Branch([1], [1])])])
    branches = [trees.branch() for _ in range(3)]
    for length in (150, 128, 170, 210, 300):  # the last two leave further checkpoints
        assert trees.worst([Request(state[:length], branches)]) < 2e-5
    assert trees.engine.statistics.resumed == 4 * 128 + 192 and not restored
    assert trees.worst([trees.request(90, 1), Request(state, branches)]) < 2e-5
    assert not restored
    for slot in trees.engine.slots.all:
        slot.window.tensor.fill_(7.0)
    assert trees.worst([Request(state, branches)]) < 2e-5
    assert len(restored) == 1


def test_a_registry_of_texts_finds_checkpoints_for_other_engines() -> None:
    """`registry.match(tokens)` returns the capsule, and a second engine resumes from it."""
    trees = Trees(20)
    registry = TextRegistry(trees.lm.ctx, 1 << 26)
    state = trees.words(150)
    one, two = (
        ForkEngine.of(trees.lm, registry, slots=1, capacity=300, streams=(512,), name=name)
        for name in ('one', 'two')
    )
    one.round([Request(state, [Branch([1], [1])])])
    found = registry.match([*state, 3])
    assert found is not None and list(found.tokens) == state[:128]
    branch = Branch([4, 5], [1, 2])
    answer = two.round([Request([*state, 3], [branch])])[0][0]
    assert two.statistics.resumed == 128
    assert np.abs(answer.logits - trees.alone([*state, 3], branch)).max() < 2e-5


def test_where_there_is_no_room_old_checkpoints_go() -> None:
    """A full registry costs checkpoints, never an answer; what went is counted."""
    trees = Trees(16)
    slot = trees.engine.slots.all[0]
    size = sum(b.nbytes for b in slot.closure.fixed_buffers.values())
    trees.registry = Registry(trees.lm.ctx, 4 * size + (1 << 17))
    trees.engine = ForkEngine.of(
        trees.lm, trees.registry, slots=1, capacity=600, streams=(1024,), name='tight'
    )
    for _ in range(8):
        assert trees.worst([trees.request(130, 1, 5)]) < 2e-5
    assert trees.engine.statistics.dropped > 0


def test_nothing_is_kept_when_not_asked_for() -> None:
    """`keep=False` and an engine without a registry leave no capsule."""
    trees = Trees(17)
    trees.engine.round([Request(trees.words(100), [Branch([1], [1])], keep=False)])
    assert not trees.registry.capsules
    bare = ForkEngine.of(trees.lm, None, capacity=200, streams=(512,), name='bare')
    request = trees.request(150, 2, 9)
    for answer, branch in zip(bare.round([request])[0], request.branches, strict=True):
        assert np.abs(answer.logits - trees.alone(request.state, branch)).max() < 2e-5


def test_a_tail_runs_at_the_end_of_every_pass() -> None:
    """It sees the tables and the logits; options of a branch lie between its bounds."""
    seen: list[list[int]] = []

    def tail(tables: Any, logits: torch.Tensor) -> None:
        first, last = tables.bounds[:2].tolist()
        seen.append([first, last, int(logits[first:last].argmax())])

    trees = Trees(18, tail=tail)
    request = trees.request(40, 2, 9)
    answers = trees.engine.round([request])[0]
    assert seen == [[0, len(request.branches[0].options), answers[0].choice]]


@pytest.mark.parametrize(
    ('state', 'branches', 'words'),
    [
        ([], [Branch([1], [1])], 'the state'),
        ([1], [], 'no branches'),
        ([1], [Branch([], [1])], 'a branch'),
        ([1], [Branch([1], [])], 'the options'),
        ([1], [Branch([61], [1])], 'token 61; want 0 to 60'),
        ([1], [Branch([1], [-1])], 'token -1'),
        ([1] * 601, [Branch([1], [1])], '601 tokens; want 1 to 600'),
        ([[1]], [Branch([1], [1])], 'the state'),
        (['x'], [Branch([1], [1])], 'no list of tokens'),
    ],
)
def test_bad_requests_are_refused_in_one_line(
    state: Any, branches: list[Branch], words: str
) -> None:
    """Nothing runs, whatever stands before the bad request."""
    trees = Trees(19)
    with pytest.raises(ForkError, match=words) as caught:
        trees.engine.round([trees.request(9, 1, 5), Request(state, branches)])
    assert '\n' not in str(caught.value)
    assert trees.engine.statistics.passes == 0


def test_answers_are_distributions() -> None:
    """Probabilities are the softmax over the options."""
    answer = Answer(np.array([1.0, 3.0, 2.0], dtype=np.float32))
    want = torch.tensor(answer.logits).softmax(0).numpy()
    assert np.allclose(answer.probabilities, want, atol=1e-7) and answer.choice == 1


def test_the_family_of_streams_wastes_little() -> None:
    """From 512 rows on at most an eighth of a stream is left unused."""
    streams = family(8192)
    assert streams[0] == 64 and streams[-1] == 8192 and len(streams) < 50
    for smaller, larger in zip(streams, streams[1:], strict=False):
        assert larger % 64 == 0 and (smaller < 512 or larger / smaller <= 1.126)
