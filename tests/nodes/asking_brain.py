"""The toy brain with a planner that asks an oracle, and hands over on the device."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch  # noqa: E402
from toy_policy_node import Toy  # noqa: E402

from flashrt_ros.control import deciding  # noqa: E402
from flashrt_ros.control.planner import ScriptedPlanner  # noqa: E402
from flashrt_ros.control.text import encode  # noqa: E402
from flashrt_ros.nodes.brain import Brain  # noqa: E402
from flashrt_ros.nodes.spin import run  # noqa: E402


class Oracle:
    """Knows what comes next by rule, and writes the mailbox as a model's graph does."""

    def __init__(self, skills: Any, mailbox: Any) -> None:
        self.rules, self.mailbox = ScriptedPlanner(skills), mailbox
        self.rows = torch.stack([torch.from_numpy(encode(s, mailbox.length)) for s in skills])

    def judge(self, moment: deciding.Moment, least: float) -> deciding.Verdict:
        """Judge a moment; certain of everything."""
        if 'dance' in moment.task:
            return deciding.Verdict(deciding.CANNOT, 0.99)
        steps = [*self.rules.parse(moment.task), deciding.FINISHED]
        at = len(moment.history)
        if moment.facts is None:
            return deciding.Verdict(steps[at], 0.99)
        if 'stop' in moment.facts.note:
            return deciding.Verdict(steps[at], 0.99, stop=0.99)
        over = moment.facts.reached.get(moment.now, False)
        handed = None
        if moment.following and self.mailbox.settled:
            row = self.rules.skills.index(moment.following) if over else -1
            with self.mailbox.offering(moment.tick):
                self.mailbox.gather(self.rows, torch.tensor([row]))
            handed = over
        return deciding.Verdict(steps[at + over], 0.99, 0.99 * over, 0.99, 0.01, handed)


class AskingBrain(Toy, Brain):
    """A brain that asks between two inferences, on the replay thread."""

    def make(self, skills: Any, ctx: Any, mailbox: Any) -> Any:
        """Return the planner."""
        judge = Oracle(skills, mailbox)
        return deciding.DecidingPlanner(judge, skills, self.p.sure, self.p.subgoal_max_ticks)


if __name__ == '__main__':
    run(AskingBrain)
