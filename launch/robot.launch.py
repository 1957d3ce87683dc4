"""A real robot: gate, brain and supervisor beside the robot's own driver.

The driver publishes `robot/state` and images, applies `gate/command` (or what the gate sends to a
ros2_control controller), and offers `robot/set_epoch`. See docs/real-robot.md.
"""

from flashrt_ros.nodes.launching import description


def generate_launch_description():
    return description(simulated=False)
