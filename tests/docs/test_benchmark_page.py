"""Promise: docs/benchmarks.md and its pictures are what the committed reports make of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from flashrt_ros.bench import page

DOCS = Path(__file__).parents[2] / 'docs'
REPORT = {
    'name': 'capsule',
    'machine': {'device': 'cpu', 'cpu': 'a', 'cores': 2},
    'versions': {'torch': '2'},
    'commit': 'c' * 40,
    'rows': [
        {
            'work': 'robot <restore>',
            'ours': 30.5,
            'unit': 'us',
            'better': 'lower',
            'peers': {'full-copy': 405.0, 'other': 'not | there'},
            'floor': {'value': 13.3, 'how': 'x'},
            'spread': {'p99': 40.0},
        }
    ],
}


def test_the_page_agrees_with_the_reports() -> None:
    """Run `python -m flashrt_ros.bench.page` after a report was added."""
    for path, text in page.pages(DOCS).items():
        assert path.read_text() == text, f'{path.name} is stale'


def test_reports_are_named_after_benchmark_and_machine() -> None:
    """NAME-MACHINE.json, and NAME is what the report says."""
    for name, report in page.reports(DOCS / 'benchmarks').items():
        assert re.fullmatch(r'[a-z]+(-[a-z0-9]+)+', name)
        assert name.startswith(report['name'] + '-')


def test_a_changed_report_makes_the_page_stale(tmp_path: Path) -> None:
    """Negative control: another figure is another page and another picture."""
    (tmp_path / 'benchmarks').mkdir()
    file = tmp_path / 'benchmarks' / 'capsule-x.json'
    file.write_text(json.dumps(REPORT))
    assert page.main(['--docs', str(tmp_path)]) == 0
    before = page.pages(tmp_path)
    assert all(path.read_text() == text for path, text in before.items())
    assert (
        '| robot <restore> | 30.5 | 40 | 405 | not / there | 13.3 | us |'
        in before[tmp_path / 'benchmarks.md']
    )
    REPORT['rows'][0]['ours'] = 31.5  # type: ignore[index]
    file.write_text(json.dumps(REPORT))
    assert all(path.read_text() != text for path, text in page.pages(tmp_path).items())


def test_an_empty_folder_makes_a_page_that_says_so(tmp_path: Path) -> None:
    """No report, no table."""
    assert 'No report' in page.pages(tmp_path)[tmp_path / 'benchmarks.md']
