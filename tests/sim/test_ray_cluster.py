"""Rollouts over a running cluster of Ray nodes: the local bytes, also where a node is killed.

All nodes are on this machine, each with processes, an object store and a session folder of its
own; a token keeps everybody else out. One is killed as a machine loses its power: all at once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_ros import cli

ARGUMENTS = [
    'rollout', '--subgoal', 'open the drawer', '--subgoal', 'close the drawer', '--episodes', '3',
    '--limit', '24',
]  # fmt: skip
STORE = 100 << 20  # bytes of a node's object store
# How often a node is asked whether it lives. One that is gone does not answer five times in a row
# and is noticed in seconds; one that is slow still has ten seconds for each answer.
ASKED = '{"health_check_period_ms": 300}'


def below(root):
    """(pid, command line) of all that process `root` has started, and what that has, ..."""
    parents, titles = {}, {}
    for folder in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):  # it has just ended
            stat = (folder / 'stat').read_text()
            titles[int(folder.name)] = (folder / 'cmdline').read_bytes().decode(errors='replace')
            parents[int(folder.name)] = int(stat.rpartition(')')[2].split()[1])

    def ours(pid):
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root

    return [(pid, titles[pid]) for pid in titles if pid != root and pid in parents and ours(pid)]


def until(true, what, seconds=200):
    """Wait until `true()` is, and return that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail(f'{what}: not within {seconds} s')


def free(count):
    """Ports that nobody uses."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(('127.0.0.1', 0))) for _ in range(count)
        ]
        return [server.getsockname()[1] for server in servers]


class Cluster:
    """Nodes of one Ray, and the environment in which it lets one in."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix='ray-'))  # names of sockets must be short
        self.port, self.client = free(2)
        self.nodes = {}
        self.env = {
            **os.environ, 'RAY_USAGE_STATS_ENABLED': '0',
            'RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER': '1',  # an engine of this process may forbid it
            'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': os.urandom(24).hex(),
        }  # fmt: skip

    def start(self, name, *options):
        """Start a node."""
        ray = Path(sys.executable).parent / 'ray'
        self.nodes[name] = subprocess.Popen(
            [
                ray, 'start', '--block', f'--temp-dir={self.folder / name}',
                f'--object-store-memory={STORE}', *options,
            ],
            env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def address(self):
        """Host and port of the head, once it is there."""
        file = self.folder / 'head' / 'ray_current_cluster'
        return file.read_text().strip() if file.is_file() else ''

    def playing(self):
        """The name of a node that plays an episode; None if none does."""
        for name, node in self.nodes.items():
            assert node.poll() is None, f'node {name} has ended'
            if any(title.startswith('ray::_finish') for _, title in below(node.pid)):
                return name
        return None

    def kill(self, name):
        """Kill all processes of a node."""
        node = self.nodes.pop(name)
        os.kill(node.pid, signal.SIGSTOP)  # it must not tidy up what is killed first
        for pid, _ in below(node.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.kill()
        node.wait()

    def open(self, address, json, policy):
        """Start a rollout in a process of its own."""
        return subprocess.Popen(
            [
                sys.executable, '-m', 'flashrt_ros.cli', *ARGUMENTS, '--policy', policy,
                '--engine', 'ray', '--address', address, '--json', json,
            ],
            env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


@pytest.fixture(scope='module')
def cluster():
    """A head without processors, and two nodes with one each."""
    if importlib.util.find_spec('ray') is None:
        pytest.skip('no Ray here; pip install "flashrt_ros[ray]"')
    if importlib.util.find_spec('grpc') is None:
        pytest.skip('no Ray Client here; pip install "ray[client]"')
    made = Cluster()
    try:
        made.start(
            'head', '--head', f'--port={made.port}', f'--ray-client-server-port={made.client}',
            '--include-dashboard=false', '--num-cpus=0', f'--system-config={ASKED}',
        )  # fmt: skip

        address = until(made.address, 'the head is there')
        for name in 'ab':
            made.start(name, f'--address={address}', '--num-cpus=1')
        yield made
    finally:
        for name in [*made.nodes]:
            made.kill(name)
        shutil.rmtree(made.folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(900)  # three processes load torch, one after the other on a small machine
def test_a_lost_nodes_episodes_are_played_again(cluster, tiny_policy, tmp_path):
    """A node dies while it plays: every result is there, and the bytes are the local engine's."""
    found, wanted = tmp_path / 'ray.json', tmp_path / 'local.json'
    host = cluster.address().rpartition(':')[0]
    rollout = cluster.open(f'ray://{host}:{cluster.client}', found, tiny_policy)
    try:
        until(lambda: cluster.playing() or rollout.poll() is not None, 'a node plays')
        assert rollout.poll() is None, rollout.stderr.read()
        cluster.kill(cluster.playing())
        _, error = rollout.communicate(timeout=600)
    finally:
        rollout.kill()
    assert rollout.returncode == 0, error
    local = [*ARGUMENTS, '--policy', str(tiny_policy), '--workers', '1', '--json', str(wanted)]
    assert cli.main(local) == 0
    assert found.read_bytes() == wanted.read_bytes()
