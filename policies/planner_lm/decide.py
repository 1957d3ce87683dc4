"""Questions put to a state: `planner.decide(state, questions)`.

All questions of a call are branches of one state and answered in one pass, each with exactly the
answer that it would get alone (`hybrid_lm.fork`). Any checkpoint that `flashrt lm` runs will do;
`flashrt train planner` makes one for the robot's own questions, and has made the shipped one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_policies.hybrid_lm.fork.engine import ForkEngine
from flashrt_policies.hybrid_lm.fork.request import Branch, Request
from flashrt_policies.hybrid_lm.opening import read_checkpoint
from flashrt_policies.planner_lm.prompt import Asked, Prompter
from flashrt_policies.planner_lm.questions import Answer, Question

SHIPPED = 'shipped'  # stands for the planner that comes with the package
SHIPPED_FOLDER = Path(__file__).parents[1] / 'weights' / 'planner'

if TYPE_CHECKING:
    from flashrt_policies.planner_lm.handoff import HandOff
    from flashrt_ros.capsule.registry import Registry
    from flashrt_ros.contract.context import Context


class Decider:
    """A language model that answers questions about a state.

    Args:
        engine: runs the model.
        prompter: turns text into its tokens.
    """

    def __init__(self, engine: ForkEngine, prompter: Prompter) -> None:
        self.engine, self.prompter = engine, prompter

    def decide(self, state: str, questions: Sequence[Question], keep: bool = True) -> list[Answer]:
        """Answer questions about a state.

        Args:
            state: any text.
            questions: one or more.
            keep: leave a checkpoint, so that a state that goes on from this one resumes.

        Returns:
            One answer per question.

        Raises:
            QuestionError: a question cannot be asked.
            ForkError: the state is too long.
        """
        return self.decide_all([(state, questions)], keep)[0]

    def decide_all(
        self, cases: Sequence[tuple[str, Sequence[Question]]], keep: bool = True
    ) -> list[list[Answer]]:
        """Answer questions about several states in one round; see `decide`."""
        requests = []
        for state, questions in cases:
            asked = [self.prompter.question(question) for question in questions]
            requests.append(self._request(state, asked, keep))
        found = self.engine.round(requests)
        return [
            [
                Answer(tuple(question.options), tuple(map(float, answer.probabilities)))
                for question, answer in zip(questions, answers, strict=True)
            ]
            for (_, questions), answers in zip(cases, found, strict=True)
        ]

    def _request(self, state: str, asked: Sequence[Asked], keep: bool) -> Request:
        branches = [Branch(one.tokens, one.options) for one in asked]
        return Request(self.prompter.state(state), branches, keep)


def open_decider(
    path: str | Path,
    ctx: Context | None = None,
    *,
    registry: Registry | None = None,
    capacity: int = 4096,
    longest_round: int = 8192,
    dtype: str | None = None,
    style: str | None = None,
    deterministic: bool = False,
    hand_off: HandOff | None = None,
) -> Decider:
    """Open a checkpoint for questions.

    Args:
        path: a Hugging Face folder, a .gguf file, or `SHIPPED`.
        ctx: the device's context, not frozen yet; None for one of the CPU.
        registry: where states leave checkpoints to resume from; None for none.
        capacity: longest state, tokens.
        longest_round: tokens of the largest round that has a captured graph.
        dtype: 'float32', 'bfloat16' or 'float16'; None takes the checkpoint's own, and on the
            CPU float32.
        style: of the prompts, see `prompt.STYLES`; None fits the tokenizer.
        deterministic: an answer keeps its bits whatever is asked beside it.
        hand_off: what follows a decision on the device.

    Raises:
        CheckpointError: there is no such checkpoint, or it does not fit.
    """
    from flashrt_policies.hybrid_lm.fork.engine import family
    from flashrt_ros.contract.context import Context

    ctx = ctx or Context('cpu')
    folder = SHIPPED_FOLDER if str(path) == SHIPPED else path
    config, weights, tokenizer = read_checkpoint(folder, ctx.device, dtype)
    engine = ForkEngine(
        ctx,
        config,
        weights,
        registry,
        capacity=min(capacity, config.max_position),
        streams=family(longest_round),
        deterministic=deterministic,
        tail=hand_off.tail if hand_off else None,
        tail_writes=hand_off.writes if hand_off else (),
        name='decide',
    )
    return Decider(engine, Prompter(tokenizer, style))
