"""Answers the planner's questions from the text of a situation alone, by rule.

It knows every way to ask and every block that instructions are made of, and reads nothing but the
prompt. Where it cannot find the right answer, nothing that reads the prompt could.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flashrt_policies.planner_lm import situation as rules
from flashrt_policies.planner_lm.situation import CANNOT, FINISHED
from flashrt_policies.planner_lm.training import blocks, robots
from flashrt_policies.planner_lm.training.words import (
    Words,
    gerund,
    participle,
    plain,
    with_pronoun,
)

HOLE = '<>'  # stands for a phrase
STRANGE = 'strange-thing'  # for what no scene has


class Oracle:
    """Reads prompts.

    Args:
        words: every way to ask, and every note.
    """

    def __init__(self, words: Words) -> None:
        self.words = words
        self.phrases: dict[str, dict[str, None]] = {}  # phrase -> what it may mean
        self.whole: set[str] = set()  # those that name their thing
        for skill in words.skills.values():
            for way in (*skill.ways, *skill.held_out):
                self.whole.update(self._know(plain(way), skill.text))
                self._know(with_pronoun(way), skill.text)
        for ways, skills in words.loose:
            for way in ways:
                for form in (plain(way), with_pronoun(way)):
                    for text in skills:
                        self._know(form, text)
        for verb in words.foreign['verbs']:
            self._know(f'{verb} the {STRANGE}', '')
        for text in words.foreign['whole']:
            self._know(text, '')
        for way in [w for s in words.skills.values() for w in (*s.ways, *s.held_out) if '{' in w]:
            head, _, rest = way.partition('{')
            self._know(f'{head}the {STRANGE}{rest.partition("}")[2]}', '')
        self.strange = re.compile(rf'\b({"|".join(words.foreign["things"])})\b')
        self.longest = max(len(phrase.split()) for phrase in self.phrases)
        pairs = [entry.lstrip('!') for entry in blocks.PAIRS]
        self.pairs = {re.sub(r'\{..\}', HOLE, p): p.index('2}') < p.index('1}') for p in pairs}
        nots = (*blocks.NOTS_BEFORE, *blocks.NOTS_AFTER, *blocks.NOTS_ALONE)
        self.nots = {re.split(r'\{g?x\}', entry.lstrip('!'))[0].strip(' ,.;') for entry in nots}
        twice = [entry.lstrip('!').replace('{b}', '') for entry in blocks.TWICE]
        self.twice = re.compile('|'.join(f'^{HOLE}{re.escape(t)}' for t in twice))
        self.notes = {note: kind for kind, notes in words.notes.items() for note in notes}

    def _know(self, phrase: str, skill: str) -> list[str]:
        """Note what a phrase may mean; return it in all its forms."""
        forms = (phrase, gerund(phrase), participle(phrase))
        said = [text.lower() for form in forms for text in (form, form.replace(' the ', ' '))]
        for text in said:
            self.phrases.setdefault(text, {})[skill] = None
        return said

    def answers(self, text: str) -> dict[str, str]:
        """Return what comes next, done, safe and stop as the options that are right."""
        lines = dict(re.split(r':? ', line, maxsplit=1) for line in text.split('\n'))
        listed = [part.split(' ', 1) for part in lines['can'].split('; ')]
        skills = dict(listed)
        letters = {skill: letter for letter, skill in listed}
        done, now, true = (
            [] if lines[k] == 'none' else lines[k].split() for k in ('done', 'now', 'true')
        )
        reached = bool(now) and now[0] in true
        steps = self.steps(lines['task'], letters)
        if steps is None:
            following = CANNOT
        elif now and not reached:
            following = now[0]
        else:
            at = len(done) + reached
            following = letters[steps[at]] if at < len(steps) else FINISHED
        assert set(done) <= set(skills)
        safe, stop = self.robot(lines)
        yes = {True: 'yes', False: 'no'}
        return {'next': following, 'done': yes[reached], 'safe': yes[safe], 'stop': yes[stop]}

    def robot(self, lines: dict[str, str]) -> tuple[bool, bool]:
        """Return whether it is safe, and whether it must stop."""
        numbers = re.fullmatch(r'(.*), grip .*, age (\d+) ms, missed (\d+)', lines['hand'])
        assert numbers is not None
        hand = [] if numbers[1] == 'none' else [float(part) for part in numbers[1].split()]
        outside = any(not a <= v <= b for v, (a, b) in zip(hand, rules.BOX, strict=False))
        held, kind = lines['held'], self.notes.get(lines['note'], 'calm')
        emergency = held.startswith(rules.EMERGENCY)
        fault = held != 'no' and held not in robots._HARMLESS and not emergency
        stop = int(numbers[2]) >= rules.DEAD_MS or emergency or kind == 'stop'
        late = int(numbers[2]) >= rules.STALE_MS or int(numbers[3]) >= rules.MISSED
        return not (stop or late or outside or fault or kind == 'warning'), stop

    def steps(self, task: str, here: dict[str, str]) -> list[str] | None:
        """Return the steps of an instruction; None where it cannot be done."""
        shape, meant = '', []
        thing = ''
        for piece, known in self._pieces(task):
            if not known:
                shape += piece
                continue
            if re.search(r'(' + '|'.join(map(re.escape, self.nots)) + r')[ ,]*$', shape):
                shape += '-'
                thing = next((self._thing(s) for s in known if s), thing)
                continue
            named = [s for s in known if s in here]
            if len(named) > 1:
                named = [s for s in named if self._thing(s) == thing]
            vague = re.search(r'\bit\b', piece) and not thing and not self._whole(piece)
            meant.append(named[0] if len(named) == 1 and not vague else '')
            thing = self._thing(meant[-1]) if meant[-1] else thing
            shape += HOLE
        if '' in meant:
            return None
        if len(meant) == 1 and self.twice.search(shape[shape.index(HOLE) :]):
            return meant * 2
        for pair, turned in self.pairs.items():
            if turned and self._leads(shape, pair):
                return [meant[1], meant[0], *meant[2:]]
        return meant

    def _leads(self, shape: str, pair: str) -> bool:
        """Whether the first two phrases stand as in a pair, and nothing else precedes them."""
        at = shape.find(pair)
        return at >= 0 and HOLE not in shape[:at]

    def _whole(self, piece: str) -> bool:
        """Whether a phrase with "it" in it names its thing besides."""
        return piece in self.whole

    def _thing(self, skill: str) -> str:
        return self.words.skills[skill].thing if skill else ''

    def _pieces(self, task: str) -> Iterator[tuple[str, list[str]]]:
        """Yield the phrases of an instruction and what stands between them, in order."""
        forms = (f(t) for t in self.words.foreign['whole'] for f in (str, gerund, participle))
        whole = any(form in task for form in forms)
        text = task if whole else self.strange.sub(STRANGE, task)
        parts = re.findall(r"[a-z0-9'-]+|[^a-z0-9'-]+", text)
        at = 0
        while at < len(parts):
            for size in range(min(2 * self.longest, len(parts) - at), 0, -1):
                piece = ''.join(parts[at : at + size])
                if piece in self.phrases and parts[at][0].isalnum():
                    yield piece, list(self.phrases[piece])
                    at += size
                    break
            else:
                yield parts[at], []
                at += 1
