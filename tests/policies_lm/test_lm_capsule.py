"""The language model's whole state is a capsule: restored, it goes on bit for bit."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.completeness import assert_complete
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.session import Session

sys.path.insert(0, str(Path(__file__).parent))
import lm_oracle

from flashrt_policies.hybrid_lm import prefix
from flashrt_policies.hybrid_lm.model import HybridLM, TextError
from flashrt_policies.hybrid_lm.prefix import PrefixIndex, TextRegistry, Texts


def opened(lm: HybridLM) -> Session:
    """Return a session over the model's state."""
    closure = Closure('lm')
    lm.close_over(closure)
    return Session(lm.ctx, closure, Fingerprint.of(closure, 'cpu', **lm.fingerprint()))


def words(count: int, seed: int) -> list[int]:
    """Return `count` random tokens."""
    rng = random.Random(seed)
    return [rng.randrange(61) for _ in range(count)]


def seen(lm: HybridLM) -> tuple[bytes, int]:
    """Return the logits' bytes and the chosen token."""
    return lm.logits.tensor.numpy().tobytes(), lm.token


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products gain nothing from more."""
    torch.set_num_threads(1)


@pytest.mark.parametrize('temperature', [0.0, 1.3])
def test_the_closure_holds_everything_and_nothing_more(temperature: float) -> None:
    """Every entry is needed, and the rest of the context's memory is not."""
    lm = lm_oracle.tiny()
    session = opened(lm)
    lm.reset(seed=5, temperature=temperature, min_p=0.01)
    lm.append(words(70, 1))

    def step() -> list[object]:
        lm.step()
        state = lm.state
        told = [lm.token, lm.logits.tensor.clone(), state.hidden.tensor.clone()]
        return [*told, state.digest.tensor.clone(), lm.tokens, lm.choice.temperature]

    def disturb() -> None:
        lm.reset(seed=1, temperature=0.0 if temperature else 1.5, min_p=0.5)
        lm.append(words(90, 2))
        lm.step()

    # A greedy choice reads nothing of the draw; the last hidden state is where `choose` starts,
    # which `step` does not.
    idle = [] if temperature else ['lm/choice', *(b.name for b in lm.state.choosing)]
    assert_complete(session, step, steps=4, disturb=disturb, superfluous=[*idle, 'lm/hidden'])


@pytest.mark.parametrize('boundary', [64, 128, 192])
@pytest.mark.parametrize('more', [1, 40, 63, 64, 65, 130])
def test_restore_and_append_is_the_cold_prefill_bit_for_bit(boundary: int, more: int) -> None:
    """At a multiple of the chunk: the same logits, bit for bit, and the same next tokens."""
    lm = lm_oracle.tiny()
    session = opened(lm)
    tokens = words(boundary + more, more)
    lm.reset()
    lm.append(tokens)
    cold = [seen(lm), list(lm.generate(5))]
    lm.reset()
    lm.consume(tokens[:boundary])
    capsule = session.snapshot('aligned', boundary)
    lm.reset()
    lm.append(words(90, 99))  # somewhere else
    session.restore(capsule)
    lm.append(tokens[boundary:])
    assert [seen(lm), list(lm.generate(5))] == cold


def test_keys_and_values_alone_are_not_the_state() -> None:
    """The planted fault: with the recurrent states left behind, the continuation diverges."""
    lm = lm_oracle.tiny()
    tokens = words(130, 3)
    lm.reset()
    lm.append(tokens)
    cold = lm.logits.tensor.clone()
    assert lm.state.kv is not None and lm.state.recurrent is not None
    lm.reset()
    lm.consume(tokens[:128])
    lm.state.recurrent.tensor.zero_()  # what a cache of positional keys and values would keep
    lm.append(tokens[128:])
    assert (lm.logits.tensor - cold).abs().max() > 100 * 2e-5


def test_eight_forks_diverge_and_come_back() -> None:
    """Fork, diverge, roll back, replay: identical."""
    lm = lm_oracle.tiny()
    session = opened(lm)
    lm.reset(seed=9, temperature=1.0)
    lm.append(words(100, 4))
    trunk = session.snapshot('trunk', lm.length)
    branches = session.fork(trunk, 8)
    firsts = []
    for index, branch in enumerate(branches):
        branch.restore(trunk)
        lm.append(words(3, index))
        firsts.append((list(lm.generate(6)), seen(lm)))
    assert len({tuple(tokens) for tokens, _ in firsts}) > 1
    for index, branch in enumerate(branches):
        branch.rollback(trunk)
        lm.append(words(3, index))
        assert (list(lm.generate(6)), seen(lm)) == firsts[index]


def test_a_prompt_finds_the_longest_state_it_starts_with() -> None:
    """Reused as far as possible, with the bits of a cold prefill, at any length."""
    lm = lm_oracle.tiny()
    texts = Texts(lm, opened(lm))
    base = words(200, 5)
    lm.reset()
    first = texts.prompt(base)
    assert (first.reused, first.consumed) == (0, 200)
    longer = [*base, *words(30, 6)]
    cases = [
        (longer, 192),  # the last multiple of the chunk
        (base, 192),
        (base[:192], 192),  # exactly what is stored: nothing is run but the head
        (base[:193], 192),  # one token more
        (base[:191], 0),  # one less than the shortest stored state
        ([*base[:150], 60, *base[151:]], 0),  # another token inside
    ]
    for tokens, reused in cases:
        lm.reset()
        lm.append(tokens)
        cold = seen(lm)
        fresh = Texts(lm, texts.session)
        fresh.index = texts.index
        ran = fresh.prompt(tokens, keep=False)
        assert (ran.reused, ran.consumed, ran.exact) == (reused, len(tokens) - reused, True)
        assert seen(lm) == cold
    with pytest.raises(TextError, match='want 1 to 400'):
        texts.prompt([])


def test_a_registry_finds_a_prompt_of_any_length() -> None:
    """The longest capsule that a prompt starts with, up to the very prompt; for all sessions."""
    lm = lm_oracle.tiny()
    closure = Closure('lm')
    lm.close_over(closure)
    made = Fingerprint.of(closure, 'cpu', **lm.fingerprint())
    registry = TextRegistry(lm.ctx, 64 << 20)
    texts = Texts(lm, Session(lm.ctx, closure, made, registry=registry), exact=False)
    base = words(200, 5)
    for length in (1, 64, 65, 130):
        lm.reset()
        lm.append(base[:length])
        texts.remember()
    for length in range(1, 201):
        entry = registry.match(base[:length])
        assert entry is not None and list(entry.tokens) == base[: len(entry.tokens)]
        assert len(entry.tokens) == max(n for n in (1, 64, 65, 130) if n <= length)
    assert registry.match([60 - base[0], *base[1:]]) is None
    again = Texts(lm, Session(lm.ctx, closure, made, registry=registry), exact=False)
    for length, reused in ((130, 130), (65, 65), (66, 65), (64, 64)):
        ran = again.prompt(base[:length], keep=False)
        assert (ran.reused, ran.consumed) == (reused, length - reused)
    other = Fingerprint({**made.fields, 'weights': 'others'})
    assert registry.match(base, other) is None and registry.match(base, made) is not None


def test_an_unaligned_state_says_that_it_is_not_exact() -> None:
    """Asked to reuse any state, a session says which reuse does not lead to the same bits."""
    lm = lm_oracle.tiny()
    texts = Texts(lm, opened(lm), exact=False)
    tokens = words(100, 7)
    lm.reset()
    lm.append(tokens)
    texts.remember()
    ran = texts.prompt([*tokens, 5, 6], keep=False)
    assert (ran.reused, ran.consumed, ran.exact) == (100, 2, False)
    texts.exact = True
    ran = texts.prompt([*tokens, 5, 6], keep=False)
    assert (ran.reused, ran.exact) == (0, True)


def test_a_digest_that_collides_restores_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: every digest is the same, and still only equal tokens match."""
    monkeypatch.setattr(prefix, 'digest', lambda tokens: 0)
    monkeypatch.setattr(prefix, 'BASE', 0)
    monkeypatch.setattr(prefix, 'PRIME', 1)
    lm = lm_oracle.tiny()
    session = opened(lm)
    index = PrefixIndex()
    lm.append(words(64, 1))
    one = session.snapshot('one')
    index.add(one, words(64, 1))
    assert index.match(words(64, 2)) is None
    found = index.match([*words(64, 1), 3])
    assert found is not None and found.capsule is one


def test_an_evicted_capsule_is_not_found() -> None:
    """What is gone is no match, and leaves the index."""
    lm = lm_oracle.tiny()
    session = opened(lm)
    texts = Texts(lm, session)
    tokens = words(64, 8)
    lm.append(tokens)
    capsule = texts.remember()
    assert texts.index.match(tokens) is not None
    session.registry.evict(capsule)
    assert texts.index.match(tokens) is None and len(texts.index) == 0
