"""A real robot: gate, brain and supervisor beside the robot's own driver.

The driver publishes `robot/state` and `robot/images/CAMERA`, applies `gate/command`, and offers
`robot/set_epoch`.
"""

from flashrt_ros.nodes.launching import description


def generate_launch_description():
    return description(simulated=False)
