"""The table of interfaces is the running graph; documents and security policies follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness import looked_for, toy_system

from flashrt_ros.nodes import policies
from flashrt_ros.nodes.interface_table import CAMERA, NODES, OWN, TYPES
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.share import share

pytestmark = pytest.mark.xdist_group('ros')
MAYBE = {'planner/decide'}  # where the planner is a language model
EVERYBODYS = ('/rosout', '/parameter_events', 'transition_event')


@pytest.fixture(scope='module', params=[False, True], ids=['in the brain', 'apart'])
def graph(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Operator, bool]]:
    """A whole system with a recorder, up."""
    apart = request.param
    skills = {'skills': "['open the drawer', 'close the drawer']"}
    overrides: dict = {'planner': skills} if apart else {}
    overrides['recorder'] = {'folder': str(tmp_path_factory.mktemp('recordings'))}
    with toy_system(overrides, planner_apart=apart, recorder=True) as (_, operator, _):
        yield operator, apart


def seen(found: list[tuple[str, list[str]]]) -> dict[str, str]:
    """Return name -> type, without what every node has, cameras under one name."""
    kept = {}
    for name, types in found:
        if any(name.endswith(own) for own in EVERYBODYS) or '/_action/' in name:
            continue
        short = name if name == '/diagnostics' else name.lstrip('/')
        for camera in ('front', 'wrist'):
            short = short.replace(f'robot/images/{camera}', CAMERA)
        kept[short] = types[0].replace('/msg/', '/').replace('/srv/', '/')
    return kept


def test_every_node_does_what_the_table_says(graph: tuple[Operator, bool]) -> None:
    """Topics and services of each running node, by name and type, are those of its table."""
    operator, apart = graph
    node = operator.node
    for running in ('gate', 'sim', 'brain', 'supervisor', 'recorder', *(['planner'] * apart)):
        it = NODES['policy' if running == 'brain' and apart else running]
        for ask, wanted in (
            (node.get_publisher_names_and_types_by_node, {*it.publishes, *OWN}),
            (node.get_subscriber_names_and_types_by_node, {*it.reads}),
            (node.get_service_names_and_types_by_node, {*it.offers}),
        ):

            def found(ask: Any = ask, running: str = running) -> dict[str, str]:
                every = seen(ask(running, '/')).items()
                return {n: t for n, t in every if not n.startswith(f'{running}/') or n in TYPES}

            # What was made a moment ago is not known to everybody yet.
            looked_for(operator, lambda f=found, w=wanted: set(f()) - MAYBE == w - MAYBE)
            assert set(found()) - MAYBE == wanted - MAYBE, (running, ask.__name__)
            assert {n: TYPES[n] for n in found()} == found()
        actions = {n for n, _ in _actions(node, running)}
        assert actions == {f'/{name}' for name in it.actions}


def _actions(node: Any, name: str) -> Any:
    from rclpy.action import get_action_server_names_and_types_by_node as ask

    return ask(node, name, '/')


@pytest.mark.parametrize('node', NODES)
def test_policies_follow_the_table(node: str) -> None:
    """The shipped policy file of each node is the one the table gives."""
    path = share() / 'config' / 'security' / f'{node}.xml'
    assert path.read_text() == policies.policy(node)


def test_a_policy_allows_nothing_else() -> None:
    """Least privilege: the gate may not write commands, the brain may not open the gate."""
    assert '<topic>brain/command</topic>' not in _part(policies.policy('gate'), 'publish')
    assert '<topic>brain/command</topic>' in _part(policies.policy('gate'), 'subscribe')
    assert 'gate/set_epoch' not in policies.policy('brain')
    assert 'gate/set_epoch' in policies.policy('supervisor')


def _part(text: str, right: str) -> str:
    return text.split(f'<topics {right}=')[1].split('</topics>')[0]
