"""The store survives kill -9: what was reported as written is there afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

WRITER = """
import sys, torch
torch.set_num_threads(1)
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.session import Session
from flashrt_ros.capsule.store import DiskStore
from flashrt_ros.contract.context import Context
ctx = Context('cpu')
state = ctx.buffer('state', (4096,), torch.int32)
cache = ctx.buffer('cache', (4096, 64), torch.int32)
cursor = Cursor('cache')
closure = Closure('x').fixed(state).append(cache, 0, cursor)
registry = Registry(ctx, 1 << 24, store=DiskStore(sys.argv[1]))
session = Session(ctx, closure, Fingerprint({}), registry=registry)
last = registry.latest()
start = 0
if last is not None:
    session.restore(last)
    start = last.position + 1
    assert bool((state.tensor == last.position).all()), 'state'
    want = torch.arange(last.position + 1, dtype=torch.int32)[:, None].expand(-1, 64)
    assert torch.equal(cache.tensor[: cursor.length], want), 'cache'
print('from', start, flush=True)
for n in range(start, start + int(sys.argv[2])):
    state.tensor.fill_(n)
    with cursor.appending(1):
        cache.tensor[n] = n
    capsule = session.snapshot('turn', n)
    if sys.argv[3] == 'commit':
        registry.commit(capsule)  # safe when it returns
        print(n, flush=True)
    else:
        registry.demote(capsule, 'disk')  # behind the caller: safe when it has left
        for each in registry.capsules:
            if each.tier == 'disk':
                print(each.position, flush=True)
"""


@pytest.mark.parametrize('way', ['commit', 'behind'])
def test_a_process_killed_while_writing_re_enters_at_the_last_committed_boundary(
    tmp_path: Path, way: str
) -> None:
    """Kill -9 in the middle, several times: what was reported as written is there, exact."""
    committed = -1
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, '-c', WRITER, str(tmp_path / 's'), '1000', way],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        start = int(process.stdout.readline().split()[1])
        assert start >= committed + 1
        for line in process.stdout:
            committed = max(committed, int(line))
            if committed >= start + 5:
                break
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        committed = max([committed, *map(int, rest)])
        process.wait()
        process.stdout.close()
    done = subprocess.run(
        [sys.executable, '-c', WRITER, str(tmp_path / 's'), '1', way],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout.split()[1]) >= committed + 1
    assert not list((tmp_path / 's').glob('.tmp-*'))
