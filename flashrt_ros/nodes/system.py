"""The one table of processes: read by the launch files and by the runner. No rclpy here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flashrt_ros.errors import FlashrtError


@dataclass(frozen=True)
class Process:
    """One process of the system.

    Attributes:
        node: The node's name; services and topics of the supervisor and others are named by it.
        executable: What starts it, an executable of this package.
        config: Parameter files in ``config/``.
        respawn: Start it again when it dies. It comes back unconfigured, so the robot holds.
        simulated: It is part of the simulated robot alone.
        autostart: It configures and activates itself; nobody has to ask.
        params: Parameters that differ from the files.
    """

    node: str
    executable: str
    config: tuple[str, ...]
    respawn: bool = False
    simulated: bool = False
    autostart: bool = False
    params: tuple[tuple[str, Any], ...] = ()


# In the order in which they are activated: nobody speaks before its listener is there.
PROCESSES = (
    Process('gate', 'gate_node', ('gate.yaml',), respawn=True, autostart=True),
    Process('sim', 'sim_node', ('sim.yaml',), simulated=True),
    Process('brain', 'brain', ('policy.yaml', 'planner.yaml')),
    Process('supervisor', 'supervisor_node', ('supervisor.yaml',)),
)
# Beside any of them: a file per episode, for Foxglove and `flashrt report`.
RECORDER = Process('recorder', 'recorder_node', ('recorder.yaml',))
# The same with the planner in a process of its own; its subgoals travel over a topic.
APART = (
    Process('brain', 'policy_node', ('policy.yaml',)),
    Process('planner', 'planner_node', ('planner.yaml', 'planner_apart.yaml')),
)
LOCKSTEP = 'lockstep.yaml'  # for a simulated robot whose world waits; after every other file
PACKAGE = 'flashrt_ros'


def processes(
    simulated: bool = True,
    planner_apart: bool = False,
    recorder: bool = False,
    lockstep: bool = False,
) -> tuple[Process, ...]:
    """Return the processes of the simulated robot, or those beside a real robot's driver.

    Raises:
        FlashrtError: A real robot cannot wait, so it has no lockstep.
    """
    if lockstep and not simulated:
        raise FlashrtError('lockstep is for a simulated robot: a real one does not wait')
    chosen: list[Process] = [RECORDER] if recorder else []
    surroundings = (('simulator', simulated), ('planner_apart', planner_apart))
    for process in PROCESSES:
        if process.node == 'supervisor':
            chosen.append(replace(process, params=surroundings))
        elif process.node == 'brain' and planner_apart:
            chosen += APART
        elif simulated or not process.simulated:
            chosen.append(process)
    last = (LOCKSTEP,) if lockstep else ()
    return tuple(replace(process, config=(*process.config, *last)) for process in chosen)
