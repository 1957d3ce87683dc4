"""A branch answers what its prompt would alone, whatever else is in the round."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fork_trees import Trees

from flashrt_policies.hybrid_lm.fork import plan
from flashrt_policies.hybrid_lm.fork.request import Branch, Request
from flashrt_policies.kernels.fork import stream as fork_stream

BOUND = 2e-5
# Fixed: rounding errors have no upper limit, so no bound on them holds for every draw.
SEED = int(os.environ.get('FLASHRT_TEST_SEED', '') or 20261130)


def bits(request: Request, answers: list[Any]) -> list[bytes]:
    """Return the bytes of each answer."""
    assert len(request.branches) == len(answers)
    return [answer.logits.tobytes() for answer in answers]


def test_random_trees_answer_as_their_prompts_alone() -> None:
    """Several requests a round, resumed or not, branches of 1 to 200 tokens: within 2e-5."""
    trees = Trees(SEED)
    known, done = trees.words(500), trees.engine.statistics
    trees.engine.round([Request(known[:64], [trees.branch()])])  # leaves a checkpoint at 64
    for _ in range(4):
        states = [known[: trees.rng.randint(64, 500)]]  # resumes there, or at a later one
        for _ in range(trees.rng.randint(0, 3)):
            length = trees.rng.choice([1, 63, 64, 65, trees.rng.randint(1, 500)])
            states.append(known[:length] if trees.rng.random() < 0.5 else trees.words(length))
        trees.rng.shuffle(states)
        requests = [
            Request(state, [trees.branch() for _ in range(trees.rng.randint(1, 5))])
            for state in states
        ]
        before = done.resumed
        assert trees.worst(requests, sample=2) < BOUND
        assert done.resumed - before >= 64


def test_many_branches_and_a_long_trunk_answer_as_alone() -> None:
    """64 branches on one state, and a trunk of thousands of tokens: within 2e-5."""
    trees = Trees(SEED + 1, capacity=4000, streams=(512, 5000))
    assert trees.worst([trees.request(90, 64, 60)], sample=3) < BOUND
    length = trees.rng.randint(2000, 4000)
    assert trees.worst([trees.request(length, 2)]) < BOUND
    one = [Branch([5], [1, 2])]
    assert trees.worst([Request([7], one), Request(trees.words(64), one)]) < BOUND


def test_a_position_that_starts_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: branches whose positions do not continue the trunk's must be off."""
    inner = plan.lay_out

    def faulty(placed: Any, sizes: Any, flat: Any, align: int) -> Any:
        made = inner(placed, sizes, flat, align)
        table = fork_stream.arrays(flat, sizes)['segments']
        table[sizes.requests :, fork_stream.POSITION] = 0
        return made

    monkeypatch.setattr(plan, 'lay_out', faulty)
    assert Trees(SEED + 2).worst([Trees(SEED + 2).request(100, 2)]) > BOUND


@pytest.mark.parametrize('deterministic', [False, True])
def test_no_branch_sees_a_sibling(deterministic: bool) -> None:
    """Other tokens in one branch change no bit of any other branch's answer."""
    trees = Trees(SEED + 3, deterministic=deterministic)
    request = trees.request(150, 9, 90)
    before = bits(request, trees.engine.round([request])[0])
    for changed in (0, 4, 8):
        branches = list(request.branches)
        tokens = trees.words(len(branches[changed].tokens))
        tokens[0] = (branches[changed].tokens[0] + 1) % 61
        branches[changed] = Branch(tokens, branches[changed].options)
        after = bits(request, trees.engine.round([Request(request.state, branches)])[0])
        same = [a == b for a, b in zip(before, after, strict=True)]
        assert same == [index != changed for index in range(9)]


def test_a_leak_between_siblings_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a branch whose segment reaches into its sibling's rows gives it away."""
    inner = plan.lay_out

    def faulty(placed: Any, sizes: Any, flat: Any, align: int) -> Any:
        made = inner(placed, sizes, flat, align)
        table = fork_stream.arrays(flat, sizes)['segments']
        first, second = table[sizes.requests], table[sizes.requests + 1]
        second[fork_stream.START] = first[fork_stream.START]
        second[fork_stream.COUNT] += first[fork_stream.COUNT]
        return made

    monkeypatch.setattr(plan, 'lay_out', faulty)
    trees = Trees(SEED + 4)
    state, other = trees.words(50), Branch(trees.words(9), [1, 2, 3])
    answers = [
        trees.engine.round([Request(state, [Branch(trees.words(8), [1]), other])])[0][1].logits
        for _ in range(2)
    ]
    assert not np.array_equal(*answers)


def check_bits(trees: Trees) -> list[bool]:
    """Ask one question alone, among others, beside other requests, resumed; compare the bits."""
    same = []
    for length, asked in ((200, 30), (64, 1), (131, 70), (255, 64)):
        state = trees.words(length)
        mine = Branch(trees.words(asked), [3, 1, 2])
        others = [trees.branch(40) for _ in range(trees.rng.choice([1, 14, 63]))]
        place = trees.rng.randrange(len(others))

        def ask(request: Request, index: int, *beside: Request, trees: Trees = trees) -> bytes:
            requests = [*beside, request]
            return trees.engine.round(requests)[-1][index].logits.tobytes()

        alone = ask(Request(state, [mine], keep=False), 0)
        many = [*others[:place], mine, *others[place:]]
        among = ask(Request(state, many, keep=False), place)
        beside = ask(Request(state, [mine], keep=False), 0, trees.request(77, 3, 50))
        trees.engine.round([Request(state[: length - length % 64], [mine])])
        before = trees.engine.statistics.resumed
        resumed = ask(Request(state, [mine]), 0)
        assert trees.engine.statistics.resumed - before == length - length % 64
        same += [alone == among, alone == beside, alone == resumed]
    return same


def test_bitwise_answers_keep_their_bits() -> None:
    """Alone, among up to 64 questions, beside other requests and after a resume: same bits."""
    assert all(check_bits(Trees(SEED + 5, deterministic=True)))


def test_what_promises_no_bits_does_not_keep_them() -> None:
    """The planted fault: without the bitwise mode the same test must fail."""
    assert not all(all(check_bits(Trees(seed))) for seed in range(2))
