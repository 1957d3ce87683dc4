"""`flashrt bench policy`: its rows, floors, and reasons, at toy sizes on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_policies.vla.sizes import FULL
from flashrt_ros.bench import policy, policy_peers, policy_ready
from flashrt_ros.bench.policy_models import PROMPTS, Measured, operations
from flashrt_ros.bench.report import Row


def test_a_work_has_its_rows_and_replays_alike() -> None:
    """The whole chunk, its parts, the way from host to host, and a new prompt alone."""
    rows = policy.chunk_rows('smolvla', 2, 'cpu', {'operations': 1e12, 'bytes': 1e11}, 2)
    names = ['smolvla 2views', 'smolvla 2views new prompt', 'smolvla 2views jump']
    assert [row.work for row in rows] == names
    assert rows[2].ours < rows[2].spread['free'], 'guided chunks join no better'
    spread = rows[0].spread
    assert {'p50', 'p99', 'runs', 'host', 'images', 'prefix', 'steps'} <= set(spread)
    assert spread['identical'] == 1.0
    assert rows[0].floor['value'] > 0 and 'TFLOP' in rows[0].floor['how']


def test_changed_bits_are_told() -> None:
    """The planted fault: noise that goes on over a reset, and the row says so."""
    measured = Measured('pi0', 1, 'cpu')
    first = measured.act()
    assert policy.identical(measured, first)
    reset = measured.policy.reset
    measured.policy.reset = lambda seed: reset(seed + 1)  # type: ignore[method-assign]
    assert not policy.identical(measured, first)


def test_operations_are_those_of_the_published_sizes() -> None:
    """π0.5 with two views: 3.3 TFLOP before the steps, and 0.62 GB of weights for each."""
    work = operations(FULL['pi05'], 'pi05', 2, PROMPTS['pi05'])
    assert work['prefix operations'] == pytest.approx(3.3e12, rel=0.03)
    halved = operations(FULL['pi05'], 'pi05', 2, PROMPTS['pi05'], float8=True)
    assert halved == {**work, 'step bytes': work['step bytes'] / 2}
    assert work['step bytes'] == pytest.approx(0.622e9, rel=0.01)


def test_replays_are_counted_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row says how often a replay allocated, and if one had other bits.

    The planted fault: noise that is not the same for two replays.
    """
    row = policy.replay_row('cpu', 2)
    assert row.work == 'allocations'
    assert row.spread == {'replays': 2.0, 'identical': 1.0, 'steps': 2.0}

    class Running(Measured):
        def replay(self) -> None:
            self.policy.counter.tensor.random_(1, 1000)
            super().replay()

    monkeypatch.setattr(policy, 'Measured', Running)
    assert policy.replay_row('cpu', 3).spread['identical'] == 0.0


def test_the_cosine_is_the_worst_of_the_actions() -> None:
    """One action that points elsewhere shows, however many agree."""
    a = np.ones((4, 3), np.float32)
    b = a.copy()
    assert policy.off(a, b) == pytest.approx(0.0)
    b[2] = [1, -1, 0]
    assert policy.off(a, b) == pytest.approx(1.0)


def test_precisions_are_compared_on_the_same_weights() -> None:
    """bfloat16 and float8 are near float32 and not equal to it."""
    rows = list(policy.cosine_rows('cpu', 'pi0', 1))
    assert [row.work for row in rows] == [
        'pi0 1view float8 off bfloat16', 'pi0 1view bfloat16 off float32',
    ]  # fmt: skip
    assert all(0 < row.ours < 0.02 for row in rows), rows


def test_a_peer_that_is_not_there_says_why() -> None:
    """No figure without its reason; rows that are no whole chunk have no peer."""
    rows = [Row('pi05 2views', 1.0, 'ms'), Row('pi05 2views new prompt', 1.0, 'ms')]
    policy_peers.compare(rows, 'cpu', policy_peers.PEERS, lambda line: None)
    assert set(rows[0].peers) == set(policy_peers.PEERS) and not rows[1].peers
    assert all(isinstance(reason, str) and reason for reason in rows[0].peers.values())


def test_a_start_is_measured_from_outside() -> None:
    """A process that imports, captures and acts once; the parts are in order."""
    seconds, parts = policy_ready.start('smolvla', 1, 'cpu', '/nonexistent-cache')
    assert 0 < parts['imports'] <= parts['captured'] <= seconds
