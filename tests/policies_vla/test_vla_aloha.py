"""ALOHA's joints in a folder of openpi: what `adapt_to_pi` does there happens here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from vla_cases import copied, edit_json, load, with_noise

from flashrt_policies import registry
from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.vla import aloha

STATS = 'assets/lab/arm/norm_stats.json'
# A vector, and what `_decode_state` and `_encode_actions` of openpi's aloha_policy.py made of it.
GIVEN = [0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.25, 0.7, -0.8, 0.9, 1.0, -1.1, 1.2, 0.9]
SEEN = [
    0.1, 0.2, -0.3, -0.4, 0.5, -0.6, -0.51307761, 0.7, 0.8, -0.9, 1.0, -1.1, 1.2, 0.50164016,
]  # fmt: skip
DONE = [
    0.1, 0.2, -0.3, -0.4, 0.5, -0.6, 0.67173224, 0.7, 0.8, -0.9, 1.0, -1.1, 1.2, 0.97945368,
]  # fmt: skip


def two_arms(target: Path) -> Path:
    """Return a folder of a robot with fourteen joints, as ALOHA has them."""
    folder = copied('openpi_pi0', target)
    stats = json.loads((folder / STATS).read_text('utf-8'))['norm_stats']
    for kind in stats.values():
        kind.update({name: [*values, values[-1]][:7] * 2 for name, values in kind.items()})
    edit_json(folder / STATS, norm_stats=stats)
    edit_json(folder / 'robot.json', relative=[*range(6), *range(7, 13)])
    return folder


def chunk(folder: Path, state: np.ndarray) -> np.ndarray:
    """Return the actions for an observation with this state, and a noise that stays."""
    bench = load(folder)
    with_noise(bench, bench.arrays['0/noise'])
    bench.say(bench.tasks[0])
    bench.policy.observe(bench.images(0), state)
    found: np.ndarray = bench.policy.plan()
    return found


def test_joints_and_grippers_are_those_of_openpi() -> None:
    """Signs, the linkage of the fingers, and the motor's angle, as openpi computes them."""
    np.testing.assert_allclose(aloha.seen(np.array(GIVEN)), SEEN, rtol=0, atol=1e-7)
    gain, shift = aloha.done()
    np.testing.assert_allclose(np.array(GIVEN) * gain + shift, DONE, rtol=0, atol=1e-6)


def test_a_folder_of_aloha_acts_in_the_robots_joints(tmp_path: Path) -> None:
    """What the network is told and what it answers are turned; offsets are taken in its frame."""
    folder = two_arms(tmp_path)
    state = np.array(GIVEN, np.float32)
    want = chunk(folder, aloha.seen(state).astype(np.float32))
    edit_json(folder / 'robot.json', adapt_to_pi=True)
    gain, shift = aloha.done()
    np.testing.assert_allclose(chunk(folder, state), want * gain + shift, rtol=0, atol=1e-5)
    assert np.abs(want * gain + shift - want).max() > 0.1, 'turning changes nothing here'


def test_limits_are_the_robots(tmp_path: Path) -> None:
    """Limits turn with the joints, lowest first; grippers are believed where fingers can be."""
    folder = two_arms(tmp_path)
    plain = registry.spec(folder)
    edit_json(folder / 'robot.json', adapt_to_pi=True)
    turned = registry.spec(folder)
    assert turned.action_low[1] == pytest.approx(-plain.action_high[1])
    assert turned.action_high[0] == pytest.approx(plain.action_high[0])
    assert turned.proprio_high[9] == pytest.approx(-plain.proprio_low[9])
    assert (turned.proprio_low[6], turned.proprio_high[13]) == aloha.BELIEVED
    assert all(np.array(turned.action_low) < turned.action_high)
    assert all(np.array(turned.proprio_low) < turned.proprio_high)


def test_another_robot_is_refused(tmp_path: Path) -> None:
    """Seven joints are not ALOHA's."""
    folder = copied('openpi_pi0', tmp_path)
    edit_json(folder / 'robot.json', adapt_to_pi=True)
    with pytest.raises(CheckpointError, match='adapt_to_pi is true, and a state has 7 numbers'):
        registry.spec(folder)
    edit_json(folder / 'robot.json', adapt_to_pi=1)
    with pytest.raises(CheckpointError, match='adapt_to_pi is 1; want true or false'):
        registry.spec(folder)


def test_every_gripper_that_is_believed_has_an_angle() -> None:
    """No state within the limits becomes NaN on the way to the network, and wider is wider."""
    travel = np.linspace(*aloha.BELIEVED, 50)
    states = np.zeros((50, aloha.COUNT))
    states[:, aloha.GRIPPERS] = travel[:, None]
    angles = np.array([aloha.seen(state)[6] for state in states])
    assert np.isfinite(angles).all() and (np.diff(angles) >= 0).all()
