"""Prompts that find by themselves the longest stored state they start with.

A `PrefixIndex` maps token sequences to capsules: looked up by length and digest, and confirmed
token by token, so that a collision of digests never restores a wrong state. A `TextRegistry` keeps
one over its capsules, for every session that shares it; `Texts` ties it to a model and a session.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from flashrt_policies.hybrid_lm.schedule import aligned
from flashrt_policies.kernels.embed import BASE, PRIME, digest
from flashrt_ros.capsule.registry import Registry

if TYPE_CHECKING:
    from flashrt_policies.hybrid_lm.model import HybridLM
    from flashrt_ros.capsule.capsule import Capsule
    from flashrt_ros.capsule.fingerprint import Fingerprint
    from flashrt_ros.capsule.session import Session


@dataclass(frozen=True)
class Entry:
    """A stored state and the tokens it has consumed."""

    capsule: Capsule
    tokens: array[int]


class PrefixIndex:
    """Capsules by the tokens they have consumed."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], list[Entry]] = {}  # (length, digest) -> entries

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def add(self, capsule: Capsule, tokens: Sequence[int]) -> None:
        """Remember that `capsule` is the state after exactly `tokens`."""
        key = (len(tokens), digest(tokens))
        self._entries.setdefault(key, []).append(Entry(capsule, array('i', tokens)))

    def match(self, tokens: Sequence[int], fingerprint: Fingerprint | None = None) -> Entry | None:
        """Return the longest entry whose tokens `tokens` starts with; evicted ones are dropped.

        Args:
            tokens: a prompt.
            fingerprint: leave out capsules of other deployments; None takes any.
        """

        def fits(capsule: Capsule) -> bool:
            return fingerprint is None or capsule.fingerprint.fields == fingerprint.fields

        prompt = array('i', tokens)
        lengths = sorted({length for length, _ in self._entries if length <= len(prompt)})
        found, state, start = None, 0, 0
        for length in lengths:
            for token in prompt[start:length]:
                state = (state * BASE + token + 1) % PRIME
            start = length
            key = (length, state)
            alive = [e for e in self._entries.get(key, ()) if e.capsule.tier is not None]
            if key in self._entries:
                self._entries[key] = alive
            same = (e for e in alive if e.tokens == prompt[:length] and fits(e.capsule))
            found = next(same, found)
        self._entries = {key: entries for key, entries in self._entries.items() if entries}
        return found


class TextRegistry(Registry):
    """A `Registry` that finds a capsule by the tokens that its state has consumed."""

    @cached_property
    def texts(self) -> PrefixIndex:
        """The capsules that can be found."""
        return PrefixIndex()

    def match(self, tokens: Sequence[int], fingerprint: Fingerprint | None = None) -> Entry | None:
        """As `PrefixIndex.match`, over every text remembered by a session of this registry."""
        return self.texts.match(tokens, fingerprint)


@dataclass(frozen=True)
class Ran:
    """What it took to take a prompt in.

    Attributes:
        reused: tokens whose state was restored.
        consumed: tokens that were run.
        exact: the logits have the bits of a cold prefill: the restored state stood at a multiple
            of the chunk, or was the whole prompt's.
    """

    reused: int
    consumed: int
    exact: bool


class Texts:
    """Takes prompts in, reusing what earlier ones left.

    Args:
        lm: the model.
        session: over a closure that `lm` has named its state in; with a `TextRegistry`, what other
            sessions remembered is found too.
        exact: reuse only states that lead to the bits of a cold prefill.
    """

    def __init__(self, lm: HybridLM, session: Session, exact: bool = True) -> None:
        self.lm, self.session, self.exact = lm, session, exact
        shared = session.registry
        self.index = shared.texts if isinstance(shared, TextRegistry) else PrefixIndex()

    def remember(self, pin: bool = False) -> Capsule:
        """Freeze the current state and make it findable."""
        tokens = self.lm.tokens
        capsule = self.session.snapshot('text', len(tokens), pin=pin)
        self.index.add(capsule, tokens)
        return capsule

    def prompt(self, tokens: Sequence[int], keep: bool = True) -> Ran:
        """Make the state that of `tokens` and choose the next token.

        Args:
            tokens: the whole prompt.
            keep: freeze the state at the last multiple of the chunk, for later prompts.

        Raises:
            TextError: as `HybridLM.consume`.
        """
        lm = self.lm
        lm.check(tokens, room=lm.capacity)
        entry = self.index.match(tokens, self.session.fingerprint)
        length = 0 if entry is None else len(entry.tokens)
        fits = length % lm.chunk == 0 or length == len(tokens)
        if entry is not None and (fits or not self.exact):
            choice = lm.choice
            self.session.restore(entry.capsule)
            lm.choice = choice  # how to choose is the caller's, not the text's
        else:
            length, fits = 0, True
            lm.forget()
        boundary = aligned(len(tokens), lm.chunk)
        if keep and length < boundary:
            lm.consume(tokens[length:boundary])
            self.remember()
            length_now = boundary
        else:
            length_now = length
        if length_now < len(tokens):
            lm.consume(tokens[length_now:])
        lm.choose()
        return Ran(length, len(tokens) - length, fits)
