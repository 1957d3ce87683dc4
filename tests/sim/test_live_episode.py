"""An episode with its brain, forked in the middle, continues byte for byte."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_policies.registry import spec
from flashrt_sim.episode import LiveEpisode, SceneHost, require_fits
from flashrt_sim.errors import SimulationError

# Opening an episode takes time: all tests of this file in one process.
pytestmark = pytest.mark.xdist_group('live episode')

OPEN, CLOSE = 'open the drawer', 'close the drawer'


@pytest.fixture(scope='module')
def live(tiny_policy):
    """An episode with the tiny policy."""
    episode = LiveEpisode.open('flashrt/Drawer-v0', tiny_policy)
    yield episode
    episode.close()


def run(live, ticks):
    """Actions and whole simulator states of the next ticks, as bytes."""
    seen = []
    for _ in range(ticks):
        moment = live.tick()
        seen.append(moment.command.action.tobytes() + live.scene.get_state().tobytes())
    return seen


def with_change(live):
    """Some ticks, another subgoal in mid-motion, some more."""
    first = run(live, 9)
    live.ask(CLOSE)
    return first + run(live, 15)


@pytest.mark.parametrize('at', [0, 3, 8, 13])
def test_fork_continues_byte_identically(live, at):
    """Before the first chunk, while one waits for its tick, and between: the same bytes."""
    live.start(11, OPEN)
    run(live, at)
    capsule = live.snapshot('fork')
    expected = with_change(live)
    for _ in range(2):
        live.rollback(capsule)
        assert (live.scene.ticks, live.scene.subgoal) == (at, OPEN)
        assert with_change(live) == expected
    assert len(set(expected)) == len(expected)


def test_other_noise_goes_another_way(live):
    """Restored with new noise the world is the same, the actions soon are not."""
    live.start(11, OPEN)
    run(live, 8)
    capsule = live.snapshot('fork')
    expected = run(live, 20)
    live.restore(capsule, noise=5)
    assert run(live, 20) != expected


def test_without_the_simulator_the_fork_would_differ(live, monkeypatch):
    """Negative control: a closure that forgets the simulator is noticed."""
    live.start(11, OPEN)
    run(live, 8)
    capsule = live.snapshot('fork')
    expected = run(live, 12)
    monkeypatch.setattr(live.scene, 'set_state', lambda state: None)
    live.restore(capsule)
    monkeypatch.undo()
    # The world has moved on while the brain went back: its clock lies behind the scene's.
    assert live.scene.ticks == 20
    assert run(live, 12) != expected


def test_same_seed_same_episode(live):
    """A start depends on its seed and on nothing that was before."""
    live.start(4, CLOSE)
    expected = run(live, 14)
    live.start(5, CLOSE)
    assert run(live, 14) != expected
    live.start(4, CLOSE)
    assert run(live, 14) == expected


def test_chunks_take_effect_after_the_delay(live):
    """Six ticks of holding, then motion; an inference every eight ticks."""
    live.start(4, OPEN)
    moments = [live.tick() for _ in range(26)]
    assert [m.command.held for m in moments] == [True] * 6 + [False] * 20
    assert [m.tick for m in moments if m.inferred] == [0, 8, 16, 24]


def test_subgoal_reaches_the_policy(live):
    """Its wording changes what the policy does, the canonical name what is judged."""
    live.start(4, OPEN)
    plain = run(live, 12)
    live.start(4, OPEN, text='draw the drawer out')
    assert live.scene.subgoal == OPEN
    assert run(live, 12) != plain


def test_host_state_is_the_scene(live):
    """The closure's entry carries the scene's checked bytes."""
    host = SceneHost(live.scene)
    state = host.state()
    live.scene.reset_physics(seed=77)
    host.set_state(state)
    assert live.scene.get_state().tobytes() == state['scene']


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'cameras': ('front', 'top')}, "looks through camera 'top'"),
        ({'image_hw': (64, 64)}, r'takes images of \[64, 64\]'),
        ({'proprio_dim': 7}, 'proprioception of 7 numbers'),
        ({'action_dim': 6}, 'action of 6 numbers'),
    ],
)
def test_a_policy_for_another_robot_is_refused(drawer, tiny_policy, change, message):
    """In one line, before its weights are read."""
    require_fits(drawer, 'flashrt/Drawer-v0', spec(tiny_policy), 'tiny')
    with pytest.raises(SimulationError, match=message) as caught:
        require_fits(
            drawer, 'flashrt/Drawer-v0', dataclasses.replace(spec(tiny_policy), **change), 'tiny'
        )
    assert '\n' not in str(caught.value)
