"""What each node publishes, reads, offers and calls.

One table for the documents, for the security policies, and for a test that compares it with the
running graph. No rclpy here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flashrt_ros.nodes import names

CAMERA = names.IMAGE.format(camera='CAMERA')
TYPES = {
    names.ROBOT_STATE: 'flashrt_interfaces/RobotState',
    CAMERA: 'sensor_msgs/Image',
    names.COMMAND: 'flashrt_interfaces/ControlCommand',
    names.GATED: 'flashrt_interfaces/ControlCommand',
    names.CHUNK: 'flashrt_interfaces/ActionChunk',
    names.SUBGOAL: 'flashrt_interfaces/Subgoal',
    names.EPISODE: 'flashrt_interfaces/EpisodeState',
    names.EMERGENCY_STOP: 'std_msgs/Bool',
    names.NOTE: 'std_msgs/String',
    names.STATS: 'flashrt_interfaces/LoopStats',
    names.DIAGNOSTICS: 'diagnostic_msgs/DiagnosticArray',
    names.ROBOT_BEGIN: 'flashrt_interfaces/BeginEpisode',
    names.ROBOT_SNAPSHOT: 'flashrt_interfaces/Snapshot',
    names.ROBOT_RESTORE: 'flashrt_interfaces/Restore',
    names.ROBOT_SET_EPOCH: 'flashrt_interfaces/SetEpoch',
    names.BRAIN_BEGIN: 'flashrt_interfaces/BeginEpisode',
    names.BRAIN_SNAPSHOT: 'flashrt_interfaces/Snapshot',
    names.BRAIN_RESTORE: 'flashrt_interfaces/Restore',
    names.BRAIN_LIST: 'flashrt_interfaces/ListCapsules',
    names.PLANNER_BEGIN: 'flashrt_interfaces/BeginEpisode',
    names.PLANNER_SNAPSHOT: 'flashrt_interfaces/Snapshot',
    names.PLANNER_RESTORE: 'flashrt_interfaces/Restore',
    names.DECIDE: 'flashrt_interfaces/Decide',
    names.GATE_SET_EPOCH: 'flashrt_interfaces/SetEpoch',
    names.GATE_RELEASE: 'std_srvs/Trigger',
    names.START: 'flashrt_interfaces/StartEpisode',
    names.INTERRUPT: 'flashrt_interfaces/Interrupt',
    names.RESUME: 'flashrt_interfaces/Resume',
    names.RESET: 'flashrt_interfaces/ResetEpisode',
    names.ROLLBACK: 'flashrt_interfaces/Rollback',
    names.SNAPSHOT: 'flashrt_interfaces/Snapshot',
    names.LIST: 'flashrt_interfaces/ListCapsules',
    names.PLAIN_RESET: 'std_srvs/Trigger',
    names.PLAIN_INTERRUPT: 'std_srvs/Trigger',
    names.ROLLOUT: 'flashrt_interfaces/Rollout',
}
OWN = {  # what every node says of itself
    names.STATS: 'how its loop is doing, once a second',
    names.DIAGNOSTICS: 'the same in words',
}


@dataclass(frozen=True)
class Interface:
    """One node's side of the graph: name -> what it is for.

    Attributes:
        publishes: Topics it writes, beside `OWN`.
        reads: Topics it reads.
        offers: Services it answers.
        calls: Services it asks of others.
        actions: Actions it carries out.
    """

    publishes: dict[str, str] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)
    offers: dict[str, str] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)


_BRAIN_READS = {
    names.ROBOT_STATE: 'each one is answered with a command',
    CAMERA: 'paired with the state of its moment; the topic by `camera_topics`',
    names.EPISODE: 'whether the robot may move',
}
_BRAIN_WRITES = {
    names.COMMAND: 'one command per control tick, to the gate',
    names.CHUNK: 'what each inference gave',
}
_BRAIN_OFFERS = {
    names.BRAIN_BEGIN: 'be ready at tick 0 of an episode',
    names.BRAIN_SNAPSHOT: 'freeze everything, between two replays',
    names.BRAIN_RESTORE: 'put a capsule back',
    names.BRAIN_LIST: 'the capsules that are kept',
}
_DECIDE = {names.DECIDE: "questions put to the planner's language model"}
_ASKED = (
    names.BRAIN_BEGIN, names.BRAIN_SNAPSHOT, names.BRAIN_RESTORE, names.BRAIN_LIST,
    names.PLANNER_BEGIN, names.PLANNER_SNAPSHOT, names.PLANNER_RESTORE,
    names.ROBOT_BEGIN, names.ROBOT_SNAPSHOT, names.ROBOT_RESTORE, names.ROBOT_SET_EPOCH,
    names.GATE_SET_EPOCH,
)  # fmt: skip
_RECORDED = (
    names.EPISODE, names.ROBOT_STATE, names.COMMAND, names.GATED, names.CHUNK, names.SUBGOAL,
    names.STATS, names.DIAGNOSTICS, CAMERA,
)  # fmt: skip
NODES: dict[str, Interface] = {
    'gate': Interface(
        {names.GATED: 'the command as it came, or a hold in its place'},
        {
            names.COMMAND: 'of the brain, and of the brain alone',
            names.ROBOT_STATE: 'the robot\'s tick: what is stale and what is early',
            names.EMERGENCY_STOP: 'true latches, kept (transient local) or not',
            names.EPISODE: 'the supervisor\'s sign of life',
        },
        {
            names.GATE_SET_EPOCH: 'open or close in an epoch',
            names.GATE_RELEASE: 'unlatch the emergency stop',
        },
    ),
    'sim': Interface(
        {
            names.ROBOT_STATE: 'once per control tick',
            CAMERA: 'every `image_every` ticks, stamped like their state',
        },
        {names.GATED: 'the one command for each tick'},
        {
            names.ROBOT_BEGIN: 'park at tick 0 of an episode',
            names.ROBOT_SNAPSHOT: 'keep the exact state of the world',
            names.ROBOT_RESTORE: 'put it back',
            names.ROBOT_SET_EPOCH: 'states carry this epoch from now on',
        },
    ),
    'brain': Interface(
        {**_BRAIN_WRITES, names.SUBGOAL: 'what became of each subgoal'},
        {**_BRAIN_READS, names.NOTE: 'what people say meanwhile, for the planner'},
        {**_BRAIN_OFFERS, **_DECIDE},
    ),
    'policy': Interface(
        _BRAIN_WRITES,
        {**_BRAIN_READS, names.SUBGOAL: 'of the planner in its own process'},
        _BRAIN_OFFERS,
    ),
    'planner': Interface(
        {names.SUBGOAL: 'posted, renewed, done, failed'},
        {
            names.ROBOT_STATE: 'which subgoals are reached',
            names.EPISODE: 'whether the episode goes on, and in which epoch',
            names.NOTE: 'what people say meanwhile',
        },
        {
            names.PLANNER_BEGIN: 'plan an instruction, or refuse it',
            names.PLANNER_SNAPSHOT: 'keep plan and place in it',
            names.PLANNER_RESTORE: 'put them back',
            **_DECIDE,
        },
    ),
    'supervisor': Interface(
        {names.EPISODE: 'where the episode stands, on every change; kept (transient local)'},
        {
            names.ROBOT_STATE: 'ticks, missed ticks, and the hold as applied',
            names.COMMAND: 'the brain\'s sign of life',
            names.GATED: 'the gate\'s sign of life, and the first action of an epoch',
            names.SUBGOAL: 'boundaries, retries, the end of the episode',
        },
        {
            names.START: 'begin an episode with an instruction',
            names.INTERRUPT: 'stop in mid-motion; answered when the robot holds',
            names.RESUME: 'warm re-entry: to the interrupt, a name or a digest',
            names.ROLLBACK: 'back by N boundaries, brain and simulator',
            names.RESET: 'a new episode from a capsule',
            names.SNAPSHOT: 'freeze this moment under a name',
            names.LIST: 'every capsule that can be restored',
            names.PLAIN_RESET: 'reset, for tools that know none of our types',
            names.PLAIN_INTERRUPT: 'interrupt, likewise',
        },
        dict.fromkeys(_ASKED, 'see there'),
        {names.ROLLOUT: 'a whole episode; cancelling it is a hard interrupt'},
    ),
    'recorder': Interface(
        {},
        dict.fromkeys(_RECORDED, 'written as it came'),
    ),
}  # fmt: skip
