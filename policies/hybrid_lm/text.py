"""Text to tokens and back: a checkpoint's own tokenizer, or bytes for small models.

Chat templates are Jinja, rendered in its sandbox, as transformers does: a template is data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from flashrt_policies.checkpoint import CheckpointError

# Used where a checkpoint has no template of its own; most small chat models know these marks.
PLAIN_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
)
STYLE = 'flashrt_style'  # the key of `Tokenizer.style` in a checkpoint's tokenizer_config.json


class Tokenizer(Protocol):
    """What turns text into tokens and back."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; what is no character yet is the replacement character."""

    @property
    def stops(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def template(self) -> str | None:
        """The chat template, or None where the checkpoint has none."""

    @property
    def style(self) -> str | None:
        """How it was trained to be asked (`planner_lm.prompt`), or None where it does not say."""

    @property
    def size(self) -> int:
        """How many tokens there are."""


class ByteTokenizer:
    """Every byte of the UTF-8 text is a token."""

    stops: frozenset[int] = frozenset()
    template: str | None = None
    style: str | None = 'short'
    size = 256

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode('utf-8'))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of bytes; tokens above 255 are dropped."""
        return bytes(token for token in tokens if token < 256).decode('utf-8', 'replace')


class FileTokenizer:
    """A tokenizer of the `tokenizers` library.

    Args:
        inner: the library's tokenizer.
        stops: tokens that end an answer.
        template: the chat template, or None.
        style: how the checkpoint was trained to be asked, or None.
    """

    def __init__(
        self,
        inner: Any,
        stops: frozenset[int] = frozenset(),
        template: str | None = None,
        style: str | None = None,
    ) -> None:
        self.inner, self.stops, self.template, self.style = inner, stops, template, style

    @property
    def size(self) -> int:
        """How many tokens there are."""
        count: int = self.inner.get_vocab_size()
        return count

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; special tokens written out in it count as such."""
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        text: str = self.inner.decode(list(tokens), skip_special_tokens=True)
        return text


def load_tokenizer(folder: Path, vocab: int) -> Tokenizer:
    """Return the tokenizer of a checkpoint folder; bytes where it has none and 256 suffice.

    Raises:
        CheckpointError: there is none, and the vocabulary is not one of bytes; or it is damaged.
    """
    path = folder / 'tokenizer.json'
    if not path.is_file():
        if not 256 <= vocab <= 512:
            raise CheckpointError(
                f'{path} is missing; want it beside the weights (vocabulary {vocab})'
            )
        return ByteTokenizer()
    import tokenizers

    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        reason = ' '.join(str(error).split())[:100]
        raise CheckpointError(f'{path} cannot be read ({reason}); want a tokenizer') from None
    extra = _json(folder / 'tokenizer_config.json')
    template = extra.get('chat_template')
    beside = folder / 'chat_template.jinja'
    if beside.is_file():
        template = beside.read_text('utf-8')
    stops = {inner.token_to_id(name) for name in (_word(extra.get('eos_token')), '<|im_end|>')}
    ids = _json(folder / 'generation_config.json').get('eos_token_id')
    stops |= set(ids) if isinstance(ids, list) else {ids}
    kept = frozenset(stop for stop in stops if isinstance(stop, int))
    template = template if isinstance(template, str) else None
    return FileTokenizer(inner, kept, template, _word(extra.get(STYLE)) or None)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text('utf-8'))
    except ValueError as error:
        raise CheckpointError(f'{path} is not JSON ({error}); want JSON or no file') from None
    return found if isinstance(found, dict) else {}


def _word(value: object) -> str:
    if isinstance(value, Mapping):
        value = value.get('content')
    return value if isinstance(value, str) else ''


def render_chat(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> str:
    """Return the prompt for the assistant's next answer.

    Args:
        tokenizer: its template is used, or a plain one.
        messages: each with 'role' and 'content'.

    Raises:
        CheckpointError: the template fails.
    """
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def fail(message: str) -> None:
        raise TemplateError(message)

    environment.globals['raise_exception'] = fail
    try:
        template = environment.from_string(tokenizer.template or PLAIN_CHAT)
        return template.render(
            messages=list(messages), add_generation_prompt=True, bos_token='', eos_token=''
        )
    except TemplateError as error:
        raise CheckpointError(f'the chat template fails ({error}); want another') from None


def stream(
    decode: Callable[[Sequence[int]], str], tokens: Iterator[int], stops: frozenset[int]
) -> Iterator[str]:
    """Yield text as soon as it is whole: a character cut across tokens waits for its rest.

    Args:
        decode: tokens to text.
        tokens: as they are chosen; the first of `stops` ends the text and is not shown.
        stops: tokens that end it.
    """
    seen: list[int] = []
    shown = ''
    for token in tokens:
        if token in stops:
            break
        seen.append(token)
        text = decode(seen)
        if text.endswith('\ufffd'):
            continue
        yield text[len(shown) :]
        shown = text
        if text.endswith('\n'):  # a line is settled: decode what follows alone
            seen, shown = [], ''
    rest = decode(seen)
    if len(rest) > len(shown):
        yield rest[len(shown) :]
