"""Topics and services, in one place. All are relative, so a namespace makes a second arm."""

ROBOT_STATE = 'robot/state'  # RobotState, once per control tick
IMAGE = 'robot/images/{camera}'  # sensor_msgs/Image, stamped like the state they belong to
ROBOT_BEGIN = 'robot/begin'  # BeginEpisode
ROBOT_SNAPSHOT = 'robot/snapshot'  # Snapshot, simulators only
ROBOT_RESTORE = 'robot/restore'  # Restore, simulators only
ROBOT_SET_EPOCH = 'robot/set_epoch'  # SetEpoch

COMMAND = 'brain/command'  # ControlCommand, brain -> gate
CHUNK = 'brain/chunk'  # ActionChunk, for watching
SUBGOAL = 'brain/subgoal'  # Subgoal, for watching
BRAIN_BEGIN = 'brain/begin'  # BeginEpisode
BRAIN_SNAPSHOT = 'brain/snapshot'  # Snapshot
BRAIN_RESTORE = 'brain/restore'  # Restore
DECIDE = 'planner/decide'  # Decide: questions put to the planner's language model
NOTE = 'planner/note'  # std_msgs/String: what people say meanwhile; empty = nothing
BRAIN_LIST = 'brain/list_capsules'  # ListCapsules

PLANNER_BEGIN = 'planner/begin'  # BeginEpisode, where the planner is a process of its own
PLANNER_SNAPSHOT = 'planner/snapshot'  # Snapshot
PLANNER_RESTORE = 'planner/restore'  # Restore

GATED = 'gate/command'  # ControlCommand, gate -> robot
GATE_SET_EPOCH = 'gate/set_epoch'  # SetEpoch
GATE_RELEASE = 'gate/release'  # std_srvs/Trigger: unlatch the emergency stop
EMERGENCY_STOP = 'emergency_stop'  # std_msgs/Bool, true latches

EPISODE = 'supervisor/episode'  # EpisodeState, latched
START = 'supervisor/start_episode'  # StartEpisode
INTERRUPT = 'supervisor/interrupt_episode'  # Interrupt
RESUME = 'supervisor/resume_episode'  # Resume
RESET = 'supervisor/reset_episode'  # ResetEpisode
ROLLBACK = 'supervisor/rollback'  # Rollback
SNAPSHOT = 'supervisor/snapshot'  # Snapshot, under a name of one's own
LIST = 'supervisor/list_capsules'  # ListCapsules
ROLLOUT = 'supervisor/rollout'  # action Rollout: a whole episode
PLAIN_RESET = 'supervisor/reset'  # std_srvs/Trigger
PLAIN_INTERRUPT = 'supervisor/interrupt'  # std_srvs/Trigger

STATS = 'loop_stats'  # LoopStats, every node once a second
DIAGNOSTICS = '/diagnostics'  # diagnostic_msgs/DiagnosticArray, every node once a second
