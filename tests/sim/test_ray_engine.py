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


REFUSED = 'Initialization failure from server:\nTraceback (...)\nNo server.'


def test_a_busy_machine_is_given_time(monkeypatch):
    """Ray's own half minute is not enough everywhere; what else is wrong is one line at once."""
    monkeypatch.delenv('RAY_AUTH_MODE', raising=False)
    with socket.create_server(('127.0.0.1', 0)) as server:
        client = f'ray://127.0.0.1:{server.getsockname()[1]}'
        for message, address in (
            ('The node timed out during startup.', None), (REFUSED, client),
        ):  # fmt: skip
            late = Late(message, 2)
            ray_engine._connect(late, 1, address)
            assert late.attempts == 3
        for message, address, attempts in (
            ('No cluster.\nMore.', 'auto', 1), ('No room.', None, 1), (REFUSED, client, 3),
        ):  # fmt: skip
            ray = Late(message, 99)
            with pytest.raises(
                SimulationError, match=r'no Ray at .*: No (cluster|room|server); start'
            ) as error:
                ray_engine._connect(ray, 1, address)
            assert ray.attempts == attempts and '\n' not in str(error.value)
            assert ('RAY_AUTH_MODE=token' in str(error.value)) == (address == client)


def test_where_nobody_listens_is_one_line_at_once():
    """Ray would try for minutes; a place where somebody listens is left to Ray."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]
        ray_engine._reach(f'127.0.0.1:{port}')
    for address in (f'127.0.0.1:{port}', f'ray://127.0.0.1:{port}', 'ray://127.0.0.1:99999'):
        ray = Late('', 0)
        with pytest.raises(SimulationError, match=f'no Ray at {address}: .* want host:6379'):
            ray_engine._connect(ray, 1, address)
        assert ray.attempts == 0
    ray_engine._reach('auto')


class Gone(Late):
    """Stands in for a Ray whose head was lost: nothing more can be asked."""

    class exceptions:  # noqa: N801, as in Ray
        """Ray's errors."""

        RayError = RuntimeError
        RayTaskError = type('RayTaskError', (RuntimeError,), {})
        LocalRayletDiedError = type('LocalRayletDiedError', (RuntimeError,), {})

    up, cancelled = True, 0
    asked = ConnectionError('Client is shutting down.')
    got = None

    def is_initialized(self):
        """As long as nobody has noticed."""
        return self.up

    def cluster_resources(self):
        """Two processors."""
        return {'CPU': 2.0}

    def remote(self, **options):
        """A task that is never done."""
        return lambda function: type('Task', (), {'remote': staticmethod(lambda *a: 0)})

    def wait(self, running):
        """The connection may be lost."""
        if self.asked:
            self.up = False
            raise self.asked
        return running[:1], running[1:]

    def get(self, reference):
        """An episode that is lost."""
        raise self.got

    def cancel(self, reference, force):
        """Ray would start anew here."""
        self.cancelled += 1


def test_a_lost_cluster_is_one_line(monkeypatch):
    """It says how to go on; nothing is asked of a Ray that is gone. A lost worker is another."""
    play = ray_engine.play_on_ray
    for asked, got, message in (
        (Gone.asked, None, 'Client is shutting down.*the same command goes on'),
        (None, Gone.asked, 'Client is shutting down.*the same command goes on'),
        (None, Gone.exceptions.LocalRayletDiedError('No raylet.\nMore.'), r'lost \(No raylet\)'),
        (None, RuntimeError('Crashed.'), r'lost its worker 21 times \(RuntimeError\)'),
    ):
        gone = Gone('', 0)
        gone.asked, gone.got = asked, got
        monkeypatch.setattr(ray_engine, '_load', lambda alone, gone=gone: gone)
        with pytest.raises(SimulationError, match=message) as caught:
            list(play(Deployment(), Outputs(), [(TASK, 0, 1), (TASK, 1, 2)], 1))
        assert '\n' not in str(caught.value)
        assert gone.cancelled == (0 if asked else 1)


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
