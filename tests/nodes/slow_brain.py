"""The toy brain on a machine that is planted as slow: some ticks take it long to answer."""

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from toy_policy_node import Toy  # noqa: E402

from flashrt_interfaces.msg import RobotState  # noqa: E402
from flashrt_ros.nodes.brain import Brain  # noqa: E402
from flashrt_ros.nodes.spin import run  # noqa: E402

SLOW = {9: 1.0, 10: 0.4, 16: 0.7, 31: 0.3}  # tick -> seconds it takes


class SlowBrain(Toy, Brain):
    """A brain that has other things to do."""

    def decide(self, msg: RobotState) -> None:
        """Take long."""
        threading.Event().wait(SLOW.get(msg.tick, 0.0))
        super().decide(msg)


if __name__ == '__main__':
    run(SlowBrain)
