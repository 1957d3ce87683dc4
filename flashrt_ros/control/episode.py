"""The states of an episode, and which way it may go from each.

Everything that takes up an episode or stops it raises the epoch. `docs/nodes/supervisor.md` has
the table of transitions, written by `table` and compared with it by a test.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from flashrt_ros.errors import FlashrtError

IDLE = 'idle'
RESETTING = 'resetting'
RUNNING = 'running'
INTERRUPTED = 'interrupted'
RECOVERING = 'recovering'
FAULT = 'fault'
STATES = (IDLE, RESETTING, RUNNING, INTERRUPTED, RECOVERING, FAULT)

# event -> {state it may come in: state it leads to}
TRANSITIONS: dict[str, dict[str, str]] = {
    'start': {IDLE: RESETTING, INTERRUPTED: RESETTING, FAULT: RESETTING},
    'reset': dict.fromkeys((IDLE, RUNNING, INTERRUPTED, RECOVERING, FAULT), RESETTING),
    'ready': {RESETTING: RUNNING},
    'interrupt': {RUNNING: INTERRUPTED, RECOVERING: INTERRUPTED},
    'resume': {INTERRUPTED: RECOVERING},
    'moving': {RECOVERING: RUNNING},
    'finish': {RUNNING: IDLE, RECOVERING: IDLE},
    'fail': dict.fromkeys(STATES, FAULT),
}
MEANING = {
    IDLE: 'nothing runs, the robot holds; `outcome` says how the last episode ended',
    RESETTING: 'brain and robot are being put to the start of an episode',
    RUNNING: 'the policy moves the robot',
    INTERRUPTED: 'stopped in mid-motion, the state is kept',
    RECOVERING: 'restored, waits for the first action from a fresh observation',
    FAULT: 'a peer died or refused, the robot holds; `reason` says who and why',
}
BY = {
    'start': 'a person: `supervisor/start_episode`, or a goal of `supervisor/rollout`',
    'reset': 'a person: `supervisor/reset_episode`, `supervisor/reset`',
    'ready': 'the supervisor: everything stands at the start and the gate is open',
    'interrupt': 'a person: `supervisor/interrupt_episode`, `supervisor/interrupt`, a cancelled '
    'goal; the supervisor: before a rollback, a retry or a reset',
    'resume': 'a person: `supervisor/resume_episode`, `supervisor/rollback`; the supervisor: a '
    'retry',
    'moving': 'the supervisor: the gate let the first action through',
    'finish': 'the supervisor: every subgoal is reached, one has failed for good, or time is up',
    'fail': 'the supervisor: a peer is silent, refused, or was replaced',
}
RAISES_EPOCH = frozenset({'start', 'reset', 'interrupt', 'resume', 'finish', 'fail'})
NEW_EPISODE = frozenset({'start', 'reset'})
ADVICE = {
    IDLE: 'start an episode first',
    RESETTING: 'wait until the reset is through',
    RUNNING: 'interrupt it first',
    INTERRUPTED: 'resume, reset or start anew',
    RECOVERING: 'wait for the first action',
    FAULT: 'reset or start anew',
}


HISTORY = 1000  # transitions that are remembered


class TransitionError(FlashrtError, ValueError):
    """An event came in a state that does not allow it."""


@dataclass(frozen=True)
class Transition:
    """One step of the machine: where from, where to, by what, why."""

    event: str
    before: str
    after: str
    reason: str


class EpisodeMachine:
    """Episode, epoch and state. Pure logic: the supervisor does what the states mean.

    Attributes:
        state: One of `STATES`.
        episode: Counted from 1; 0 before the first.
        epoch: Raised by every event in `RAISES_EPOCH`; it never falls.
        reason: Why the last change happened.
        history: The newest transitions, oldest first.
    """

    def __init__(self) -> None:
        self.state = IDLE
        self.episode = 0
        self.epoch = 0
        self.reason = 'nothing has been started'
        self.history: deque[Transition] = deque(maxlen=HISTORY)

    def may(self, event: str) -> bool:
        """Whether ``event`` is allowed now."""
        return self.state in TRANSITIONS[event]

    def refuse(self, event: str) -> str:
        """Return why ``event`` is not allowed now, and what would be right; '' if it is."""
        if self.may(event):
            return ''
        return f'cannot {event} while {self.state}: {ADVICE[self.state]}'

    def adopt(self, episode: int, epoch: int) -> None:
        """Take up a newer episode and epoch that others have seen: after a restart."""
        self.episode = max(self.episode, episode)
        self.epoch = max(self.epoch, epoch)

    def apply(self, event: str, reason: str = '') -> Transition:
        """Take ``event``.

        Raises:
            TransitionError: It is not allowed in this state; nothing changes.
        """
        refusal = self.refuse(event)
        if refusal:
            raise TransitionError(refusal)
        step = Transition(event, self.state, TRANSITIONS[event][self.state], reason)
        self.state = step.after
        self.reason = reason
        self.epoch += event in RAISES_EPOCH
        self.episode += event in NEW_EPISODE
        self.history.append(step)
        return step


def table() -> str:
    """Return the states and every transition as two Markdown tables."""
    lines = ['| state | what it means | a request that does not fit is told to |', '|---|---|---|']
    lines += [f'| `{state}` | {MEANING[state]} | {ADVICE[state]} |' for state in STATES]
    lines += ['', '| event | from | to | epoch | by |', '|---|---|---|---|---|']
    for event, ways in TRANSITIONS.items():
        for target in sorted(set(ways.values()), key=STATES.index):
            every = [state for state in STATES if ways.get(state) == target]
            sources = 'any' if len(every) == len(STATES) else ', '.join(f'`{s}`' for s in every)
            epoch = '+1' if event in RAISES_EPOCH else 'same'
            epoch += ', new episode' if event in NEW_EPISODE else ''
            lines.append(f'| *{event}* | {sources} | `{target}` | {epoch} | {BY[event]} |')
    return '\n'.join(lines) + '\n'
