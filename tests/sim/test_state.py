"""A saved simulator state is whole: a restored twin continues byte for byte."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

pytest.importorskip('metaworld')

from flashrt_sim.codec import StateError, pack, seal, unpack, unseal
from flashrt_sim.envs.state import SimulatorState
from flashrt_sim.envs.tasks import TASKS, make_simulator


def continuation(simulator, actions):
    """Everything a policy or a learner can see of the next steps, as bytes."""
    seen = []
    for action in actions:
        observation, reward, _, _, info = simulator.step(action)
        seen += [observation.tobytes(), np.float64(reward).tobytes(), pack(sorted(info.items()))]
    seen.append(seal(SimulatorState(simulator).collect()).tobytes())
    return b''.join(seen)


def assert_continues(task, twin):
    """Save in mid-episode, restore into `twin`, compare; `test_byte_identity` has every task."""
    rng = np.random.default_rng(TASKS.index(task))
    actions = rng.uniform(-1, 1, (14, 4)).astype(np.float32)
    original = make_simulator(task, seed=1)
    for action in actions[:6]:
        original.step(action)
    state = seal(SimulatorState(original).collect())
    expected = continuation(original, actions[6:])
    SimulatorState(twin).apply(unseal(state))
    assert seal(SimulatorState(twin).collect()).tobytes() == state.tobytes()
    assert continuation(twin, actions[6:]) == expected


@pytest.mark.parametrize('task', ['basketball-v3', 'bin-picking-v3', 'door-lock-v3', 'soccer-v3'])
def test_another_instance_continues_byte_identically(task):
    """Also in another instance, above all where attributes are views of simulator memory."""
    assert_continues(task, twin=make_simulator(task, seed=2))


@pytest.mark.parametrize('part', ['physics', 'arrays', 'attributes'])
def test_a_forgotten_part_is_noticed(part):
    """Negative control: a state with one part left as it was does not continue the same."""
    actions = np.random.default_rng(0).uniform(-1, 1, (14, 4)).astype(np.float32)
    original, twin = make_simulator('drawer-open-v3', 1), make_simulator('drawer-open-v3', 2)
    for action in actions[:6]:
        original.step(action)
    state = unseal(seal(SimulatorState(original).collect()))
    state[part] = unseal(seal(SimulatorState(twin).collect()))[part]
    SimulatorState(twin).apply(state)
    assert continuation(twin, actions[6:]) != continuation(original, actions[6:])


def test_state_of_another_task_is_refused_whole():
    """A state that does not fit changes nothing and says what it belongs to."""
    drawer, reach = make_simulator('drawer-open-v3', 0), make_simulator('reach-v3', 0)
    before = seal(SimulatorState(reach).collect())
    with pytest.raises(StateError, match='SawyerDrawerOpenEnvV3.* cannot be set on SawyerReach'):
        SimulatorState(reach).apply(unseal(seal(SimulatorState(drawer).collect())))
    assert (seal(SimulatorState(reach).collect()) == before).all()


@pytest.mark.parametrize(
    ('fault', 'message'),
    [
        (lambda s: s.update(physics=s['physics'][:-1]), 'physics has shape'),
        (lambda s: s['arrays'].pop('body_pos'), 'needs the arrays'),
        (lambda s: s['attributes'].update(step=1), "may not set 'step'"),
        (lambda s: s['views'].update(x=['data', 'xpos', 10**6, 3]), 'out of bounds'),
        (lambda s: s['views'].update(x=['data', 'solver', 0, 3]), 'unknown memory'),
        (lambda s: s.pop('views'), 'expected the parts'),
    ],
)
def test_planted_faults_are_refused_before_anything_changes(fault, message):
    """Each kind of wrong layout is one line, and the simulator stays as it was."""
    simulator = make_simulator('drawer-open-v3', 0)
    before = seal(SimulatorState(simulator).collect())
    state = unseal(before)
    fault(state)
    with pytest.raises(StateError, match=message) as caught:
        SimulatorState(simulator).apply(state)
    assert '\n' not in str(caught.value)
    assert (seal(SimulatorState(simulator).collect()) == before).all()


def test_an_attribute_nobody_can_save_is_an_error():
    """State that would be forgotten is reported, not dropped."""
    simulator = make_simulator('drawer-open-v3', 0)
    simulator.latest = object()
    with pytest.raises(StateError, match='object cannot be saved'):
        seal(SimulatorState(simulator).collect())


def test_codec_returns_values_and_types():
    """What is packed comes back equal and of the same type."""
    value = {
        'none': None, 'yes': True, 'no': False, 'big': -(2**127) - 3, 'small': 0, 'x': 0.1,
        'text': 'grüße', 'raw': b'\0\1', 'scalar': np.float64(2.5), 'flag': np.bool_(True),
        'list': [1, (2, 'three')], 'empty': [], 'array': np.arange(6, dtype='<i2').reshape(2, 3),
    }  # fmt: skip
    back = unseal(seal(value))
    assert back.keys() == value.keys()
    np.testing.assert_array_equal(back.pop('array'), value.pop('array'))
    assert back == value
    assert {k: type(v) for k, v in back.items()} == {k: type(v) for k, v in value.items()}


def test_damaged_bytes_are_refused():
    """Cut, prolonged, altered or foreign bytes never reach a simulator."""
    good = seal({'a': np.arange(4.0), 'b': [1, 2]})
    flipped = good.copy()
    flipped[-1] ^= 1
    foreign = good.copy()
    foreign[0] ^= 1
    for bad in (good[:10], good[:-1], np.append(good, good[:1]), flipped, foreign):
        with pytest.raises(StateError) as caught:
            unseal(bad)
        assert '\n' not in str(caught.value)


def test_random_bytes_never_crash_the_reader():
    """Any bytes give a value or a StateError, nothing else."""
    seed = 5
    print(f'seed {seed}')
    rng = np.random.default_rng(seed)
    good = pack({'a': np.arange(4.0), 'b': [1, (2, 'x')], 'c': np.float64(1)})
    for _ in range(3000):
        bad = bytearray(good)
        for at in rng.integers(0, len(good), rng.integers(1, 4)):
            bad[at] = rng.integers(0, 256)
        with contextlib.suppress(StateError):
            unpack(bytes(bad))
