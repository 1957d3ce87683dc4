"""A rollout killed at any moment goes on: no episode is lost, none is run twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_ros import cli
from flashrt_sim.rollout import station

EPISODES = 6


def command(policy, report, workers):
    """Six short episodes."""
    return [
        'rollout', '--subgoal', 'open the drawer', '--episodes', str(EPISODES), '--limit', '12',
        '--policy', str(policy), '--workers', str(workers), '--json', str(report),
        '--parquet', str(report.with_suffix('.parquet')),
    ]  # fmt: skip


def finished(report):
    """Numbers of the episodes that stand in the file beside the report."""
    part = report.with_name(report.name + '.part')
    lines = part.read_bytes().split(b'\n')[1:-1] if part.exists() else []
    return [json.loads(line)['episode'] for line in lines]


def children(pid):
    """Processes that a process has started and that are still running."""
    found = []
    for stat in Path('/proc').glob('[0-9]*/stat'):
        try:
            state, parent = stat.read_text().rpartition(')')[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has just ended
        if int(parent) == pid and state != 'Z':
            found.append(int(stat.parent.name))
    return found


def alive(pid):
    """Whether a process still runs; one that has ended and waits to be noticed does not."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_a_random_moment(tiny_policy, tmp_path, monkeypatch, capsys):
    """The second run does what the first left undone; the files are those of one whole run."""
    seed = random.randrange(2**32)
    print(f'seed {seed}')
    rng, report = random.Random(seed), tmp_path / 'killed.json'
    enough = rng.randrange(EPISODES)
    run = [sys.executable, '-m', 'flashrt_ros.cli', *command(tiny_policy, report, 2)]
    process = subprocess.Popen(run, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None and len(finished(report)) < enough:
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.2))  # any moment is as good
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(map(alive, workers)):  # what it had started ends with it
        time.sleep(0.01)
    before, ran = finished(report), []

    def counted(live, task, number, *rest):
        ran.append(number)
        return play(live, task, number, *rest)

    play = station.play
    monkeypatch.setattr(station, 'play', counted)
    assert cli.main(command(tiny_policy, report, 1)) == 0
    assert sorted(before + ran) == list(range(EPISODES)), (before, ran)
    whole = tmp_path / 'whole.json'
    assert cli.main(command(tiny_policy, whole, 1)) == 0
    assert whole.read_bytes() == report.read_bytes()
    assert (
        whole.with_suffix('.parquet').read_bytes() == report.with_suffix('.parquet').read_bytes()
    )
    assert not list(tmp_path.glob('*.part'))
    assert ran[len(ran) - EPISODES :] == list(range(EPISODES)), 'the count sees a whole run'


def test_a_child_that_stays_is_noticed():
    """Negative control of the look at processes: a running child is seen, an ended one is not."""
    child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)
    assert child.pid in children(os.getpid()) and alive(child.pid)
    child.communicate(b'\n')
    assert child.pid not in children(os.getpid()) and not alive(child.pid)
