"""Drafted text is plain greedy text, whatever the drafting head guesses."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.hybrid_lm import mtp
from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.model import HybridLM, TextError
from flashrt_policies.hybrid_lm.mtp import DraftingLM
from flashrt_policies.hybrid_lm.mtp_verify import Kept
from flashrt_policies.hybrid_lm.weights import Weights
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.completeness import assert_complete
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context

sys.path.insert(0, str(Path(__file__).parent))
import lm_oracle


def apt(seed: int, mixing: float = 0.05) -> tuple[LMConfig, Weights]:
    """Return a model whose head is often right: both mostly look at the last token alone.

    The head passes the token's embedding on; the model's own layers add `mixing` of what random
    ones would, so that it now and then disagrees.
    """
    config, weights = lm_oracle.tiny_weights(seed, drafts=True)
    head = weights.drafts
    assert head is not None
    for layer in weights.layers:
        layer.w_out.mul_(mixing)
        layer.w_down.mul_(mixing)
    head.layer.w_out.mul_(0.1)
    head.layer.w_down.mul_(0.1)
    head.fc.zero_()
    head.fc[:, : config.hidden].copy_(torch.eye(config.hidden))
    return config, weights


def pair(made: tuple[LMConfig, Weights], drafts: int) -> tuple[HybridLM, DraftingLM]:
    """Return the plain model and the drafting one over the same weights."""
    plain = HybridLM(Context('cpu'), *made, capacity=400)
    return plain, DraftingLM(Context('cpu'), *made, capacity=400, drafts=drafts)


def words(count: int, seed: int) -> list[int]:
    """Return `count` random tokens."""
    rng = random.Random(seed)
    return [rng.randrange(61) for _ in range(count)]


def opened(lm: HybridLM) -> Session:
    """Return a session over the model's state."""
    closure = Closure('lm')
    lm.close_over(closure)
    return Session(lm.ctx, closure, Fingerprint.of(closure, 'cpu', **lm.fingerprint()))


def assert_same_state(plain: HybridLM, lm: HybridLM) -> None:
    """Logits and every buffer of the text hold the same bytes."""
    assert plain.tokens == lm.tokens
    assert torch.equal(plain.logits.tensor, lm.logits.tensor)
    for one, two in zip(plain.state.fixed, lm.state.fixed, strict=True):
        assert torch.equal(one.tensor, two.tensor), one.name
    end = plain.length
    for one, two in zip(plain.state.growing, lm.state.growing, strict=True):
        assert torch.equal(one.tensor[:, :end], two.tensor[:, :end]), one.name


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products gain nothing from more."""
    torch.set_num_threads(1)


@pytest.mark.parametrize('drafts', [1, 2, 3])
@pytest.mark.parametrize('kind', ['random', 'apt'])
def test_the_text_is_that_of_plain_greedy_decode(kind: str, drafts: int) -> None:
    """Tokens, logits and state agree bit for bit; a good head is right often, not always."""
    made = lm_oracle.tiny_weights(drafts, drafts=True) if kind == 'random' else apt(drafts)
    plain, lm = pair(made, drafts)
    for count in (1, 64, 70):
        for one in (plain, lm):
            one.reset()
            one.append(words(count, count))
        assert list(lm.generate(24)) == list(plain.generate(24))
        assert_same_state(plain, lm)
    if kind == 'apt':
        assert 0.2 < lm.right / lm.guessed < 0.98, (lm.right, lm.guessed)


def test_every_number_of_tokens_ends_where_plain_decode_ends() -> None:
    """A round takes no more than is wanted, and texts go on after it as if never drafted."""
    plain, lm = pair(apt(2), 3)
    for count in range(1, 7):
        for one in (plain, lm):
            one.reset()
            one.append(words(70, count))
        assert list(lm.generate(count)) == list(plain.generate(count))
        assert_same_state(plain, lm)
        for one in (plain, lm):  # another turn: the last token chosen is not the next one read
            one.append(words(66, 50 + count))
        assert list(lm.generate(9)) == list(plain.generate(9))
        assert_same_state(plain, lm)


def test_a_token_that_ends_the_text_is_chosen_and_not_passed() -> None:
    """Guessed right or not, the end is where plain decode has it."""
    plain, lm = pair(apt(3), 3)
    for one in (plain, lm):
        one.append(words(70, 1))
    said = list(plain.generate(30))
    stop = said[len(said) // 2]
    for one in (plain, lm):
        one.reset()
        one.append(words(70, 1))
    told = list(lm.generate(30, stops={stop, 60}))
    assert told == list(plain.generate(30, stops={stop, 60})) == said[: said.index(stop) + 1]
    assert_same_state(plain, lm)
    with pytest.raises(TextError, match='33 tokens end the text; want at most 32'):
        next(lm.generate(2, stops=range(33)))


def test_the_end_of_the_capacity_is_reached_step_by_step() -> None:
    """Where a whole round no longer fits, single steps go on to the last place."""
    made = apt(4)
    plain = HybridLM(Context('cpu'), *made, capacity=130)
    lm = DraftingLM(Context('cpu'), *made, capacity=130, drafts=3)
    for one in (plain, lm):
        one.append(words(120, 1))
    assert list(lm.generate(50)) == list(plain.generate(50))
    assert lm.length == plain.length == 130
    with pytest.raises(TextError, match='want 4, greedy'):
        lm.round(4)


def test_drawn_text_is_not_drafted_and_greedy_text_goes_on_from_it() -> None:
    """Draws go step by step, and the head's cache keeps up with them."""
    plain, lm = pair(apt(5), 2)
    for one in (plain, lm):
        one.reset(seed=3, temperature=1.2)
        one.append(words(40, 1))
    assert list(lm.generate(12)) == list(plain.generate(12))
    assert lm.guessed == 0
    for one in (plain, lm):
        one.choice = mtp_greedy(one)
        one.append(words(5, 2))
    assert list(lm.generate(12)) == list(plain.generate(12))
    assert lm.right > 0


def mtp_greedy(lm: HybridLM) -> Any:
    """Return the model's choice at temperature zero."""
    return type(lm.choice)(0, 0, 0.0, 0.0)


def test_the_closure_holds_the_heads_cache_too() -> None:
    """Restored, a text goes on with the same guesses; every entry is needed for that."""
    config, weights = lm_oracle.tiny_weights(1, drafts=True)
    lm = DraftingLM(Context('cpu'), config, weights, capacity=400, drafts=3)
    session = opened(lm)
    lm.append(words(70, 1))

    def step() -> list[object]:
        told = lm.round(4)
        return [told, lm.ahead.rows.tensor.tolist(), lm.logits.tensor.clone(), lm.tokens,
                lm.state.digest.tensor.clone(), lm.ahead.cursor.length]  # fmt: skip

    def disturb() -> None:
        lm.reset()
        lm.append(words(90, 2))
        lm.round(4)

    idle = ['lm/choice', *(b.name for b in lm.state.choosing)]
    report = assert_complete(session, step, steps=2, disturb=disturb, superfluous=idle)
    assert 'lm/mtp kv' in report.needed and 'lm/hidden' in report.needed


@pytest.mark.parametrize('boundary', [64, 128])
def test_restore_and_append_is_the_cold_text_guess_for_guess(boundary: int) -> None:
    """At a multiple of the chunk the head's cache too has the bytes of a cold prefill."""
    _, lm = pair(apt(6), 2)
    session = opened(lm)
    tokens = words(boundary + 40, 1)

    def seen() -> list[object]:
        return [list(lm.generate(20)), lm.logits.tensor.tolist(), lm.ahead.rows.tensor.tolist()]

    lm.append(tokens)
    cache = lm.ahead.kv.tensor[:, : len(tokens) - 1].clone()
    cold = seen()
    lm.reset()
    lm.consume(tokens[:boundary])
    capsule = session.snapshot('aligned', boundary)
    lm.reset()
    lm.append(words(90, 99))
    list(lm.generate(9))
    session.restore(capsule)
    lm.append(tokens[boundary:])
    assert torch.equal(lm.ahead.kv.tensor[:, : len(tokens) - 1], cache)
    assert seen() == cold


def test_eight_forks_of_a_drafting_text_come_back() -> None:
    """Fork, diverge in rounds, roll back, replay: identical."""
    _, lm = pair(apt(7), 2)
    session = opened(lm)
    lm.append(words(100, 4))
    list(lm.generate(7))
    trunk = session.snapshot('trunk', lm.length)
    branches = session.fork(trunk, 8)
    firsts = []
    for index, branch in enumerate(branches):
        branch.restore(trunk)
        lm.append(words(3, index))
        firsts.append((list(lm.generate(6)), lm.logits.tensor.tolist()))
    assert len({tuple(told) for told, _ in firsts}) > 1
    for index, branch in enumerate(branches):
        branch.rollback(trunk)
        lm.append(words(3, index))
        assert (list(lm.generate(6)), lm.logits.tensor.tolist()) == firsts[index]


def test_a_wrong_guess_that_is_not_rolled_back_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted faults: keep the states after all rows, or believe every guess."""
    made = lm_oracle.tiny_weights(0, drafts=True)
    settle = Kept.settle
    monkeypatch.setattr(Kept, 'settle', lambda self, row: settle(self, row * 0 + 2))
    plain, lm = pair(made, 2)
    for one in (plain, lm):
        one.append(words(70, 1))
    assert list(lm.generate(40)) != list(plain.generate(40))
    monkeypatch.setattr(Kept, 'settle', settle)
    monkeypatch.setattr(
        mtp.DraftingLM, '_agreed', lambda self, guessed, chosen: (guessed == guessed).sum(0, True)
    )
    credulous = DraftingLM(Context('cpu'), *made, capacity=400, drafts=2)
    plain.reset()
    for one in (plain, credulous):
        one.append(words(70, 1))
    list(credulous.generate(40))
    list(plain.generate(40))
    assert credulous.tokens != plain.tokens


def test_weights_without_the_head_cannot_draft() -> None:
    """One line says what is missing, or which numbers would do."""
    with pytest.raises(CheckpointError, match=r'no mtp\.\* head'):
        DraftingLM(Context('cpu'), *lm_oracle.tiny_weights(0))
    with pytest.raises(TextError, match='9 drafts; want 1 to 8'):
        DraftingLM(Context('cpu'), *lm_oracle.tiny_weights(0, drafts=True), drafts=9)
