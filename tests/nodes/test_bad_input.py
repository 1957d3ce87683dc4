"""What a robot or its set-up may do wrong, over ROS: each is a hold and a sentence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from brain_stand import PIXELS, BrainStand, brain_stand
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.nodes import qos
from flashrt_ros.nodes.convert import image_to_msg
from flashrt_ros.nodes.lifecycle import LifecycleError

pytestmark = pytest.mark.xdist_group('ros')
NAMES = "['j1', 'j2', 'j3', 'j4']"


@pytest.fixture(scope='module')
def stand() -> Iterator[BrainStand]:
    """A policy that also sends what a forward command controller reads."""
    with brain_stand(output='commands', flood_per_tick=20) as it:
        it.begin()
        yield it


def test_commands_for_a_forward_controller(stand: BrainStand) -> None:
    """Float64MultiArray on ~/commands holds the numbers of the ControlCommand of the same tick."""
    heard: list[list[float]] = []
    stand.operator.node.create_subscription(
        Float64MultiArray, 'brain/commands', lambda m: heard.append(list(m.data)), qos.TELEMETRY
    )
    assert stand.moves()
    assert stand.poll(lambda: stand.moves() and bool(heard))
    assert heard[-1] in [list(m.action) for m in stand.sent]


def test_a_wrong_joint_count(stand: BrainStand) -> None:
    """Five numbers for a policy of four: hold with the sentence, one line, and on with four."""
    words = 'proprioception has shape [5]; it must be [4]'
    for _ in range(2):
        assert stand.holds(words, proprioception=[0.1] * 5)
    assert stand.moves()
    assert stand.says_once(words)


@pytest.mark.parametrize(
    ('shift', 'words'),
    [(3600.0, 'ms in the future; the clocks of robot and brain must agree'), (-3600.0, 'ms old')],
)
def test_clock_jumps(stand: BrainStand, shift: float, words: str) -> None:
    """The robot's clock jumps by an hour, and back: hold with the sentence, then on."""
    assert stand.moves()
    stand.shift_s = shift
    assert stand.holds(words)
    stand.shift_s = 0.0
    assert stand.moves()


def test_a_flood_of_images(stand: BrainStand) -> None:
    """Hundreds of images within a tick: one line says so, the robot's ticks are answered."""
    assert stand.moves()
    old = stand.stamp()
    words = 'flood: more than 20 messages on robot/images/front'

    def said() -> bool:  # no robot state in between: all of it is one tick
        for _ in range(10):
            stand.images['front'].publish(image_to_msg(PIXELS, old, 'front'))
        return bool(stand.lines(words))

    assert stand.poll(said)
    assert stand.moves()
    assert stand.says_once(words)


def test_a_real_robots_topics() -> None:
    """Cameras and joint states on topics of their own, paired by time, a trajectory out."""
    with brain_stand(
        cameras={'front': '/cam/front'},
        camera_topics="['front=/cam/front']",
        joint_topic='/joints',
        proprio_joints=NAMES,
        slop_s=0.2,
        output='joint_trajectory',
        joint_names=NAMES,
    ) as stand:
        heard: list[JointTrajectory] = []
        node = stand.operator.node
        node.create_subscription(
            JointTrajectory, 'brain/joint_trajectory', heard.append, qos.TELEMETRY
        )
        joints = node.create_publisher(JointState, '/joints', qos_profile_sensor_data)
        stand.begin()
        assert stand.poll(lambda: joints.get_subscription_count() > 0)

        def say(*names: str) -> None:
            msg = JointState(name=list(names), position=[0.1] * len(names))
            msg.header.stamp = stand.stamp()
            joints.publish(msg)

        def moves() -> bool:
            say('j4', 'gripper', 'j1', 'j2', 'j3')  # any order, and one more
            return (command := stand.answered()) is not None and not command.held

        assert stand.poll(moves)
        assert stand.poll(lambda: bool(heard))
        assert heard[-1].joint_names == ['j1', 'j2', 'j3', 'j4']
        assert len(heard[-1].points[0].positions) == 4
        words = "no 'j3'; the policy needs 4: j1, j2, j3, j4"

        def held() -> bool:
            say('j1', 'j2')
            return (command := stand.answered()) is not None and words in command.reason

        assert stand.poll(held)
        assert stand.says_once(words)
        assert stand.poll(moves)


def test_a_camera_that_cannot_be_heard() -> None:
    """A best-effort camera and a reader that asks for reliable delivery: said loudly."""
    with brain_stand(image_reliability='reliable') as stand:
        camera = stand.operator.node.create_publisher(
            Image, 'robot/images/front', qos_profile_sensor_data
        )
        stand.lifecycle.bring_up(['brain'])
        words = 'nothing arrives on robot/images/front: its publisher is best-effort'
        assert stand.poll(lambda: bool(stand.lines(words)))
        assert 'set image_reliability to best_effort' in stand.lines(words)[0]
        assert camera.get_subscription_count() == 0 or stand.lines(words)


def test_best_effort_readers_hear_both() -> None:
    """The default reader is matched by reliable and by best-effort cameras; nothing is said."""
    with brain_stand(image_reliability='best_effort') as stand:
        loose = stand.operator.node.create_publisher(
            Image, 'robot/images/front', qos_profile_sensor_data
        )
        stand.begin()
        assert stand.poll(lambda: loose.get_subscription_count() > 0)
        assert stand.moves()
        assert not stand.lines('nothing arrives')


@pytest.mark.parametrize(
    ('params', 'words'),
    [
        (
            {'camera_topics': "['left=/cam/left']"},
            "camera_topics has 'left=/cam/left'; it must be KEY=TOPIC with one of these keys: "
            'front, wrist',
        ),
        (
            {'output': 'joint_trajectory', 'joint_names': "['j1', 'j2']"},
            'parameter joint_names has 2 entries and an action has 4',
        ),
        ({'lockstep': True, 'slop_s': 0.1}, 'slop_s must be 0'),
    ],
)
def test_parameters_that_do_not_fit_the_policy(params: dict, words: str) -> None:
    """An unknown camera, or names for another robot: the node does not configure, and says why."""
    with brain_stand(**params) as stand:
        with pytest.raises(LifecycleError, match='brain could not configure'):
            stand.lifecycle.bring_up(['brain'])
        assert stand.poll(lambda: bool(stand.lines(words)))
