"""The launch description of the process table: for `ros2 launch`, which is not on PyPI."""

from __future__ import annotations

from typing import Any

from flashrt_ros.nodes.system import PACKAGE, Process, processes
from flashrt_ros.share import config

ARGUMENTS = {
    'policy': ('drawer', 'name of shipped weights, or a checkpoint folder'),
    'device': ('cpu', 'where the policy runs: cpu, cuda or cuda:N'),
    'namespace': ('', 'prefix of every node, topic and service; one per arm'),
}


def parameters(process: Process, simulated: bool) -> list[Any]:
    """Return parameter files, then what differs from them."""
    files: list[Any] = [str(config(file)) for file in process.config]
    if process.node == 'supervisor':
        files.append({'simulator': simulated})
    return files


def description(simulated: bool) -> Any:
    """Return a LaunchDescription that configures and activates every node of the table."""
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, EmitEvent, RegisterEventHandler
    from launch.events import matches_action
    from launch.substitutions import LaunchConfiguration
    from launch_ros.actions import LifecycleNode
    from launch_ros.event_handlers import OnStateTransition
    from launch_ros.events.lifecycle import ChangeState
    from lifecycle_msgs.msg import Transition

    actions: list[Any] = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    for process in processes(simulated):
        extra: list[Any] = parameters(process, simulated)
        if process.node == 'brain':
            names = ('policy', 'device')
            extra.append({name: LaunchConfiguration(name) for name in names})
        node = LifecycleNode(
            package=PACKAGE,
            executable=process.executable,
            name=process.node,
            namespace=LaunchConfiguration('namespace'),
            parameters=extra,
            respawn=process.respawn,
            output='screen',
        )
        here = matches_action(node)
        configure = ChangeState(
            lifecycle_node_matcher=here, transition_id=Transition.TRANSITION_CONFIGURE
        )
        activate = ChangeState(
            lifecycle_node_matcher=here, transition_id=Transition.TRANSITION_ACTIVATE
        )
        ready = OnStateTransition(
            target_lifecycle_node=node,
            start_state='configuring',
            goal_state='inactive',
            entities=[EmitEvent(event=activate)],
        )
        actions += [node, RegisterEventHandler(ready), EmitEvent(event=configure)]
    return LaunchDescription(actions)
