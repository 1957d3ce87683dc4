"""What ROS 2 reads from the environment, set where nobody else has: for runner, tools and tests.

No rclpy here: some of it must be there before rclpy is loaded.
"""

from __future__ import annotations

import os
import sysconfig

from flashrt_ros.share import config


def settle(local: bool = False) -> None:
    """Set what is missing in this process's environment.

    Args:
        local: Stay on this machine, whatever was set before.
    """
    env = os.environ
    if local:
        env['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    env.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    env.setdefault('AMENT_PREFIX_PATH', sysconfig.get_path('data'))  # ROS from wheels
    env.setdefault('FASTDDS_DEFAULT_PROFILES_FILE', str(config('fastdds.xml')))
    env.setdefault('MUJOCO_GL', 'egl')  # no screen is needed
