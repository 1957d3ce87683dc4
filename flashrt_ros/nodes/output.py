"""Commands as what drives a robot: ControlCommand, and beside it what ros2_control takes.

A forward command controller reads Float64MultiArray on `~/commands`; a joint trajectory controller
reads JointTrajectory on `~/joint_trajectory`. Both carry joint names' order, units and limits as
declared by parameters; a hold is sent like any other command, for that is what stops the robot.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from std_msgs.msg import Float64MultiArray, MultiArrayDimension

from flashrt_interfaces.msg import ControlCommand
from flashrt_ros.control.types import Command
from flashrt_ros.nodes import qos
from flashrt_ros.nodes.convert import command_to_msg
from flashrt_ros.nodes.params import Param, ParameterError

COMMANDS, TRAJECTORY = 'commands', 'joint_trajectory'


def output_params(default: str) -> tuple[Param, ...]:
    """Return the parameters; ``default`` is the word for nothing beside this package's types."""
    return (
        Param(
            'output',
            default,
            'what is sent beside it: Float64MultiArray on ~/commands, or JointTrajectory on '
            '~/joint_trajectory',
            choices=(default, COMMANDS, TRAJECTORY),
        ),
        Param('joint_names', [''], 'names of the entries of an action, in its order'),
        Param('joint_units', [''], 'unit of each entry, for people: m, rad, m/tick, effort'),
        Param('point_s', 0.05, 'time a trajectory gives its one point, in s', 0.0001, 10.0),
    )


class Output:
    """Sends one command after the other.

    Args:
        node: Who sends.
        p: Its parameters, with those of `output_params`.
        topic: Of the ControlCommand.
    """

    def __init__(self, node: Any, p: SimpleNamespace, topic: str) -> None:
        self._node, self._p = node, p
        self._names = [name for name in p.joint_names if name]
        self._command = node.create_publisher(ControlCommand, topic, qos.STATE_PUB)
        self._array = self._trajectory = None
        if p.output == COMMANDS:
            self._array = node.create_publisher(Float64MultiArray, '~/commands', qos.STATE)
        elif p.output == TRAJECTORY:
            from trajectory_msgs.msg import JointTrajectory

            self._trajectory = node.create_publisher(
                JointTrajectory, '~/joint_trajectory', qos.STATE
            )

    def check(self, action_dim: int) -> None:
        """Refuse names and units that do not fit an action of ``action_dim`` entries."""
        units = [unit for unit in self._p.joint_units if unit]
        for what, given in (('joint_names', self._names), ('joint_units', units)):
            needed = what == 'joint_names' and self._p.output == TRAJECTORY
            if len(given) != action_dim and (given or needed):
                raise ParameterError(
                    f'{self._node.get_name()}: parameter {what} has {len(given)} entries and an '
                    f'action has {action_dim}; name each entry, in the order of the action'
                )

    def send(self, command: Command) -> None:
        """Publish ``command``."""
        stamp = self._node.get_clock().now().to_msg()
        self._command.publish(command_to_msg(command, stamp))
        if self._array is not None:
            values = [float(v) for v in command.action]
            msg = Float64MultiArray(data=values)
            label = ','.join(self._names) or 'action'
            msg.layout.dim = [MultiArrayDimension(label=label, size=len(values), stride=1)]
            self._array.publish(msg)
        if self._trajectory is not None:
            self._trajectory.publish(self._point(command))

    def _point(self, command: Command) -> Any:
        from builtin_interfaces.msg import Duration
        from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

        nanoseconds = round(self._p.point_s * 1e9)
        reach = Duration(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9)
        values = [float(v) for v in command.action]
        point = JointTrajectoryPoint(positions=values, time_from_start=reach)
        return JointTrajectory(joint_names=self._names, points=[point])
