"""Rollouts over Ray: the bytes of the local run, also where a worker is lost on the way."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_ros import cli
from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout import ray_engine
from flashrt_sim.rollout.evaluation import Goal, Task
from flashrt_sim.rollout.play import run_episode
from flashrt_sim.rollout.station import Deployment, Outputs

OPEN = 'open the drawer'
TASK = Task('flashrt/Drawer-v0', (Goal(OPEN, OPEN),), limit=12)


def processes():
    """(pid, command line) of all that this process has started, and what that has, ..."""
    parents, titles = {}, {}
    for folder in Path('/proc').glob('[0-9]*'):
        try:
            parents[int(folder.name)] = int(
                (folder / 'stat').read_text().rpartition(')')[2].split()[1]
            )
            titles[int(folder.name)] = (folder / 'cmdline').read_bytes().decode(errors='replace')
        except OSError:
            continue  # it has just ended

    def ours(pid):
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [(pid, titles[pid]) for pid in titles if pid != os.getpid() and ours(pid)]


def listening(pids):
    """Addresses, as the kernel writes them, on which processes wait for others to connect."""
    inodes, found = set(), set()
    for pid in pids:
        for entry in Path(f'/proc/{pid}/fd').glob('*'):
            with contextlib.suppress(OSError):  # it has just been closed
                inodes.add(os.readlink(entry).removeprefix('socket:[').removesuffix(']'))
    for table in ('/proc/net/tcp', '/proc/net/tcp6'):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == '0A' and columns[9] in inodes:
                found.add(columns[1].split(':')[0])
    return found


LOCAL = {'0100007F', '0000000000000000FFFF00000100007F', '00000000000000000000000001000000'}


@pytest.fixture(scope='module')
def cluster():
    """One Ray for all tests of this file, started as a rollout starts it."""
    if importlib.util.find_spec('ray') is None:
        pytest.skip('no Ray here; pip install "flashrt_ros[ray]"')
    ray = ray_engine._load(alone=True)
    ray_engine._connect(ray, 1, None)
    yield ray
    ray.shutdown()


class Killer(threading.Thread):
    """Kills the first worker that is seen playing an episode."""

    def __init__(self):
        super().__init__(name='killer')
        self.killed, self.over = [], threading.Event()

    def run(self):
        """Look until there is one."""
        while not self.killed and not self.over.wait(0.02):
            for pid, title in processes():
                if title.startswith('ray::_finish'):
                    os.kill(pid, signal.SIGKILL)
                    self.killed.append(pid)
                    return


@pytest.mark.slow
@pytest.mark.timeout(900)  # workers load torch twice, one after the other
def test_a_lost_workers_episodes_are_played_again(cluster, tiny_policy, tmp_path):
    """A worker dies in mid-episode: every result is there, and the files are the local run's."""
    files = []
    for engine in ('ray', 'local'):
        files.append(tmp_path / f'{engine}.json')
        killer = Killer()
        if engine == 'ray':
            killer.start()
        code = cli.main([
            'rollout', '--subgoal', OPEN, '--subgoal', 'close the drawer', '--episodes', '2',
            '--limit', '24', '--policy', str(tiny_policy), '--workers', '1', '--engine', engine,
            '--json', str(files[-1]), '--parquet', str(files[-1].with_suffix('.parquet')),
        ])  # fmt: skip
        killer.over.set()
        assert code == 0
        if engine == 'ray':
            killer.join()
            assert len(killer.killed) == 1, 'no worker was seen at work'
    first, second = files
    assert first.read_bytes() == second.read_bytes()
    assert (
        first.with_suffix('.parquet').read_bytes() == second.with_suffix('.parquet').read_bytes()
    )


def test_ray_stays_on_this_machine(cluster):
    """Nothing that Ray starts listens to other machines, and there is no dashboard."""
    started = [pid for pid, _ in processes()]
    assert started and listening(started) <= LOCAL
    with socket.create_server(('0.0.0.0', 0)):
        assert not listening([os.getpid()]) <= LOCAL, 'negative control: an open port is seen'
    assert os.environ['RAY_USAGE_STATS_ENABLED'] == '0'


def test_an_error_of_an_episode_is_one_line(cluster, tiny_policy, tmp_path):
    """What is wrong in a worker is told here, as by the local engine."""
    (tmp_path / 'config.json').write_text((tiny_policy / 'config.json').read_text())
    deployment = Deployment(str(tmp_path))
    with pytest.raises(SimulationError, match='safetensors') as caught:
        list(ray_engine.play_on_ray(deployment, Outputs(), [(TASK, 0, 1)], 1))
    assert '\n' not in str(caught.value)


def test_an_episode_goes_on_from_its_capsule(tiny_policy, monkeypatch, tmp_path):
    """What a worker restores decides all: the same result; damaged bytes are refused."""
    monkeypatch.setattr(ray_engine, '_station', None)
    same = (Deployment(str(tiny_policy)), Outputs(), str(tmp_path))
    monkeypatch.chdir(tmp_path)
    parcel = ray_engine._start(*same, TASK, 2, 7)
    other = ray_engine._start(*same, TASK, 3, 8)
    (file,) = parcel
    assert file.endswith('.capsule')
    station = ray_engine._open(*same)
    expected = run_episode(station.open(TASK.environment), TASK, 2, 7)
    assert ray_engine._finish(*same, TASK, 2, 7, parcel) == expected
    seen = []
    monkeypatch.setattr(station, 'finish', lambda live, *rest: seen.append(state(live)))
    for each in (parcel, other, parcel):
        ray_engine._finish(*same, TASK, 2, 7, each)
    assert seen[0] == seen[2] != seen[1], 'the capsule decides, not the seed'
    assert not list(ray_engine._folder.glob('*.capsule')), 'capsules are not kept'
    data = bytearray(parcel[file])
    data[len(data) // 2] ^= 1
    with pytest.raises(SimulationError, match='altered'):
        ray_engine._finish(*same, TASK, 2, 7, {file: bytes(data)})
    with pytest.raises(SimulationError, match='no parcel of one capsule'):
        ray_engine._finish(*same, TASK, 2, 7, {'../' + file: parcel[file]})


def state(live):
    """Simulator and mailbox of an episode."""
    return live.scene.get_state().tobytes(), live.actor.mailbox.generation, live.actor.episode


def test_tasks_ask_for_their_part_of_the_gpus():
    """A processor each; the GPUs are divided among the processors; none is one line."""
    assert ray_engine.share({'CPU': 16.0}, 'cpu') == {'num_cpus': 1}
    assert ray_engine.share({'CPU': 16.0, 'GPU': 2.0}, 'cuda')['num_gpus'] == 0.125
    with pytest.raises(SimulationError, match='has no GPU'):
        ray_engine.share({'CPU': 16.0}, 'cuda')


class Late:
    """Stands in for Ray on a busy machine: it starts at the third attempt."""

    def __init__(self, message, failures):
        self.message, self.failures, self.attempts = message, failures, 0

    def init(self, **options):
        """Start, or not yet."""
        self.attempts += 1
        if self.attempts <= self.failures:
            raise Exception(self.message)

    def shutdown(self):
        """Clean up."""


def test_a_busy_machine_is_given_time():
    """Ray's own half minute is not enough everywhere; what else is wrong is one line at once."""
    late = Late('The node timed out during startup.', 2)
    ray_engine._connect(late, 1, None)
    assert late.attempts == 3
    for ray, address in ((Late('No cluster.\nMore.', 99), 'auto'), (Late('No room.', 99), None)):
        with pytest.raises(
            SimulationError, match=r'no Ray at .*: No (cluster|room); start'
        ) as error:
            ray_engine._connect(ray, 1, address)
        assert ray.attempts == 1 and '\n' not in str(error.value)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--engine', 'ray'], 'pip install "flashrt_ros[ray]"'),
        (['--address', 'auto'], 'is for the engine ray'),
    ],
)
def test_what_cannot_be_is_exit_code_2(arguments, message, tiny_policy, monkeypatch, capsys):
    """No Ray installed; an address without Ray."""
    monkeypatch.setitem(sys.modules, 'ray', None)
    assert cli.main(['rollout', '--policy', str(tiny_policy), *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
