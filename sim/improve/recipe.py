"""Every number of an improvement, in one checked YAML file."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashrt_policies.recipes import demand
from flashrt_policies.training.augment import Augmentation
from flashrt_policies.training.recipe import Loss, Training
from flashrt_policies.training.value import Value


@dataclass(frozen=True)
class Collect:
    """Episodes that are learned from.

    Attributes:
        episodes: of each task in each round.
        limit: ticks after which one counts as failed.
    """

    episodes: int = 80
    limit: int = 300


@dataclass(frozen=True)
class Demonstrated:
    """Demonstrations that keep what the policy knows; the scripted experts record them.

    Attributes:
        tasks: of each task.
        scenes: of each scene with several subgoals.
        share: of every batch; the rest is from the policy's own episodes.
    """

    tasks: int = 16
    scenes: int = 16
    share: float = 0.5


@dataclass(frozen=True)
class Relabel:
    """What of the policy's own doing is called good.

    Attributes:
        trace: weight that a surprise loses with every tick that it lies ahead; 1: it loses none.
        good: share of each task's chunks.
    """

    trace: float = 0.98
    good: float = 0.4


@dataclass(frozen=True)
class Evaluate:
    """Episodes that are only measured; the same ones before and after.

    Attributes:
        episodes: of each task that is to be improved.
        others: of each task that is not.
        unsaid: of each task, with the network that is not told to be good, a control.
        limit: ticks of an episode.
        seed: of the evaluation; that of the report which chose the tasks is another one.
    """

    episodes: int = 40
    others: int = 4
    unsaid: int = 20
    limit: int = 500
    seed: int = 1


@dataclass(frozen=True)
class Improvement:
    """The whole loop.

    Attributes:
        seed: every random choice follows from it.
        rounds: how often; each begins with the policy of the one before, and learns from all.
        collect: episodes that are learned from.
        demonstrated: demonstrations that are learned from beside them.
        value: the value function.
        relabel: what is called good.
        evaluate: episodes that are only measured.
        train: the loop of the fine-tuning.
        loss: which parts of a chunk matter.
        augment: how observations are disturbed.
    """

    seed: int = 0
    rounds: int = 1
    collect: Collect = field(default_factory=Collect)
    demonstrated: Demonstrated = field(default_factory=Demonstrated)
    value: Value = field(default_factory=Value)
    relabel: Relabel = field(default_factory=Relabel)
    evaluate: Evaluate = field(default_factory=Evaluate)
    train: Training = field(default_factory=Training)
    loss: Loss = field(default_factory=Loss)
    augment: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        shown, relabel = self.demonstrated, self.relabel
        demand(
            (0 <= self.seed < 100, f'seed is {self.seed}; want 0 to 99'),
            (1 <= self.rounds <= 10, f'rounds is {self.rounds}; want 1 to 10'),
            (self.collect.episodes > 0, 'collect.episodes is not positive; want some'),
            (
                self.collect.limit > 0 and self.evaluate.limit > 0,
                'collect.limit and evaluate.limit must be positive',
            ),
            (
                shown.tasks > 0 and shown.scenes >= 0,
                f'demonstrated.tasks is {shown.tasks} and demonstrated.scenes {shown.scenes}; '
                'want episodes of the tasks, and of the scenes some or none',
            ),
            (0 < shown.share < 1, f'demonstrated.share is {shown.share}; want between 0 and 1'),
            (0 <= relabel.trace <= 1, f'relabel.trace is {relabel.trace}; want 0 to 1'),
            (0 < relabel.good < 1, f'relabel.good is {relabel.good}; want between 0 and 1'),
            (
                self.evaluate.episodes > 0 and self.evaluate.others >= 0,
                'evaluate.episodes and evaluate.others count episodes; want some of the first',
            ),
            (
                0 <= self.evaluate.unsaid <= self.evaluate.episodes,
                f'evaluate.unsaid is {self.evaluate.unsaid}; '
                f'want 0 to evaluate.episodes, {self.evaluate.episodes}',
            ),
        )
