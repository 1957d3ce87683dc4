"""The policy's executable with the toy policy of tests/control in the place of weights."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / 'control'))

from flashrt_ros.nodes.policy_node import PolicyNode  # noqa: E402
from flashrt_ros.nodes.spin import run  # noqa: E402


class Toy:
    """Loads the toy policy."""

    def load_policy(self, ctx: Any, port: Any) -> Any:
        """Return the toy policy."""
        from toy_policy import ToyPolicy

        return ToyPolicy(ctx, port)

    def subgoal_length(self) -> int:
        """Return what the toy policy reads."""
        return 64


class ToyPolicyNode(Toy, PolicyNode):
    """A policy node that needs no weights."""


if __name__ == '__main__':
    run(ToyPolicyNode)
