"""The brain's executable with the toy policy of tests/control in the place of weights."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / 'control'))

from flashrt_ros.nodes.brain import Brain  # noqa: E402
from flashrt_ros.nodes.spin import run  # noqa: E402


class ToyBrain(Brain):
    """A brain whose policy needs no weights."""

    def load_policy(self, ctx: Any, port: Any) -> Any:
        """Return the toy policy."""
        from toy_policy import ToyPolicy

        return ToyPolicy(ctx, port)

    def subgoal_length(self) -> int:
        """Return what the toy policy reads."""
        return 64


if __name__ == '__main__':
    raise SystemExit(run(ToyBrain, threads=3))
