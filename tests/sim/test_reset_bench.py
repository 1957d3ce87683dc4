"""Promise: the reset benchmark measures every row that it names; only same chunks count."""

from __future__ import annotations

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_ros.bench import reset


def test_every_row_is_there(tiny_policy) -> None:
    """With its peers, for one environment and a handful of resets."""
    rows = reset.measure(
        'cpu', policy=tiny_policy, counts=(1,), resets=3, runs=3, seconds=0.05, log=lambda _: None
    )
    assert [row.work for row in rows] == [
        'reset capsule', 'reset plain', 'snapshot', 'fork 4', 'fork 4 every turn',
        'identical first chunks', 'env reset', 'resets 1', 'steps 1',
    ]  # fmt: skip
    found = {row.work: row for row in rows}
    assert set(found['reset capsule'].peers) == {'plain', 'rebuild'}
    assert found['reset capsule'].floor['value'] > 0
    assert found['identical first chunks'].ours == 3
    assert all(row.ours > 0 for row in rows)
    assert all(set(found[work].peers) == {'processes'} for work in ('resets 1', 'steps 1'))


def test_a_reset_that_forgets_is_not_counted(tiny_policy, monkeypatch) -> None:
    """Negative control: with the simulator left where it was, first chunks differ."""
    live = reset.begin(tiny_policy, 'cpu')
    monkeypatch.setattr(live.scene, 'set_state', lambda state: live.scene.restart_clock())
    assert reset.chunk_row(live, 3).ours < 3
    live.close()
