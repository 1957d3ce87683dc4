r"""How a question becomes tokens: what follows the state, and the tokens that may answer it.

Every answer is one token: a letter in front of its option, or yes and no. Three styles:

* ``short``, for models of bytes and those that say so, such as the shipped planner: options are
  labelled by their first tokens, or, where two begin alike or one has a note, by letters::

      STATE \n Done? =                     -> y or n
      STATE \n Next? A|B|finished =        -> A, B or finished
      STATE \n Which? \n A the cup \n B the cap \n =   -> A or B

* ``plain``, for text models, and ``chat``, the same inside the checkpoint's chat template.

State and question are turned into tokens apart, so a question's prompt is the same whether it is
asked alone or among others.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from flashrt_policies.hybrid_lm.text import Tokenizer, render_chat
from flashrt_policies.planner_lm.questions import MOST, Question, QuestionError, YesNo, check

STYLES = ('short', 'plain', 'chat')
_SPLIT = '\x00'  # stands for the state while a chat template is rendered
# What labels options before any other token does.
_READABLE = string.ascii_uppercase + string.ascii_lowercase + string.digits + string.punctuation


@dataclass(frozen=True)
class Asked:
    """One question as tokens.

    Attributes:
        tokens: what follows the state's tokens.
        options: the token of each option.
    """

    tokens: list[int]
    options: list[int]


class Prompter:
    """Turns states and questions into tokens for one tokenizer.

    Args:
        tokenizer: the checkpoint's.
        style: one of `STYLES`; None takes the tokenizer's own, else chat where there is a chat
            template, else plain.

    Raises:
        QuestionError: unknown style.
    """

    def __init__(self, tokenizer: Tokenizer, style: str | None = None) -> None:
        if style is None:
            style = tokenizer.style or ('chat' if tokenizer.template else 'plain')
        if style not in STYLES:
            raise QuestionError(f'style {style!r}; want one of {", ".join(STYLES)}')
        self.tokenizer, self.style = tokenizer, style
        self._before, self._after = '', ''
        if style == 'chat':
            shown = render_chat(tokenizer, [{'role': 'user', 'content': _SPLIT}])
            self._before, _, self._after = shown.partition(_SPLIT)
        self._labels = lru_cache(maxsize=None)(self._find_labels)

    def state(self, text: str) -> list[int]:
        """Return the tokens of a state.

        Raises:
            QuestionError: it is empty.
        """
        if not text.strip():
            raise QuestionError('the state is empty; want some text')
        return self.tokenizer.encode(self._before + text)

    def question(self, question: Question) -> Asked:
        """Return a question's tokens and those of its options.

        Raises:
            QuestionError: it cannot be asked, or the tokenizer has too few labels.
        """
        check(question)
        if self.style == 'short':
            return self._short(question)
        lead, names, tokens = self._labels(isinstance(question, YesNo), len(question.options))
        text = f'\n\n{question.text}\n'
        if isinstance(question, YesNo):
            text += f'Answer {names[0]} or {names[1]}.'
        else:
            text += '\n'.join(_lines(names, question)) + '\nAnswer with one label.'
        answer = '\nAnswer:' if self.style == 'plain' else self._after
        text += answer if lead or self.style == 'chat' else answer + ' '
        return Asked(self.tokenizer.encode(text), list(tokens))

    def _short(self, question: Question) -> Asked:
        """Return a question in few tokens; a label may be any token but the line break."""
        encode = self.tokenizer.encode
        if isinstance(question, YesNo):
            return Asked(encode(f'\n{question.text} ='), [encode('y')[0], encode('n')[0]])
        first = [encode(option)[0] for option in question.options]
        if len(set(first)) == len(first) and not question.descriptions:
            return Asked(encode(f'\n{question.text} {"|".join(question.options)} ='), first)
        labels = list(self._any[: len(question.options)])
        notes = question.descriptions or ('',) * len(labels)
        tokens = encode(f'\n{question.text}')
        for label, option, note in zip(labels, question.options, notes, strict=True):
            line = f' {option}: {note}' if note else f' {option}'
            tokens += [*encode('\n'), label, *encode(line)]
        return Asked([*tokens, *encode('\n=')], labels)

    @cached_property
    def _any(self) -> tuple[int, ...]:
        """All tokens that may label an option, the readable ones first."""
        encode, size = self.tokenizer.encode, self.tokenizer.size
        tokens = dict.fromkeys((*(encode(character)[0] for character in _READABLE), *range(size)))
        return tuple(token for token in tokens if token != encode('\n')[0])

    def _find_labels(
        self, yes_no: bool, count: int
    ) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
        """Return what stands before a label, the labels, and the token of each."""
        leads = ('',) if self.style == 'chat' else (' ', '')
        for lead in leads:
            found: dict[str, int] = {}
            for name in ('yes', 'no') if yes_no else _names():
                ids = self.tokenizer.encode(lead + name)
                if len(ids) == 1 and ids[0] not in found.values():
                    found[name] = ids[0]
                if len(found) == count:
                    return lead, tuple(found), tuple(found.values())
        raise QuestionError(
            f'this tokenizer has no {count} labels of one token; want fewer options, or a '
            'byte-level checkpoint'
        )


def _names() -> Iterator[str]:
    """Yield label texts, the plainest first."""
    upper, lower = string.ascii_uppercase, string.ascii_lowercase
    yield from upper
    yield from lower
    yield from (str(number) for number in range(MOST))
    for letters in (upper, lower):
        yield from (a + b for a in letters for b in letters)


def _lines(names: Sequence[str], question: Question) -> Iterator[str]:
    notes = question.descriptions or ('',) * len(question.options)
    for name, option, note in zip(names, question.options, notes, strict=True):
        yield f'{name}. {option} - {note}' if note else f'{name}. {option}'
