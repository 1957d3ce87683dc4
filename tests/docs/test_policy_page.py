"""The page of the shipped policy says what was measured, and nothing else."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip('metaworld')

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def script() -> ModuleType:
    """scripts/policy_page.py as a module."""
    spec = importlib.util.spec_from_file_location('policy_page', ROOT / 'scripts/policy_page.py')
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_those_of_the_results(script: ModuleType) -> None:
    """Written again from the report the page stays as it is; with one success less it does not."""
    page = (ROOT / 'docs' / 'policy.md').read_text('utf-8')
    report = json.loads((ROOT / 'docs' / 'results' / 'mt50.json').read_text('utf-8'))
    assert report['policy'] == {'policy': 'mt50', 'device': 'cpu', 'execute': 8, 'delay': 0}
    assert script.filled(page, report['summary']) == page
    worse = copy.deepcopy(report['summary'])
    worse[0]['successes'] -= 1
    assert script.filled(page, worse) != page


def test_the_summary_is_of_the_episodes() -> None:
    """Every task has its twenty episodes, each with a seed of its own, counted as they ended."""
    report = json.loads((ROOT / 'docs' / 'results' / 'mt50.json').read_text('utf-8'))
    for row in report['summary']:
        mine = [e for e in report['episodes'] if e['environment'] == row['environment']]
        assert len(mine) == len({e['seed'] for e in mine}) == row['episodes'] == 20
        assert sum(e['success'] for e in mine) == row['successes']
