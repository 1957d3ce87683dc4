"""What the launch files start. Everything but `description` runs without `launch`, and is tested.

A launch file's arguments become `Choice`, which is checked; `plan` makes of it what is started and
with which files and parameters; `description` hands that to `ros2 launch`. A choice that cannot be
is one line, and nothing starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes.system import LOCKSTEP, PACKAGE, Process, processes
from flashrt_ros.share import config

ARGUMENTS = {
    'robot': ('drawer', 'parameter file of the robot: config/robots/ROBOT.yaml, or a path'),
    'policy_file': (
        'drawer',
        'parameter file of the policy: config/policies/FILE.yaml, or a path',
    ),
    'policy': ('', 'name of shipped weights, or a checkpoint folder; empty = as the file says'),
    'device': ('cpu', 'where the policy runs: cpu, cuda or cuda:N'),
    'namespace': ('', 'prefix of every node, topic and service; one per arm'),
    'planner_apart': ('false', 'the planner in a process of its own: true or false'),
    'recorder': ('false', 'record every episode: true or false'),
    'lockstep': ('false', 'the simulated world waits for the robot: true or false'),
    'respawn': ('true', 'start the gate again when it dies: true or false'),
    'log_level': ('info', 'debug, info, warn or error'),
}
KEYSTORE = ('', 'folder that scripts/make_keystore made: enclaves, keys and permissions')
ARMS = ('left,right', 'namespaces of the arms, with commas')
ARM_ROBOTS = ('', 'parameter file of each arm, with commas; empty = `robot` for all')
LEVELS = ('debug', 'info', 'warn', 'error')


class LaunchError(FlashrtError):
    """An argument of a launch file has a value it cannot have."""


@dataclass(frozen=True)
class Started:
    """One process as it is started: files first, then what differs from them."""

    process: Process
    namespace: str
    files: tuple[str, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    respawn: bool = False
    enclave: str = ''


def file_of(kind: str, name: str) -> str:
    """Return the parameter file ``name`` of a robot or policy.

    Raises:
        LaunchError: There is none; the message lists those there are.
    """
    if os.sep in name and os.path.isfile(name):
        return name
    folder = config('gate.yaml').parent / kind
    path = folder / f'{name}.yaml'
    if not path.is_file():
        there = ', '.join(sorted(p.stem for p in folder.glob('*.yaml'))) or 'none'
        raise LaunchError(f'no file {path} for {kind} {name!r}: give a path, or one of {there}')
    return str(path)


def plan(given: Mapping[str, str], simulated: bool) -> list[Started]:
    """Return what is started, in the order of activation.

    Raises:
        LaunchError: An argument has a value it cannot have.
    """
    choice = {name: given.get(name, default) for name, (default, _) in ARGUMENTS.items()}
    if choice['log_level'] not in LEVELS:
        raise LaunchError(f'log_level is {choice["log_level"]!r}; it must be {", ".join(LEVELS)}')
    space = choice['namespace'].strip('/')
    if space and not space.replace('/', '').replace('_', '').isalnum():
        raise LaunchError(f'namespace {space!r}: letters, digits, _ and / alone')
    extra = (file_of('robots', choice['robot']), file_of('policies', choice['policy_file']))
    found = []
    words = ('planner_apart', 'recorder', 'lockstep')
    for process in processes(simulated, *(_truth(choice, word) for word in words)):
        params = dict(process.params)
        if process.node == 'brain':
            params['device'] = choice['device']
        if process.node in ('brain', 'planner') and choice['policy']:
            params['policy'] = choice['policy']
        own = [str(config(file)) for file in process.config if file != LOCKSTEP]
        last = [str(config(file)) for file in process.config if file == LOCKSTEP]
        files = (*own, *extra, *last)
        respawn = process.respawn and _truth(choice, 'respawn')
        found.append(Started(process, space, files, params, respawn))
    return found


def plan_arms(given: Mapping[str, str], simulated: bool) -> list[Started]:
    """Return what is started for several arms, each in a namespace of its own.

    Raises:
        LaunchError: Two arms have one name, or robots and arms do not match.
    """
    arms = [name.strip() for name in given.get('arms', ARMS[0]).split(',') if name.strip()]
    robots = [name.strip() for name in given.get('robots', '').split(',') if name.strip()]
    robots = robots or [given.get('robot', ARGUMENTS['robot'][0])] * len(arms)
    if len(set(arms)) != len(arms) or not arms:
        raise LaunchError(f'arms are {", ".join(arms) or "none"}; each needs a name of its own')
    if len(robots) != len(arms):
        raise LaunchError(f'{len(robots)} robots for {len(arms)} arms: give one for each, or none')
    found: list[Started] = []
    for arm, robot in zip(arms, robots, strict=True):
        space = '/'.join(filter(None, (given.get('namespace', ''), arm)))
        found += plan({**given, 'namespace': space, 'robot': robot}, simulated)
    return found


def _truth(choice: Mapping[str, str], name: str) -> bool:
    if choice[name].lower() not in ('true', 'false'):
        raise LaunchError(f'{name} is {choice[name]!r}; it must be true or false')
    return choice[name].lower() == 'true'


def description(simulated: bool, secure: bool = False, arms: bool = False) -> Any:
    """Return a LaunchDescription that configures and activates every node of the plan."""
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, OpaqueFunction

    arguments = dict(ARGUMENTS)
    if secure:
        arguments['keystore'] = KEYSTORE
    if arms:
        arguments.update(arms=ARMS, robots=ARM_ROBOTS)
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in arguments.items()
    ]
    start = OpaqueFunction(function=_start, args=[tuple(arguments), simulated, secure, arms])
    return LaunchDescription([*declared, start])


def _start(
    context: Any, names: tuple[str, ...], simulated: bool, secure: bool, arms: bool
) -> list[Any]:
    """Return the actions for the arguments as they were given; one line where they cannot be."""
    from launch.actions import LogInfo, SetEnvironmentVariable, Shutdown
    from launch.substitutions import LaunchConfiguration

    from flashrt_ros.nodes import security

    given = {name: LaunchConfiguration(name).perform(context) for name in names}
    try:
        started = (plan_arms if arms else plan)(given, simulated)
        if secure:
            started = security.enclaved(started)
            security.require(given['keystore'], started)
    except FlashrtError as error:
        return [LogInfo(msg=f'flashrt: {error}'), Shutdown(reason=str(error))]
    variables = security.environment(given['keystore']) if secure else {}
    if 'FASTDDS_DEFAULT_PROFILES_FILE' not in os.environ:
        variables['FASTDDS_DEFAULT_PROFILES_FILE'] = str(config('fastdds.xml'))
    actions = [SetEnvironmentVariable(name, value) for name, value in variables.items()]
    for one in started:
        actions += _node(one, given['log_level'])
    return actions


def _node(one: Started, log_level: str) -> list[Any]:
    """Return the actions that start a node, configure it, and activate it once it is ready."""
    from launch.actions import EmitEvent, RegisterEventHandler
    from launch.events import matches_action
    from launch_ros.actions import LifecycleNode
    from launch_ros.event_handlers import OnStateTransition
    from launch_ros.events.lifecycle import ChangeState
    from lifecycle_msgs.msg import Transition

    node = LifecycleNode(
        package=PACKAGE,
        executable=one.process.executable,
        name=one.process.node,
        namespace=one.namespace,
        parameters=[*one.files, dict(one.params)],
        ros_arguments=[
            '--log-level', log_level, *(('--enclave', one.enclave) if one.enclave else ()),
        ],
        respawn=one.respawn,
        output='screen',
    )  # fmt: skip
    if one.process.autostart:
        return [node]

    def change(transition: int) -> Any:
        event = ChangeState(lifecycle_node_matcher=matches_action(node), transition_id=transition)
        return EmitEvent(event=event)

    ready = OnStateTransition(
        target_lifecycle_node=node,
        start_state='configuring',
        goal_state='inactive',
        entities=[change(Transition.TRANSITION_ACTIVATE)],
    )
    return [node, RegisterEventHandler(ready), change(Transition.TRANSITION_CONFIGURE)]
