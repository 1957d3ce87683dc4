"""What a scene can be asked for: an instruction, its paraphrases, when it is achieved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Subgoal:
    """One skill of a scene.

    Args:
        text: the canonical instruction, also the subgoal's name.
        achieved: from the bare simulator, whether the subgoal holds in this moment.
        start: name of the start from which the skill is officially evaluated.
        paraphrases: other wordings that a policy is trained on.
        held_out: wordings that no policy is trained on.
    """

    text: str
    achieved: Callable[[Any], bool]
    start: str
    paraphrases: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()

    @property
    def wordings(self) -> tuple[str, ...]:
        """The canonical text and its paraphrases, as a policy meets them in training."""
        return (self.text, *self.paraphrases)
