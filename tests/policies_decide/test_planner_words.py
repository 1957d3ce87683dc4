"""Words of the planner: every scene is covered, and what is held out is never trained."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from random import Random

import pytest

from flashrt_policies.planner_lm.situation import CANNOT, FINISHED
from flashrt_policies.planner_lm.training import instructions
from flashrt_policies.planner_lm.training.examples import Examples
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


@pytest.fixture(scope='module')
def words() -> Words:
    """Return the shipped words."""
    return load(FILE)


def test_every_scene_of_the_simulator_is_covered(words: Words) -> None:
    """The simulator's subgoals are the planner's skills, and scenes of several are its scenes."""
    from flashrt_sim.registration import ENVIRONMENTS

    scenes = set()
    for where in ENVIRONMENTS.values():
        module, _, name = where.partition(':')
        scenes.add(tuple(getattr(importlib.import_module(module), name).SUBGOALS))
    assert {name for scene in scenes for name in scene} == set(words.skills)
    assert {scene for scene in scenes if len(scene) > 1} == set(words.scenes)


def test_wordings_that_no_policy_is_trained_on_are_held_out(words: Words) -> None:
    """What the simulator holds out is never a trained way, and is among the held-out ones."""
    from flashrt_sim.fifty import texts

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


def blocks(held_out: bool) -> list[str]:
    """Return the building blocks of one split."""
    tables = [getattr(instructions, name) for name in dir(instructions) if name.isupper()]
    entries = [entry for table in tables for entry in table if isinstance(entry, str)]
    marked = [entry[1:] for entry in entries if instructions._marked(entry)]
    return marked if held_out else [e for e in entries if not instructions._marked(e)]


def test_held_out_blocks_are_no_trained_ones() -> None:
    """No block is in both splits; each held-out one is made of words that trained ones have."""
    trained, away = blocks(held_out=False), blocks(held_out=True)
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


def test_answers_follow_from_the_situation(words: Words) -> None:
    """What comes next is a step of the scene, `finished` behind the last, `cannot` without one."""
    examples = Examples(words, 3)
    seen = set()
    for index in range(400):
        example = examples[index]
        right = dict(zip(example.kinds, example.answers, strict=True))
        asked = dict(zip(example.kinds, example.questions, strict=True))
        situation = example.situation
        following = situation.meaning(asked['next'].options[right['next']])
        seen.add(following if following in (FINISHED, CANNOT) else 'step')
        assert (following == CANNOT) == (not example.possible)
        assert (right['done'] == 0) == (situation.now != '' and situation.now in situation.true)
        if situation.now and situation.now not in situation.true:
            assert following == situation.now
        assert not (right['stop'] == 0 and right['safe'] == 0), 'what must stop is not safe'
    assert seen == {'step', FINISHED, CANNOT}


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
