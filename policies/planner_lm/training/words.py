"""How people ask for skills: every way, which of them are held out, and verbs in other forms.

The words file (``planner_words.yaml``) holds patterns such as ``pull {the drawer} (out|open)``;
all their readings are written out once; a seventh, chosen by digest, is never trained.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from flashrt_ros.errors import FlashrtError

SAID = ''.join(map(chr, range(0xE000, 0xE010)))  # mark where a way ends while text is made up
_CHOICE = re.compile(r'\(([^()]*)\)')
_IRREGULAR = {
    'hit': ('hitting', 'hit'), 'shut': ('shutting', 'shut'), 'get': ('getting', 'got'),
    'put': ('putting', 'put'), 'set': ('setting', 'set'), 'let': ('letting', 'let'),
    'draw': ('drawing', 'drawn'), 'take': ('taking', 'taken'), 'bring': ('bringing', 'brought'),
    'throw': ('throwing', 'thrown'), 'drive': ('driving', 'driven'), 'see': ('seeing', 'seen'),
    'make': ('making', 'made'), 'give': ('giving', 'given'), 'spin': ('spinning', 'spun'),
    'swing': ('swinging', 'swung'), 'stick': ('sticking', 'stuck'),
    'strike': ('striking', 'struck'), 'go': ('going', 'gone'), 'slide': ('sliding', 'slid'),
    'lay': ('laying', 'laid'), 'shoot': ('shooting', 'shot'), 'sweep': ('sweeping', 'swept'),
    'hold': ('holding', 'held'), 'stop': ('stopping', 'stopped'), 'grab': ('grabbing', 'grabbed'),
    'slip': ('slipping', 'slipped'), 'drop': ('dropping', 'dropped'),
    'transfer': ('transferring', 'transferred'), 'plug': ('plugging', 'plugged'),
    'unplug': ('unplugging', 'unplugged'), 'fit': ('fitting', 'fitted'),
    'drag': ('dragging', 'dragged'), 'cut': ('cutting', 'cut'), 'sell': ('selling', 'sold'),
    'read': ('reading', 'read'), 'feed': ('feeding', 'fed'), 'bend': ('bending', 'bent'),
    'break': ('breaking', 'broken'), 'wrap': ('wrapping', 'wrapped'), 'find': ('finding', 'found'),
    'shake': ('shaking', 'shaken'), 'weigh': ('weighing', 'weighed'),
    'carry': ('carrying', 'carried'), 'empty': ('emptying', 'emptied'), 'dry': ('drying', 'dried'),
    'sing': ('singing', 'sung'), 'write': ('writing', 'written'), 'dig': ('digging', 'dug'),
    'tell': ('telling', 'told'), 'catch': ('catching', 'caught'), 'lift': ('lifting', 'lifted'),

}  # fmt: skip


class WordsError(FlashrtError):
    """A words file that is missing, damaged, or lacks a skill that a scene has."""


@dataclass(frozen=True)
class Skill:
    """What a scene can be asked for.

    Attributes:
        text: the canonical name.
        thing: what it is about; "it" may stand for it after another skill of the same thing.
        ways: how it is asked for in training, the name among them; the thing in braces.
        held_out: ways that are never trained.
    """

    text: str
    thing: str
    ways: tuple[str, ...]
    held_out: tuple[str, ...]

    @cached_property
    def said(self) -> frozenset[str]:
        """All ways, the thing without its braces."""
        return frozenset(map(plain, (*self.ways, *self.held_out)))


@dataclass(frozen=True)
class Words:
    """Everything in a words file.

    Attributes:
        skills: by canonical name.
        scenes: the skills of every scene that has several.
        loose: (ways, the skills one of which they mean).
        akin: skills so near each other that asking for one could mean the other where only that
            one is there.
        foreign: parts of requests that no scene can serve: verbs, things, whole.
        notes: what people say meanwhile: calm, warning, stop.
        digest: of the file.
    """

    skills: Mapping[str, Skill]
    scenes: tuple[tuple[str, ...], ...]
    loose: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    akin: tuple[tuple[str, ...], ...]
    foreign: Mapping[str, tuple[str, ...]]
    notes: Mapping[str, tuple[str, ...]]
    digest: str = field(default='')


def load(path: Path) -> Words:
    """Read a words file.

    Raises:
        WordsError: one line that says what is wrong and what would be right.
    """
    if not path.is_file():
        raise WordsError(f'{path} is missing; want a file such as config/planner_words.yaml')
    try:
        raw = yaml.safe_load(path.read_text('utf-8'))
    except yaml.YAMLError as error:
        raise WordsError(f'{path} is not YAML: {" ".join(str(error).split())}') from None
    try:
        skills = {text: _skill(text, entry) for text, entry in raw['skills'].items()}
        scenes = tuple(tuple(scene) for scene in raw['scenes'])
        loose = tuple(
            (tuple(w for p in entry['say'] for w in readings(p)), tuple(entry['skills']))
            for entry in raw.get('loose', ())
        )
        akin = tuple(tuple(group) for group in raw.get('akin', ()))
        notes = {
            kind: tuple(text for pattern in raw['notes'][kind] for text in readings(pattern))
            for kind in ('calm', 'warning', 'stop')
        }
        foreign = {kind: tuple(raw['foreign'][kind]) for kind in ('verbs', 'things', 'whole')}
    except (KeyError, TypeError, AttributeError) as error:
        raise WordsError(
            f'{path} lacks {error}; want skills with thing and say, and foreign with verbs, '
            'things and whole'
        ) from None
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    unknown = {name for scene in scenes for name in scene} - set(skills)
    if unknown:
        raise WordsError(f'{path}: scenes name {sorted(unknown)}; want them among the skills')
    return Words(skills, scenes, loose, akin, foreign, notes, digest)


def _skill(text: str, entry: Any) -> Skill:
    found = dict.fromkeys(w for pattern in entry['say'] for w in readings(pattern))
    name = next((way for way in found if plain(way) == text), text)
    found.pop(name, None)
    named = entry.get('held_out', ())
    away = [way for way in found if unseen(way) or plain(way) in named]
    kept = [way for way in found if way not in set(away)]
    written = {plain(way) for way in away}
    return Skill(
        text, entry['thing'], (name, *kept), (*away, *(w for w in named if w not in written))
    )


def readings(pattern: str) -> list[str]:
    """Return every reading of a pattern with its choices, innermost first."""
    match = _CHOICE.search(pattern)
    if match is None:
        return [' '.join(pattern.split()).replace(' }', '}')]
    parts = match[1].split('|')
    texts = (pattern[: match.start()] + part + pattern[match.end() :] for part in parts)
    return list(dict.fromkeys(itertools.chain.from_iterable(map(readings, texts))))


def unseen(text: str, share: int = 7) -> bool:
    """Return whether a text belongs to the part that is never trained: one in `share`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], 'big') % share == 0


def plain(way: str) -> str:
    """Return a way without the braces around its thing."""
    return way.replace('{', '').replace('}', '')


def with_pronoun(way: str) -> str:
    """Return a way with "it" for its thing; the way itself where that would not be English."""
    if ' it' in plain(way) or 'its' in way:
        return plain(way)
    return re.sub(r'\{[^}]*\}', 'it', way, count=1)


def gerund(text: str) -> str:
    """Return "opening the drawer" for "open the drawer"."""
    return _inflect(text, 0)


def participle(text: str) -> str:
    """Return "opened the drawer" for "open the drawer"."""
    return _inflect(text, 1)


def _inflect(text: str, form: int) -> str:
    words = text.split(' ')
    for index, word in enumerate(words):
        if index == 0 or (words[index - 1] == 'and' and word in _VERBS):
            words[index] = _form(word, form)
    return ' '.join(words)


# Verbs that may follow an "and" inside one way of asking.
_VERBS = frozenset(
    re.findall(
        r'\w+',
        'press push hit put place slip drop dunk lift raise take bring carry hold stick insert '
        'drive strike knock pull drag draw set lay shut close cover reach touch move slide shove '
        'bypass avoid',
    )
)


def _form(word: str, form: int) -> str:
    verb = word.rstrip(SAID)
    if verb in _IRREGULAR:
        return _IRREGULAR[verb][form] + word[len(verb) :]
    stem = verb[:-1] if verb.endswith('e') and not verb.endswith('ee') else verb
    return stem + ('ing', 'ed')[form] + word[len(verb) :]
