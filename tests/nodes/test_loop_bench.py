"""`flashrt bench loop`: hand-offs are counted right, and rows carry their names and figures."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from flashrt_ros import cli
from flashrt_ros.bench import loop, loop_handoff, loop_system
from flashrt_ros.bench.report import Row
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.errors import FlashrtError


def test_no_hand_off_is_torn_or_lost() -> None:
    """A hundred hand-offs at random phases: each in effect at the next replay, none mixed."""
    found = loop_handoff.run('cpu', 100)
    assert (found.posted, found.torn, found.lost) == (100, 0, 0)
    assert found.replays >= 100


def test_a_lost_hand_off_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every third flip does nothing; then some subgoals come late."""
    real, calls = Mailbox.flip, iter(range(10**9))
    monkeypatch.setattr(Mailbox, 'flip', lambda box: next(calls) % 3 != 0 and real(box))
    assert loop_handoff.run('cpu', 60).lost > 0


def test_a_torn_row_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a post writes half its row; then rows are mixed."""
    real = Mailbox.post

    def half(box: Mailbox, row: np.ndarray, tick: int = -1) -> int:
        row[: len(row) // 2] += 1
        return real(box, row, tick)

    monkeypatch.setattr(Mailbox, 'post', half)
    assert loop_handoff.run('cpu', 20).torn > 0


def test_the_rows_have_their_names() -> None:
    """Row ids are those that reports are compared by; a percentile is one of the samples."""
    lateness = np.linspace(0.0, 10.0, 1001)
    rows = {row.work: row for row in loop.lateness_rows('idle', lateness, 3, [False, True])}
    assert rows['missed ticks idle'].ours == 3
    assert (rows['late chunks idle'].ours, rows['late chunks idle'].spread['runs']) == (1, 2)
    assert rows['lateness p99.9 idle'].ours == pytest.approx(9.99)
    assert rows['lateness max idle'].unit == 'ms'
    found = {'old': 0, 'ack_ticks': [0, 1], 'ack_ms': [3.0, 5.0], 'reentry_ms': [80.0, 90.0]}
    rows = {row.work: row for row in loop.interrupt_rows(found)}
    assert rows['interrupt old actions'].ours == 0
    assert rows['interrupt ticks to the answer'].ours == 1
    assert rows['re-entry to first action'].spread['max'] == 90.0


def test_a_run_that_breaks_off_leaves_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the brain fails; what was measured before had been handed over by then."""

    def fails(*_: object) -> list[Row]:
        raise RuntimeError('planted')

    first, kept = Row('handoff torn', 0, 'count'), []
    monkeypatch.setattr(loop, 'handoff_rows', lambda *_: [first])
    monkeypatch.setattr(loop, 'brain_rows', fails)
    with pytest.raises(RuntimeError, match='planted'):
        loop.measure('cpu', (), lambda _: None, keep=lambda rows: kept.append(list(rows)))
    assert kept == [[first]]


def test_a_robot_that_does_not_come_up_says_why() -> None:
    """Planted: a device that is not there; the brain's own word on it is in the error."""
    with (
        pytest.raises(
            FlashrtError, match=r'could not configure.*brain: configure failed.*cuda:99'
        ),
        loop_system.robot('cuda:99'),
    ):
        pass


def test_the_robot_of_the_benchmark() -> None:
    """It shows two cameras, moves as it is told, and goes back to a state exactly."""
    world = gymnasium.make(
        'flashrt_ros.bench.loop_world:Loop-v0', disable_env_checker=True
    ).unwrapped
    seen, info = world.reset(seed=1)
    assert {name: p.shape for name, p in seen['pixels'].items()} == {
        'front': (96, 96, 3),
        'wrist': (96, 96, 3),
    }
    assert not any(info['subgoals'].values())
    state = world.get_state()
    one = world.step(np.ones(4))[0]['agent_pos']
    world.set_state(state)
    assert np.array_equal(world.step(np.ones(4))[0]['agent_pos'], one)


def test_seconds_are_for_the_loop_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Another benchmark, or a time that makes no sense, is refused in one line."""
    for words in (['capsule', '--seconds', '5'], ['loop', '--seconds', '0']):
        assert cli.main(['bench', *words]) == 2
        assert 'loop alone takes it, from 1 to 86400' in capsys.readouterr().err
