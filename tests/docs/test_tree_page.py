"""Promise: every figure in the tables of docs/trees.md is that of the committed report."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from tree_page import filled

from flashrt_sim.improve.choose import choose
from flashrt_sim.tree.report import summarise
from flashrt_sim.tree.rollouts import as_result
from flashrt_sim.tree.search import Search

ROOT = Path(__file__).parents[2]
REPORT = json.loads((ROOT / 'docs' / 'results' / 'tree.json').read_text('utf-8'))
PAGE = (ROOT / 'docs' / 'trees.md').read_text('utf-8')


def test_tables_are_generated_from_the_report() -> None:
    """Writing them again changes nothing."""
    assert filled(PAGE, REPORT['summary']) == PAGE


def test_another_report_gives_another_page() -> None:
    """Negative control: a figure that changed would be noticed, in each of the tables."""
    for change in (('all', 'tree', 'successes'), ('gain', 'over_whole', 'only_tree')):
        summary = copy.deepcopy(REPORT['summary'])
        summary[change[0]][change[1]][change[2]] += 1
        assert filled(PAGE, summary) != PAGE
    summary = copy.deepcopy(REPORT['summary'])
    summary['within'][0]['tree'] += 1
    assert filled(PAGE, summary) != PAGE


def test_the_summary_is_that_of_the_trees() -> None:
    """Counted again from every start in the report; no tree took more than its budget."""
    results = [as_result(start) for start in REPORT['starts']]
    search, limit = Search(**REPORT['search']), REPORT['tasks'][0]['limit']
    assert summarise(results, search, limit) == REPORT['summary']
    for result in results:
        taken = sum(fork.length * len(fork.scores) for fork in result.tree.forks)
        assert taken == result.tree.steps <= search.steps(limit)
        assert result.whole is not None and result.whole.steps <= search.steps(limit)


def test_the_tasks_are_the_ten_worst() -> None:
    """By the table of the shipped policy, measured with other seeds; nothing is hand-picked."""
    table = ROOT / 'docs' / 'results' / 'mt50.json'
    chosen = [task['environment'] for task in REPORT['tasks']]
    assert chosen == [task.environment for task in choose('worst:10', table, 500)[0]]
    assert REPORT['seed'] != json.loads(table.read_text('utf-8'))['seed']
