"""The demo's own parts: its folder, its figures and its verdict, and what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Time

from flashrt_ros import cli
from flashrt_ros.commands.demo import offered, understand
from flashrt_ros.nodes.demo import figures
from flashrt_ros.nodes.demo.output import OutputError, run_folder
from flashrt_ros.nodes.demo.story import Told
from flashrt_ros.nodes.demo.timeline import draw
from flashrt_ros.nodes.operator import Record

PLAN = ['open the drawer', 'close the drawer']
END, STOP = 60, 40  # ticks of an episode, tick of the interrupt


def _stamp(seconds: float) -> SimpleNamespace:
    return SimpleNamespace(stamp=Time(sec=int(seconds), nanosec=int(seconds % 1 * 1e9)))


def _state(at: float, episode: int, epoch: int, tick: int, applied: int, **more: Any) -> Any:
    values = {
        'header': _stamp(at), 'episode': episode, 'epoch': epoch, 'tick': tick,
        'applied_epoch': applied, 'applied_tick': tick - 1, 'held': tick <= 4, 'hold_reason': '',
        'missed_ticks': 0, 'proprioception': [0.1, 0.01 * tick, 0.2, 1.0],
        'simulator_state': bytes([tick]), **more,
    }  # fmt: skip
    return SimpleNamespace(**values)


def _sent(at: float, episode: int, epoch: int, tick: int) -> Any:
    return SimpleNamespace(
        header=_stamp(at), episode=episode, epoch=epoch, tick=tick, held=tick < 4, reason='',
        generation=1 if tick < 25 else 2, action=np.full(4, tick, np.float32),
    )  # fmt: skip


def told() -> Told:
    """Return a demo that went as it should, as if it had been recorded."""
    record, at = Record(), 100.0
    for episode, epoch in ((1, 1), (2, 5)):
        record.episodes += [
            (
                at - 0.1,
                SimpleNamespace(episode=episode, epoch=epoch, state='resetting', outcome=''),
            ),
            (at, SimpleNamespace(episode=episode, epoch=epoch, state='running', outcome='')),
        ]
        for tick in range(END):
            now = epoch
            if episode == 1 and tick > STOP:
                now = 2 if tick < STOP + 5 else 3
            state = _state(at, episode, now, tick, now)
            record.states.append((at, state))
            record.sent.append((at + 0.01, _sent(at + 0.01, episode, now, tick)))
            if tick % 8 == 0:
                chunk = SimpleNamespace(
                    epoch=now, tick=tick, due_tick=tick + 4, horizon=16, generation=1,
                    inference_ms=30.0 + tick, late=False,
                )  # fmt: skip
                record.chunks.append((at, chunk))
            at += 0.05
        for index, text in enumerate(PLAN):
            subgoal = SimpleNamespace(
                epoch=now, text=text, index=index, status='done', generation=index + 1
            )
            record.subgoals.append((at, subgoal))
        idle = SimpleNamespace(episode=episode, epoch=now + 1, state='idle', outcome='done')
        record.episodes.append((at, idle))
    zero = 100.0 + STOP * 0.05
    return Told(
        record, PLAN, 'open the drawer, then close it', [1, 5], ['done', 'done'],
        interrupted_at=zero, acknowledged_at=zero + 0.06,
        acknowledged_ns=round((zero + 0.06) * 1e9), interrupt_epoch=2, ack_ticks=0,
        resumed_at=zero + 0.3, reentry_ms=250.0, reset_at=104.0, reset_ms=20.0,
    )  # fmt: skip


def test_a_good_demo_passes() -> None:
    """All keys of the summary are there, and nothing is found wrong."""
    summary = figures.summarise(told())
    assert figures.verdict(summary) == []
    assert {
        'control_hz', 'ticks', 'missed_ticks', 'inference_ms', 'subgoals', 'interrupt',
        'reentry_ms', 'reset_ms', 'replay',
    } <= set(summary)  # fmt: skip
    assert summary['control_hz'] == pytest.approx(20.0, rel=1e-3)
    assert summary['replay'] == {
        'compared_ticks': STOP, 'identical': True, 'first_difference': None,
    }  # fmt: skip
    assert summary['subgoals'] == [{'text': t, 'success': True} for t in PLAN]


def _other_action(it: Told) -> None:
    it.record.sent[END + 7][1].action[2] += 1e-7 + 1


def _other_world(it: Told) -> None:
    it.record.states[END + 9][1].simulator_state = b'other'


def _no_second_subgoal(it: Told) -> None:
    it.record.subgoals = [s for s in it.record.subgoals if s[1].index == 0]


def _old_action(it: Told) -> None:
    assert it.acknowledged_at is not None
    at = it.acknowledged_at + 0.2
    it.record.sent.append((at, _sent(at, 1, 1, STOP)))


def _slow(it: Told) -> None:
    it.ack_ticks = 3


def _never(it: Told) -> None:
    it.ack_ticks = it.acknowledged_at = it.acknowledged_ns = None


@pytest.mark.parametrize(
    ('plant', 'words'),
    [
        (_other_action, 'differs from episode 1 at tick 7'),
        (_other_world, 'differs from episode 1 at tick 9'),
        (_no_second_subgoal, 'did not reach "close the drawer"'),
        (_old_action, '1 old actions after'),
        (_slow, 'took 3 ticks'),
        (_never, 'could not be compared'),
    ],
)
def test_each_fault_is_found(plant: Any, words: str) -> None:
    """A planted fault makes the verdict fail, with a sentence that names it."""
    it = copy.deepcopy(told())
    plant(it)
    assert any(words in sentence for sentence in figures.verdict(figures.summarise(it)))


def test_the_timeline_is_drawn(tmp_path: Path) -> None:
    """The picture is a PNG of some size, also for a demo that failed early."""
    it = told()
    draw(it, figures.summarise(it), tmp_path / 'good.png')
    _never(it)
    it.record.chunks.clear()
    it.epochs = [1]
    draw(it, figures.summarise(it), tmp_path / 'bad.png')
    for name in ('good.png', 'bad.png'):
        data = (tmp_path / name).read_bytes()
        assert data.startswith(b'\x89PNG')
        assert len(data) > 20_000


def test_a_run_replaces_the_last_only_when_complete(tmp_path: Path) -> None:
    """After an error the old run is as it was; after success only the new one is there."""
    out = tmp_path / 'runs' / 'latest'
    with run_folder(out) as folder:
        (folder / 'summary.json').write_text('one')
    with pytest.raises(RuntimeError), run_folder(out) as folder:
        (folder / 'summary.json').write_text('two')
        raise RuntimeError
    assert (out / 'summary.json').read_text() == 'one'
    with run_folder(out) as folder:
        (folder / 'summary.json').write_text('three')
    assert (out / 'summary.json').read_text() == 'three'
    assert [p.name for p in out.parent.iterdir()] == ['latest']


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    """Something else in the way is an error, and stays."""
    (tmp_path / 'thesis.tex').write_text('years of work')
    with pytest.raises(OutputError, match='that is no run'), run_folder(tmp_path):
        pass
    with pytest.raises(OutputError, match='is a file'), run_folder(tmp_path / 'thesis.tex'):
        pass
    assert (tmp_path / 'thesis.tex').read_text() == 'years of work'


@pytest.mark.parametrize(
    ('words', 'sentence'),
    [
        (['--policy', '/no/weights'], "policy '/no/weights' is no checkpoint folder"),
        (['--seed', '-3'], '--seed is -3; it must be from 0'),
        (['--instruction', 'make coffee'], '"make coffee" cannot be done here'),
        (
            ['--planner', 'rules', '--instruction', 'make coffee'],
            '"make coffee" is no subgoal of this policy',
        ),
        (['--planner', '/no/model'], '/no/model is neither a checkpoint folder nor'),
        (['--instruction', 'open the drawer'], 'the demo interrupts the second subgoal'),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    """Exit code 2, one line on standard error, and nothing was started or written."""
    out = tmp_path / 'out'
    code = cli.main(['demo', '--out', str(out), *words])
    told_of = capsys.readouterr().err
    if 'drawer' in told_of and 'config.json' in told_of and sentence not in told_of:
        pytest.skip('the shipped weights are not here')
    assert code == 2
    assert sentence in told_of
    assert told_of.count('\n') == 1
    assert not out.exists()


def test_a_policy_of_fifty_skills_is_asked_for_those_of_the_scene() -> None:
    """The planner chooses from what the drawer's scene can do, whatever else the policy can."""
    assert offered('mt50') == offered('drawer') == ['open the drawer', 'close the drawer']
    assert understand('close the drawer and open it', 'mt50', 'shipped') == [
        'close the drawer', 'open the drawer',
    ]  # fmt: skip


def test_a_busy_machine_is_told_from_a_wrong_result() -> None:
    """Only missed ticks and late chunks are a reason to try again."""
    it = copy.deepcopy(told())
    assert figures.disturbed(it) == ''
    it.record.chunks[3][1].late = True
    it.record.states[-1][1].missed_ticks = 2
    assert figures.disturbed(it) == '2 ticks missed, 1 chunks late'
