"""The states of an episode, and which way it may go from each.

==============  ====================================================================
state           what may happen there
==============  ====================================================================
``idle``        nothing runs, the robot holds: *start*, *reset*
``resetting``   brain and robot are put to an episode's start: *ready*
``running``     the policy moves the robot: *interrupt*, *reset*, *finish*
``interrupted`` stopped in mid-motion, the state is kept: *resume*, *start*, *reset*
``recovering``  restored, waits for a fresh observation: *moving*, *interrupt*, *reset*,
                *finish*
``fault``       a peer died or refused, the robot holds: *start*, *reset*
any             *fail* (to ``fault``)
==============  ====================================================================

Everything that takes up an episode or stops it raises the epoch.
"""

from __future__ import annotations

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
        history: Every transition, oldest first.
    """

    def __init__(self) -> None:
        self.state = IDLE
        self.episode = 0
        self.epoch = 0
        self.reason = 'nothing has been started'
        self.history: list[Transition] = []

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
