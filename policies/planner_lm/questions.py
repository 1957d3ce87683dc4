"""What can be asked of a state, and what the answer looks like. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flashrt_ros.errors import FlashrtError

MOST = 255  # options of one question


class QuestionError(FlashrtError, ValueError):
    """A question that cannot be asked; the message says what would be right."""


@dataclass(frozen=True)
class YesNo:
    """A question that is answered yes or no.

    Attributes:
        text: the question, one line.
    """

    text: str

    @property
    def options(self) -> tuple[str, ...]:
        """What the answer may be."""
        return ('yes', 'no')

    @property
    def descriptions(self) -> tuple[str, ...]:
        """None."""
        return ()


@dataclass(frozen=True)
class Choice:
    """A question that is answered with one of its options.

    Attributes:
        text: the question, one line.
        options: 2 to 255 different ones, a line each.
        descriptions: of the options, a line each; empty where none has one.
    """

    text: str
    options: tuple[str, ...]
    descriptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """A question that is answered with a level.

    Attributes:
        text: the question, one line.
        options: the levels in rising order, 2 to 255 different names; see `levels`.
    """

    text: str
    options: tuple[str, ...]

    @property
    def descriptions(self) -> tuple[str, ...]:
        """None: a level is its name."""
        return ()


Question: TypeAlias = 'YesNo | Choice | Score'


def levels(count: int) -> tuple[str, ...]:
    """Return the names of `count` levels that are only numbered: '0', '1', ..."""
    return tuple(str(level) for level in range(count))


@dataclass(frozen=True)
class Answer:
    """The answer to one question: what it would be had the question been asked alone.

    Attributes:
        options: as in the question; ('yes', 'no') of a `YesNo`.
        probabilities: of the options, in the same order; they sum to 1.
    """

    options: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def index(self) -> int:
        """Index of the likeliest option; the first one on a tie."""
        return max(range(len(self.options)), key=self.probabilities.__getitem__)

    @property
    def text(self) -> str:
        """The likeliest option."""
        return self.options[self.index]

    @property
    def probability(self) -> float:
        """How sure the likeliest option is, 0 to 1."""
        return self.probabilities[self.index]

    @property
    def yes(self) -> float:
        """Probability of the first option: of yes."""
        return self.probabilities[0]

    @property
    def level(self) -> float:
        """Expected level of a score, counted from 0."""
        return sum(i * p for i, p in enumerate(self.probabilities))

    def of(self, option: str) -> float:
        """Return the probability of an option; 0 for one that was not offered."""
        return dict(zip(self.options, self.probabilities, strict=True)).get(option, 0.0)


def check(question: Question) -> None:
    """Refuse a question that cannot be asked.

    Raises:
        QuestionError: no text, a line break, too few or too many options, or two alike.
    """
    options, about = question.options, f'question {question.text[:40]!r}'
    if not question.text.strip():
        raise QuestionError('a question has no text; want one line')
    if not 2 <= len(options) <= MOST:
        raise QuestionError(f'{about}: {len(options)} options; want 2 to {MOST}')
    if len(set(options)) != len(options) or not all(option.strip() for option in options):
        raise QuestionError(f'{about}: an option is empty or there twice; want different ones')
    if question.descriptions and len(question.descriptions) != len(options):
        raise QuestionError(
            f'{about}: {len(question.descriptions)} descriptions of {len(options)} options; '
            'want one each, or none'
        )
    if any('\n' in text for text in (question.text, *options, *question.descriptions)):
        raise QuestionError(f'{about}: a line break; want one line each')
