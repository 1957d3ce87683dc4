"""Words of the planner: every scene is covered, and what is held out is never trained."""

from __future__ import annotations

import dataclasses
import importlib
import re
from functools import lru_cache
from pathlib import Path
from random import Random

import pytest
from planner_oracle import Oracle

from flashrt_policies.planner_lm.situation import CANNOT, FINISHED, Situation
from flashrt_policies.planner_lm.training import blocks, instructions, robots
from flashrt_policies.planner_lm.training.examples import DECISIONS, Example, Examples
from flashrt_policies.planner_lm.training.marks import CLASSES, marks, meant
from flashrt_policies.planner_lm.training.words import (
    Words,
    WordsError,
    gerund,
    load,
    participle,
    plain,
    readings,
    unseen,
    with_pronoun,
)

FILE = Path(__file__).parents[2] / 'config' / 'planner_words.yaml'


@lru_cache
def read(file: Path) -> Oracle:
    """Return a reader of prompts that knows a words file; made once."""
    return Oracle(load(file))


@pytest.fixture(scope='module')
def words() -> Words:
    """Return the shipped words."""
    return load(FILE)


def test_every_scene_of_the_simulator_is_covered(words: Words) -> None:
    """The simulator's subgoals are the planner's skills, and scenes of several are its scenes."""
    from flashrt_sim.envs.registration import ENVIRONMENTS

    scenes = set()
    for where in ENVIRONMENTS.values():
        module, _, name = where.partition(':')
        scenes.add(tuple(getattr(importlib.import_module(module), name).SUBGOALS))
    assert {name for scene in scenes for name in scene} == set(words.skills)
    assert {scene for scene in scenes if len(scene) > 1} == set(words.scenes)


def test_wordings_that_no_policy_is_trained_on_are_held_out(words: Words) -> None:
    """What the simulator holds out is never a trained way, and is among the held-out ones."""
    from flashrt_sim.envs.fifty import texts

    for entry in texts().values():
        skill = words.skills[entry['text']]
        held_out = set(map(plain, skill.held_out))
        assert set(entry['held_out']) <= held_out
        assert not set(entry['held_out']) & set(map(plain, skill.ways))


def test_no_way_means_two_skills(words: Words) -> None:
    """Every way to ask, trained or not, names one skill."""
    owner: dict[str, str] = {}
    for skill in words.skills.values():
        for way in map(plain, (*skill.ways, *skill.held_out)):
            assert owner.setdefault(way, skill.text) == skill.text, way


def split(held_out: bool) -> list[str]:
    """Return the building blocks of one split."""
    tables = [getattr(blocks, name) for name in dir(blocks) if name.isupper()]
    entries = [entry for table in tables for entry in table if isinstance(entry, str)]
    trained, marked = blocks.parts(tuple(entries))
    return marked if held_out else trained


def test_held_out_blocks_are_no_trained_ones() -> None:
    """No block is in both splits; each held-out one is made of words that trained ones have."""
    trained, away = split(held_out=False), split(held_out=True)
    assert away
    assert not set(trained) & set(away)
    known = set(re.findall(r"[a-z']+", ' '.join(trained)))
    assert not set(re.findall(r"[a-z']+", ' '.join(away))) - known


def test_training_never_meets_a_held_out_way(words: Words) -> None:
    """Steps drawn for training use trained ways alone; for measuring, held-out ones too."""
    seed = 20261130
    print('seed', seed)
    for held_out in (False, True):
        composer = instructions.Composer(words, held_out)
        rng, met = Random(seed), 0
        for _ in range(300):
            skill = rng.choice(list(words.skills.values()))
            met += composer.way(rng, skill) in skill.held_out
        assert (met > 0) == held_out


def test_an_example_follows_from_its_number(words: Words) -> None:
    """The same number gives the same example; another split or seed gives another."""
    one, same = Examples(words, 0), Examples(words, 0)
    assert [one[i] for i in range(5)] == [same[i] for i in range(5)]
    assert Examples(words, 1)[0] != one[0]
    assert Examples(words, 0, held_out=True)[0] != one[0]


def answered(example: Example) -> dict[str, str]:
    """Return the right options by question."""
    pairs = zip(example.situation.questions, example.answers, strict=True)
    return dict(zip(DECISIONS, (q.options[a] for q, a in pairs), strict=True))


@pytest.mark.parametrize('held_out', [False, True])
def test_the_answers_follow_from_the_text_alone(words: Words, held_out: bool) -> None:
    """A reader of the prompt, by rule, finds every right answer; of all kinds there are some."""
    oracle, examples = read(FILE), Examples(words, 20261201, held_out)
    seen = set()
    for index in range(600):
        example = examples[index]
        right = answered(example)
        assert oracle.answers(example.situation.text) == right, example.situation.text
        seen.add(right['next'] if right['next'] in (FINISHED, CANNOT) else 'step')
        assert not (right['stop'] == right['safe'] == 'yes'), 'what must stop is not safe'
    assert seen == {'step', FINISHED, CANNOT}


def test_a_changed_word_changes_the_answers(words: Words) -> None:
    """Negative control of the reader: another letter, number or note, and it answers otherwise."""
    skills = ('open the drawer', 'close the drawer')
    situation = Situation(skills, 'open the drawer, then close it', (), skills[0], (), (), 1.0, 40)
    oracle = read(FILE)
    assert oracle.answers(situation.text) == {
        'next': 'A', 'done': 'no', 'safe': 'yes', 'stop': 'no',
    }  # fmt: skip
    for change, key, answer in (
        ({'true': skills[:1]}, 'done', 'yes'),
        ({'true': skills[:1]}, 'next', 'B'),
        ({'task': 'open the drawer, then paint the fridge'}, 'next', CANNOT),
        ({'task': 'close the drawer after opening it', 'now': ''}, 'next', 'A'),
        ({'age_ms': 250}, 'safe', 'no'),
        ({'note': 'please stop the arm'}, 'stop', 'yes'),
    ):
        other = dataclasses.replace(situation, **change)
        assert oracle.answers(other.text)[key] == answer, change


def test_marks_stand_where_a_thing_is_settled(words: Words) -> None:
    """A phrase's skill is marked behind it, numbers by their limits, a note by its kind."""
    told = instructions.Instruction(
        'close the drawer after opening it, please', ('open the drawer', 'close the drawer'), True,
        ((16, 'close the drawer'), (33, 'open the drawer')),
    )  # fmt: skip
    skills = ('open the drawer', 'close the drawer')
    facts = robots.Facts((0.6, 0.5, 0.1), 1.0, 300, 7, '', 'fire', '', 'stop', False, True)
    situation = Situation(
        skills, told.text, (), skills[0], skills[:1], facts.hand, 1.0, 300, 7, '', 'fire'
    )
    text, found = situation.text, marks(situation, told, facts)
    assert [(text[:at][-5:], CLASSES[name]) for at, name in sorted(found.items())] == [
        ('r aft', 'B'), ('t, pl', 'A'), ('rue: ', 'reached'), (' 0.60', 'outside'),
        (' 0.50', 'inside'), (' 0.10', 'inside'), ('e 300', 'stale'), ('sed 7', 'many'),
        ('d: no', 'free'), (': fir', 'stop'),
    ]  # fmt: skip
    known = meant(situation, told)
    assert [(text[:at][-5:], name) for at, name in sorted(known.items())] == [
        ('rawer', skills[0]), ('rawer', skills[1]), ('r aft', skills[1]), ('t, pl', skills[0]),
    ]  # fmt: skip


def test_verbs_and_pronouns() -> None:
    """Forms that instructions need, irregular and behind an "and"."""
    assert gerund('put the lid on the box') == 'putting the lid on the box'
    assert gerund('bypass the wall and press the button') == (
        'bypassing the wall and pressing the button'
    )
    assert participle('slide the drawer out') == 'slid the drawer out'
    assert with_pronoun('pull {the drawer} open') == 'pull it open'
    assert with_pronoun('close {the box} with its lid') == 'close the box with its lid'
    assert readings('(a|b (c|)) d') == ['a d', 'b c d', 'b d']
    assert 0.1 < sum(unseen(str(i)) for i in range(1000)) / 1000 < 0.2


def test_a_damaged_words_file_is_one_line(tmp_path: Path) -> None:
    """Missing file, no YAML, missing keys, scenes of unknown skills."""
    path = tmp_path / 'words.yaml'
    for text, said in (
        (None, 'is missing'),
        ('skills: [', 'is not YAML'),
        ('skills: {}', 'lacks'),
        (FILE.read_text().replace('[open the drawer, close', '[open the box, close'), 'scenes'),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(WordsError, match=said) as caught:
            load(path)
        assert '\n' not in str(caught.value)
