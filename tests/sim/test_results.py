"""Result files: JSON and Parquet say the same, in one order, however the episodes came in."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('pyarrow')

from pyarrow import parquet

from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout.evaluation import Goal, Result, Stage, Task
from flashrt_sim.rollout.progress import Progress
from flashrt_sim.rollout.results import write_json, write_parquet
from flashrt_sim.rollout.station import Deployment

DRAWER = 'flashrt/Drawer-v0'
TASKS = [Task(DRAWER, (Goal('open the drawer', text),)) for text in ('öffne', 'open it')]


def made_up():
    """Three episodes of two tasks."""
    return [
        Result(
            DRAWER, task.name, task.start, number, 7 + number, number != 1, 40 + number,
            (Stage('open the drawer', task.name, number != 1, 40 + number),), 5, 6, 0,
        )
        for task in TASKS
        for number in range(3)
    ]  # fmt: skip


def test_both_files_hold_every_episode_in_one_order(tmp_path):
    """The same rows in both; shuffled results give the same bytes; other results do not."""
    results = made_up()
    shuffled = random.Random(3).sample(results, len(results))
    for name, given in (('a', results), ('b', shuffled), ('c', results[1:])):
        write_json(tmp_path / f'{name}.json', Deployment(), 7, TASKS, given)
        write_parquet(tmp_path / f'{name}.parquet', Deployment(), 7, TASKS, given)
    for kind in ('json', 'parquet'):
        first, second, fewer = ((tmp_path / f'{n}.{kind}').read_bytes() for n in 'abc')
        assert first == second != fewer
    report = json.loads((tmp_path / 'a.json').read_text('utf-8'))
    table = parquet.read_table(tmp_path / 'a.parquet')
    assert table.to_pylist() == report.pop('episodes')
    assert json.loads(table.schema.metadata[b'flashrt']) | {'summary': report['summary']} == report
    assert [row['successes'] for row in report['summary']] == [2, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f'{n}.{kind}' for n in 'abc' for kind in ('json', 'parquet')
    ], 'nothing else is left behind'


def test_a_file_cut_anywhere_keeps_what_is_whole(tmp_path):
    """For every length at which a kill may leave it: whole lines count, the rest is run again."""
    report, settings, results = tmp_path / 'r.json', {'policy': 'p'}, made_up()
    progress = Progress(report, settings)
    for result in results[:3]:
        progress.add(result)
    data = progress.path.read_bytes()
    for length in range(len(data) + 1):
        progress.path.write_bytes(data[:length])
        whole = max(0, data[:length].count(b'\n') - 1)
        assert Progress(report, settings).results == results[:whole]
        if length % 41:
            continue
        again = Progress(report, settings)
        again.add(results[5])
        assert Progress(report, settings).results == [*results[:whole], results[5]]
    progress.path.write_bytes(data + b'{}\n')
    with pytest.raises(SimulationError, match='no result'):
        Progress(report, settings)
