"""The text of a message's definition, made from its Python class: what MCAP and Foxglove read.

The files below `share/` would do as well, but the class is what the bytes were written from.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

PLAIN = {'boolean': 'bool', 'float': 'float32', 'double': 'float64', 'octet': 'byte'}
LINE = '=' * 80
_ARRAY = re.compile(r'(?P<kind>.+?)\[(?P<size>\d+)\]$')
_SEQUENCE = re.compile(r'sequence<(?P<kind>[^,]+)(, (?P<size>\d+))?>$')


def definition(kind: type) -> str:
    """Return the definition of message class ``kind``, and of all it is made of, below it."""
    texts: dict[str, str] = {}
    _describe(kind, texts)
    (_, first), *others = texts.items()
    return first + ''.join(f'{LINE}\nMSG: {name}\n{text}' for name, text in others)


def full_name(kind: type) -> str:
    """Return a message's name as MCAP has it: package/msg/Type."""
    package = kind.__module__.split('.')[0]
    return f'{package}/msg/{kind.__name__}'


def _describe(kind: Any, texts: dict[str, str]) -> None:
    name = full_name(kind).replace('/msg/', '/')
    if name in texts:
        return
    texts[name] = ''  # keeps its place: the message itself stands first
    lines = []
    for field, given in kind.get_fields_and_field_types().items():
        inner, suffix = _split(given)
        if '/' in inner:
            package, _, word = inner.partition('/')
            _describe(getattr(importlib.import_module(f'{package}.msg'), word), texts)
        lines.append(f'{PLAIN.get(inner, inner)}{suffix} {field}\n')
    texts[name] = ''.join(lines)


def _split(given: str) -> tuple[str, str]:
    """Return a field's type without its array part, and that part as .msg files write it."""
    array, sequence = _ARRAY.match(given), _SEQUENCE.match(given)
    if array:
        return array['kind'], f'[{array["size"]}]'
    if sequence:
        return sequence['kind'], f'[<={sequence["size"]}]' if sequence['size'] else '[]'
    return re.sub(r'^string<(\d+)>$', r'string<=\1', given), ''
