"""Each node has a page, and its tables are those of the code; so is the recording in the docs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flashrt_ros.nodes import documents
from flashrt_ros.nodes.interface_table import NODES, TYPES
from flashrt_ros.nodes.report import facts
from flashrt_ros.nodes.report.read import read

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize('node', NODES)
def test_the_page_of_each_node(node: str) -> None:
    """Topics, services, parameters and states on the page are the code's."""
    text = (ROOT / 'docs' / 'nodes' / f'{node}.md').read_text()
    assert documents.filled(text, node) == text
    assert f'[{node}]({node}.md)' in (ROOT / 'docs' / 'nodes' / 'README.md').read_text()


def test_a_stale_page_is_found() -> None:
    """The negative control: one changed default, and the page is another."""
    text = (ROOT / 'docs' / 'nodes' / 'gate.md').read_text()
    stale = text.replace('`0.15`', '`0.25`')
    assert stale != text
    assert documents.filled(stale, 'gate') != stale


def test_every_interface_has_its_type() -> None:
    """Whatever a node has is typed in the table, and nothing is typed that nobody has."""
    named = {
        name
        for it in NODES.values()
        for part in (it.publishes, it.reads, it.offers, it.calls, it.actions)
        for name in part
    }
    assert named <= set(TYPES)
    assert set(TYPES) - named <= {'loop_stats', '/diagnostics'}


def test_the_recording_in_the_docs() -> None:
    """The shipped recording can be read: two subgoals, an interrupt, a warm re-entry, done."""
    found = read(ROOT / 'docs' / 'recordings' / 'drawer.mcap')
    summary = facts.summary(found, facts.told(found))
    assert summary['outcome'] == 'done'
    assert summary['subgoals_done'] == ['open the drawer', 'close the drawer']
    assert summary['reentry_ms'] is not None
    page = (ROOT / 'docs' / 'recordings' / 'drawer.html').read_text()
    assert summary['instruction'] in page
    assert page.count('data:image/png') == 4


@pytest.mark.parametrize('name', ['jetson/install', 'jetson/power', 'make_keystore'])
def test_scripts_for_the_robot(name: str) -> None:
    """Each is sound shell, and says in one line what is missing where it cannot run."""
    path = ROOT / 'scripts' / name
    subprocess.run(['bash', '-n', str(path)], check=True)
    done = subprocess.run([str(path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count('\n') == 1
