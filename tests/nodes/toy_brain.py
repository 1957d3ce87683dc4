"""The brain's executable with the toy policy of tests/control in the place of weights."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from toy_policy_node import Toy  # noqa: E402

from flashrt_ros.nodes.brain import Brain  # noqa: E402
from flashrt_ros.nodes.spin import run  # noqa: E402


class ToyBrain(Toy, Brain):
    """A brain whose policy needs no weights."""


if __name__ == '__main__':
    run(ToyBrain)
