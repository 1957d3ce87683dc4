"""What the launch files would start: arguments, parameter files, several arms, and security."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import launching, security
from flashrt_ros.nodes.launching import ARGUMENTS, LaunchError, plan, plan_arms
from flashrt_ros.nodes.security import SecurityError
from flashrt_ros.nodes.system import APART, LOCKSTEP, PACKAGE, PROCESSES
from flashrt_ros.share import share

ROOT = share()
FILES = [
    ROOT / 'config' / LOCKSTEP,
    *sorted((ROOT / 'config').glob('robots/*.yaml')),
    *sorted((ROOT / 'config').glob('policies/*.yaml')),
]


def test_files_come_after_their_defaults() -> None:
    """Each process gets its own file, then the robot's, then the policy's, then what differs."""
    started = {one.process.node: one for one in plan({'robot': 'arm7'}, simulated=False)}
    assert list(started) == ['gate', 'brain', 'supervisor']
    names = [Path(file).name for file in started['brain'].files]
    assert names == ['policy.yaml', 'planner.yaml', 'arm7.yaml', 'drawer.yaml']
    assert all(Path(file).is_file() for one in started.values() for file in one.files)
    assert started['brain'].params == {'device': 'cpu'}
    assert started['supervisor'].params == {'simulator': False, 'planner_apart': False}
    assert started['gate'].respawn
    assert not started['brain'].respawn


def test_arguments_change_what_is_started() -> None:
    """A planner apart, a recorder, another policy on another device, nothing respawned."""
    given = {
        'planner_apart': 'true', 'recorder': 'true', 'policy': 'mine', 'device': 'cuda',
        'respawn': 'false', 'namespace': 'left',
    }  # fmt: skip
    started = {one.process.node: one for one in plan(given, simulated=True)}
    assert list(started) == ['recorder', 'gate', 'sim', 'brain', 'planner', 'supervisor']
    assert started['brain'].params == {'device': 'cuda', 'policy': 'mine'}
    assert started['planner'].params == {'policy': 'mine'}
    assert not any(one.respawn for one in started.values())
    assert {one.namespace for one in started.values()} == {'left'}


def test_lockstep_has_the_last_word() -> None:
    """Its file comes after the robot's and the policy's; a real robot has no lockstep."""
    started = plan({'lockstep': 'true'}, simulated=True)
    assert all(Path(one.files[-1]).name == LOCKSTEP for one in started)
    assert not any(LOCKSTEP in file for one in plan({}, simulated=True) for file in one.files)
    with pytest.raises(FlashrtError, match='a real one does not wait'):
        plan({'lockstep': 'true'}, simulated=False)


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        ({'robot': 'arm8'}, r"no file .*arm8.yaml for robots 'arm8': give a path, or one of"),
        ({'recorder': 'yes'}, "recorder is 'yes'; it must be true or false"),
        ({'log_level': 'loud'}, "log_level is 'loud'; it must be debug, info, warn, error"),
        ({'namespace': 'left arm'}, "namespace 'left arm': letters"),
    ],
)
def test_arguments_that_cannot_be(given: dict[str, str], words: str) -> None:
    """Each is one sentence, before anything starts."""
    with pytest.raises(LaunchError, match=words) as caught:
        plan(given, simulated=True)
    assert '\n' not in str(caught.value)


def test_several_arms() -> None:
    """Every arm has a gate, a brain and a supervisor of its own, with its own robot's file."""
    started = plan_arms({'arms': 'left, right', 'robots': 'arm7,drawer'}, simulated=False)
    assert [(one.namespace, one.process.node) for one in started] == [
        (arm, node) for arm in ('left', 'right') for node in ('gate', 'brain', 'supervisor')
    ]
    assert 'arm7.yaml' in started[0].files[-2]
    assert 'robots/drawer.yaml' in started[3].files[-2]
    with pytest.raises(LaunchError, match='each needs a name of its own'):
        plan_arms({'arms': 'left,left'}, simulated=False)
    with pytest.raises(LaunchError, match='1 robots for 2 arms'):
        plan_arms({'arms': 'left,right', 'robots': 'arm7'}, simulated=False)


def test_every_argument_is_documented() -> None:
    """`--show-args` prints a sentence for each argument."""
    assert all(text for _, text in ARGUMENTS.values())
    assert {'robot', 'policy_file', 'namespace', 'respawn'} <= set(ARGUMENTS)


@pytest.mark.parametrize('file', FILES, ids=lambda p: f'{p.parent.name}/{p.stem}')
def test_files_of_robots_and_policies(file: Path) -> None:
    """Each names nodes and parameters that exist, of the right type in range; lists agree."""
    declared = {}
    for process in (*PROCESSES, *APART):
        module = importlib.import_module(f'{PACKAGE}.nodes.{process.executable}')
        declared.setdefault(process.node, {}).update({p.name: p for p in module.PARAMS})
    for section, content in yaml.safe_load(file.read_text()).items():
        values = content['ros__parameters']
        known = declared[section.removeprefix('/**/')]
        for name, value in values.items():
            param = known[name]
            assert type(value) is type(param.default), name
            if param.low is not None and param.high is not None:
                assert param.low <= value <= param.high, name  # type: ignore[operator]
            if param.choices:
                assert value in param.choices, name
        sized = ('action_low', 'action_high', 'max_step', 'joint_names', 'joint_units')
        assert len({len(values[n]) for n in sized if n in values}) <= 1


def keystore(folder: Path, started: list) -> Path:
    """Lay out a keystore with every file there, and nothing real in them."""
    for one in started:
        place = folder / 'enclaves' / one.enclave.strip('/')
        place.mkdir(parents=True)
        for name in security.KEYS:
            (place / name).write_text('not a key')
            (place / name).chmod(0o600)
    return folder


def secure_plan() -> list:
    """Return a robot in enclaves."""
    return security.enclaved(plan({'namespace': 'left'}, simulated=False))


def test_every_node_has_an_enclave_of_its_own() -> None:
    """Enclaves are named by namespace and node."""
    names = [one.enclave for one in secure_plan()]
    assert names == ['/flashrt/left/gate', '/flashrt/left/brain', '/flashrt/left/supervisor']


def test_without_keys_nothing_starts(tmp_path: Path) -> None:
    """No keystore named, none there, a key missing, a key others can read: a sentence each."""
    started = secure_plan()
    with pytest.raises(SecurityError, match='no keystore was named: give keystore:=FOLDER'):
        security.require('', started)
    with pytest.raises(SecurityError, match='there is no keystore'):
        security.require(str(tmp_path / 'none'), started)
    folder = keystore(tmp_path / 'store', started)
    key = folder / 'enclaves' / 'flashrt' / 'left' / 'brain' / 'key.pem'
    key.chmod(0o644)
    with pytest.raises(SecurityError, match='can be read by others: chmod 600'):
        security.require(str(folder), started)
    key.unlink()
    with pytest.raises(SecurityError, match='enclave /flashrt/left/brain has no key.pem'):
        security.require(str(folder), started)


def test_a_middleware_without_security_starts_nothing(tmp_path: Path) -> None:
    """Where no secure node can be made, one line says which middleware and what would be right."""
    started = secure_plan()
    folder = keystore(tmp_path / 'store', started)
    with pytest.raises(SecurityError) as caught:
        security.require(str(folder), started)
    assert 'makes no secure node' in str(caught.value)
    assert 'built with DDS security' in str(caught.value)
    assert '\n' not in str(caught.value)
    assert security.environment(str(folder))['ROS_SECURITY_STRATEGY'] == 'Enforce'


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let `launch` and `launch_ros` be stand-ins; return the names of the actions made."""
    made: list[str] = []

    class Stand(ModuleType):
        def __getattr__(self, name: str) -> Any:
            def make(*given: Any, **named: Any) -> Any:
                made.append(name)
                return SimpleNamespace(perform=lambda _: ARGUMENTS.get(given[0], ('', ''))[0])

            return make

    for name in (
        'launch', 'launch.actions', 'launch.events', 'launch.substitutions', 'launch_ros.actions',
        'launch_ros.event_handlers', 'launch_ros.events.lifecycle',
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, Stand(name))
    return made


def test_nothing_starts_when_it_cannot_be_secure(stood_in: list[str]) -> None:
    """secure.launch.py without a keystore: one line, a shutdown, and no node; else the nodes."""
    names = (*ARGUMENTS, 'keystore')
    assert len(launching._start(None, names, simulated=False, secure=True, arms=False)) == 2
    assert [m for m in stood_in if m != 'LaunchConfiguration'] == ['LogInfo', 'Shutdown']
    stood_in.clear()
    launching._start(None, tuple(ARGUMENTS), simulated=False, secure=False, arms=False)
    assert stood_in.count('LifecycleNode') == 3  # the negative control
    assert 'Shutdown' not in stood_in


def test_launching_knows_the_files_it_is_named_in() -> None:
    """Every launch file is two lines over `description`, so all of them are checked alike."""
    for path in (ROOT / 'launch').glob('*.launch.py'):
        assert 'from flashrt_ros.nodes.launching import description' in path.read_text()
    assert callable(launching.description)
