"""Promise: `flashrt improve` chooses by a report, goes on after any stop, and judges honestly."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_policies.flow_vla.advantage import BAD, GOOD
from flashrt_policies.recipes import RecipeError, load
from flashrt_policies.training import value_function
from flashrt_ros import cli
from flashrt_sim.data.dataset import Episode, write_meta
from flashrt_sim.data.demonstrations import Order, describe
from flashrt_sim.data.recording import describe as recorded
from flashrt_sim.data.recording import slug
from flashrt_sim.episode import LiveEpisode
from flashrt_sim.errors import SimulationError
from flashrt_sim.improve import loop, measure
from flashrt_sim.improve.choose import choose
from flashrt_sim.improve.recipe import Improvement
from flashrt_sim.improve.report import change
from flashrt_sim.rollout.evaluation import Result, Task
from flashrt_sim.rollout.run import Deployment, Outputs
from flashrt_sim.seeds import evaluation_seed
from flashrt_sim.tree import judges

ROOT = Path(__file__).parents[2]
TOY = """
rounds: 2
collect: {episodes: 2, limit: 9}
demonstrated: {tasks: 1, scenes: 0}
value: {steps: 3, folds: 2, batch: 8, width: 8}
evaluate: {episodes: 1, others: 1, unsaid: 1, limit: 9}
train: {steps: 2, batch: 4, warmup: 1, save_every: 1, validation: 0.0}
loss: {first: 0, last: 14}
"""


def report(path: Path, **rates: float) -> Path:
    """Write what a rollout says of some tasks; `-` in their names as `_`."""
    rows = [
        {'environment': f'flashrt/MT50-{name.replace("_", "-")}-v0', 'rate': rate}
        for name, rate in rates.items()
    ]
    path.write_text(json.dumps({'summary': rows}))
    return path


def names(tasks: list[Any]) -> list[str]:
    """Return what tasks are called for short."""
    return [task.environment.removeprefix('flashrt/MT50-').removesuffix('-v0') for task in tasks]


def test_the_worst_are_chosen_by_the_report(tmp_path: Path) -> None:
    """By success, then by name; the rest are the others; the shipped report names five."""
    path = report(tmp_path / 'r.json', soccer=0.5, reach=0.9, door_open=0.5, push=0.1)
    tasks, others = choose('worst:2', path, 70)
    assert names(tasks) == ['push', 'door-open'] and tasks[0].limit == 70
    assert names(others) == ['reach', 'soccer']
    assert names(choose('reach,soccer', path, 70)[0]) == ['soccer', 'reach']
    tasks, others = choose('worst:5', ROOT / 'docs' / 'results' / 'mt50.json', 500)
    worst = ['handle-pull-side', 'pick-out-of-hole', 'soccer', 'lever-pull', 'basketball']
    assert names(tasks) == worst and len(others) == 45
    # Planted: had the worst one been the best, it would not be among them.
    path = report(tmp_path / 'r.json', soccer=0.5, reach=0.9, door_open=0.5, push=1.0)
    assert names(choose('worst:2', path, 70)[0]) == ['door-open', 'soccer']


@pytest.mark.parametrize(
    ('tasks', 'text', 'reason'),
    [
        ('worst:3', None, 'want worst:1 to worst:2'),
        ('worst:0', None, 'want worst:1'),
        ('soccr', None, "did you mean 'soccer'"),
        ('soccer', '{}', 'tells no success'),
        ('soccer', '[', 'tells no success'),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    tasks: str, text: str | None, reason: str, tmp_path: Path
) -> None:
    """One line says what would be right."""
    path = report(tmp_path / 'r.json', soccer=0.5, reach=0.9)
    if text is not None:
        path.write_text(text)
    with pytest.raises(SimulationError, match=reason) as caught:
        choose(tasks, path, 500)
    assert '\n' not in str(caught.value)


def run(out: Path, policy: Path, toy: str, **rates: float) -> int:
    """Run a toy improvement by its command."""
    out.parent.mkdir(exist_ok=True)
    (out.parent / 'toy.yaml').write_text(toy)
    listed = report(out.parent / 'r.json', **rates)
    return cli.main([
        'improve', '--policy', str(policy), '--tasks', 'worst:1', '--report', str(listed),
        '--recipe', str(out.parent / 'toy.yaml'), '--out', str(out), '--workers', '1',
        '--device', 'cpu',
    ])  # fmt: skip


def test_the_command_improves_in_a_real_scene(
    tiny_policy: Path, tmp_path: Path, capsys: Any
) -> None:
    """Demonstrations, episodes, values, labels, fine-tuning, evaluation: from one command."""
    toy = TOY.replace('rounds: 2', 'rounds: 1').replace('unsaid: 1', 'unsaid: 0')
    assert run(tmp_path / 'out', tiny_policy, toy, drawer_open=0.5) == 0
    assert 'all of these' in capsys.readouterr().out
    found = json.loads((tmp_path / 'out' / 'improvement.json').read_text())
    assert found['rounds'][0]['collected'][0]['episodes'] == 2
    assert found['rounds'][0]['pictures'] == 10  # two episodes of nine ticks, every second one
    assert found['after']['episodes'] == 1 and found['others']['before'] is None
    assert (tmp_path / 'out' / 'improvement.png').stat().st_size > 5000
    # What it thinks of its own end of an episode is within what it was fitted to.
    judge = judges.load(str(tmp_path / 'out' / 'round-0' / 'value'))
    judges.require_fits(judge, ['flashrt/MT50-drawer-open-v0'])
    with pytest.raises(SimulationError, match='not to flashrt/MT50-reach-v0'):
        judges.require_fits(judge, ['flashrt/MT50-reach-v0'])
    live = LiveEpisode.open('flashrt/MT50-drawer-open-v0', tiny_policy, delay=0)
    live.start(3, 'open the drawer')
    assert -2 <= judge(live, [live.tick()]) <= 0
    live.close()


def made_up(seed: int, ticks: int) -> Episode:
    """Return an episode that a number decides."""
    draw = np.random.default_rng(seed)
    seen = np.arange(0, ticks, 2, dtype=np.int32)
    pixels = draw.integers(0, 256, (2, len(seen), 96, 96, 3), np.uint8)
    action = draw.uniform(-1, 1, (ticks, 4)).astype(np.float32)
    flags = np.zeros(ticks, bool)
    end = flags.copy()
    end[-1] = True
    return Episode(
        dict(zip(('front', 'wrist'), pixels, strict=True)),
        draw.normal(size=(ticks, 4)).astype(np.float32), action, action,
        np.zeros(ticks, np.int8), flags, flags, end, seen,
    )  # fmt: skip


class Killed(BaseException):
    """What a kill does to the process, without ending this one."""


class World:
    """Stands in for the simulator: episodes that their seeds decide; may die in the midst.

    Attributes:
        left: pieces of work until it dies; None: it does not.
        played: episodes so far.
    """

    left: int | None = None
    played = 0

    def work(self) -> None:
        """Do a piece of work, or die."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def generate_all(
        self, orders: Sequence[Order], *, workers: int, seed: int
    ) -> Iterator[tuple[str, int, int]]:
        """As the genuine one."""
        for order in orders:
            write_meta(order.folder, describe(order.environment, seed, order.recipe))
            for number in range(order.episodes):
                path = order.folder / f'episode-{number:06d}.npz'
                there = path.exists()
                if not there:
                    made_up(number, 12).save(path)
                yield order.environment, number, 12
                if not there:
                    self.work()

    def roll_out(
        self, deployment: Deployment, tasks: Sequence[Task], episodes: int, *, seed: int,
        outputs: Outputs, done: Collection[tuple[str, int]], **_: Any,
    ) -> Iterator[Result]:  # fmt: skip
        """As the genuine one."""
        for task in tasks:
            for number in range(episodes):
                if (task.key, number) in done:
                    continue
                drawn = evaluation_seed(seed, number)
                ticks = 5 + drawn % 4
                if outputs.record is not None:
                    folder = outputs.record / slug(task)
                    write_meta(folder, recorded(task, 2, dataclasses.asdict(deployment)))
                    made_up(drawn, ticks).save(folder / f'episode-{number:06d}.npz')
                    self.work()
                self.played += 1
                yield Result(
                    task.environment, task.name, task.start, number, drawn, drawn % 2 == 0, ticks,
                    (), 1, 0, 0,
                )  # fmt: skip
                self.work()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Put it in the simulator's place."""
    made = World()
    monkeypatch.setattr(loop, 'generate_all', made.generate_all)
    monkeypatch.setattr(measure, 'roll_out', made.roll_out)
    genuine = loop.train

    def train(*args: Any, **kwargs: Any) -> Any:
        if made.left is not None:
            genuine(*args, **kwargs, until=1)
        made.work()
        return genuine(*args, **(kwargs | {'resume': (args[4] / 'state.safetensors').is_file()}))

    monkeypatch.setattr(loop, 'train', train)
    return made


def test_a_stop_anywhere_costs_nothing(tiny_policy: Path, tmp_path: Path, world: World) -> None:
    """Killed after every piece of work and started again, it ends as one that was never stopped.

    No episode is played twice but the one in which it died, and what was finished stays.
    """
    rates, toy = {'drawer_open': 0.5, 'reach': 0.9}, TOY.replace('rounds: 2', 'rounds: 1')
    whole, parts = tmp_path / 'whole' / 'out', tmp_path / 'parts' / 'out'
    assert run(whole, tiny_policy, toy, **rates) == 0
    needed, world.played = world.played, 0
    stops, code = 0, None
    while code is None and stops < 20:
        world.left = 1
        try:
            code = run(parts, tiny_policy, toy, **rates)
        except Killed:
            stops += 1
    assert code == 0 and 4 < stops < 20 and needed <= world.played <= needed + stops
    for name in ('improvement.json', 'round-0/collected.json', 'round-0/others.json'):
        first, second = ((folder / name).read_text() for folder in (whole, parts))
        assert json.loads(first.replace(str(whole), '')) == json.loads(
            second.replace(str(parts), '')
        )
    for name in ('round-0/checkpoint', 'round-0/unsaid', 'round-0/value', 'round-0/value/policy'):
        for file in (each for each in (whole / name).iterdir() if each.is_file()):
            assert file.read_bytes() == (parts / name / file.name).read_bytes()
    with np.load(whole / 'round-0/judged.npz') as a, np.load(parts / 'round-0/judged.npz') as b:
        assert all(np.array_equal(a[key], b[key]) for key in a.files)


def test_rounds_learn_from_all_and_are_judged_by_others(
    tiny_policy: Path, tmp_path: Path, world: World, capsys: Any
) -> None:
    """Later rounds learn from earlier ones too; no episode is learned from and judged by.

    A second round may follow when the first one is over.
    """
    out, one = tmp_path / 'out', TOY.replace('rounds: 2', 'rounds: 1')
    assert run(out, tiny_policy, one, drawer_open=0.5, reach=0.9) == 0
    before = world.played
    assert run(out, tiny_policy, TOY, drawer_open=0.5, reach=0.9) == 0
    assert world.played == before + 5  # two collected, one judged, one unsaid, one of the others
    found = json.loads((out / 'improvement.json').read_text())
    first, second = found['rounds']
    assert first['collected'][0]['episodes'] == 2 and second['pictures'] > first['pictures']
    assert 0 < second['good'] < 0.7 and found['others']['after']['episodes'] == 1
    learned = [
        each.seed for n in (0, 1) for each in measure.read(out / f'round-{n}' / 'collected.json')
    ]
    measured = {each.seed for each in measure.read(out / 'before.json')}
    assert len(set(learned)) == 4 and not set(learned) & measured
    with np.load(out / 'round-1' / 'judged.npz') as file:
        assert set(file['indicator'].tolist()) == {BAD, GOOD}
    fitted = [value_function.load(out / f'round-{n}' / 'value').fitted for n in (0, 1)]
    assert [each.episodes for each in fitted] == [2, 4] and fitted[0].limit == 9
    assert fitted[0].tasks == ('flashrt/MT50-drawer-open-v0',)
    # A value function that is gone is fitted again, and nothing that was learned from changes.
    value, labels = out / 'round-1' / 'value', out / 'round-1' / 'judged.npz'
    files = {file.name: file.read_bytes() for file in value.glob('*.*')}
    before, played = labels.read_bytes(), world.played
    shutil.rmtree(value)
    assert run(out, tiny_policy, TOY, drawer_open=0.5, reach=0.9) == 0
    again = {file.name: file.read_bytes() for file in value.glob('*.*')}
    assert again == files and len(files) == 2
    assert labels.read_bytes() == before and world.played == played
    # Another recipe must not go on in this folder.
    other = TOY.replace('steps: 2', 'steps: 3')
    capsys.readouterr()
    assert run(out, tiny_policy, other, drawer_open=0.5, reach=0.9) == 2
    assert 'other recipe' in capsys.readouterr().err


def result(seed: int, success: bool) -> Result:
    """Return an episode."""
    return Result('e', 't', 'standard', seed, seed, success, 9, (), 1, 0, 0)


def test_a_change_is_counted_on_the_same_episodes() -> None:
    """Three won and one lost of ten are a gain of 0.2; episodes of only one side do not count."""
    before = [result(seed, seed in (0, 5, 6)) for seed in range(12)]
    after = [result(seed, seed in (1, 2, 3, 5, 6)) for seed in range(10)]
    found = change(before, after)
    assert found is not None
    assert (found['won'], found['lost'], found['episodes']) == (3, 1, 10)
    assert found['gain'] == pytest.approx(0.2) and found['low'] < 0 < found['high']
    assert change(before, []) is None


def test_recipes_are_checked() -> None:
    """The shipped one is whole; numbers that make no sense are refused by name."""
    recipe = load(ROOT / 'config' / 'improve_mt50.yaml', Improvement)
    assert recipe.evaluate.seed != 0  # the report that chooses the tasks has seed 0
    for part, value, reason in (
        ('relabel', {'good': 1.0}, 'relabel.good'),
        ('relabel', {'trace': 1.5}, 'relabel.trace'),
        ('demonstrated', {'share': 0.0}, 'demonstrated.share'),
        ('evaluate', {'unsaid': 10_000}, 'evaluate.unsaid'),
        ('collect', {'episodes': 0}, 'collect.episodes'),
    ):
        changed = dataclasses.replace(getattr(recipe, part), **value)
        with pytest.raises(RecipeError, match=reason):
            dataclasses.replace(recipe, **{part: changed})
