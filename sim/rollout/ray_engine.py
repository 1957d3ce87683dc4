"""The same rollout over Ray: on this machine, or on a cluster by its address.

An episode is two Ray tasks. The first puts its start, one capsule of simulator and brain, into the
object store; the second restores from it and plays. All else is Ray's work: it spreads tasks over
the workers, gives those of a lost worker to another one, which restores from the same capsule, and
makes a capsule anew that was lost with its machine. Every machine needs this package and, for
pictures, the same folders.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from flashrt_ros.errors import FlashrtError

from ..errors import SimulationError
from .evaluation import Result, Task
from .play import begin
from .station import Deployment, Outputs, Station

Episode = tuple[Task, int, int]  # task, number, seed
Parcel = dict[str, bytes]  # a capsule as files

_RETRIES = 20  # workers that one episode may lose before the rollout gives up
_AHEAD = 3  # episodes under way for every processor: starts are made while others play
# Ray gives itself half a minute to start, and workers a minute: on a busy machine not enough.
_STARTS = 8
_AGAIN = 3  # how often a cluster by ray:// is asked: its server gives itself half a minute, too
_REACH = 10.0  # seconds until a machine of a cluster must answer
_PATIENCE = {'worker_register_timeout_seconds': 900, 'health_check_timeout_ms': 100_000}
_STORE = 256 << 20  # bytes of the object store on one machine; a start takes some hundred kB


def play_on_ray(
    deployment: Deployment,
    outputs: Outputs,
    episodes: Sequence[Episode],
    workers: int,
    address: str | None = None,
) -> Iterator[Result]:
    """Play all `episodes`; gives results as they are finished.

    Args:
        deployment: policy and timing.
        outputs: what is written; folders that every machine has.
        episodes: task, number and seed of each.
        workers: processes on this machine; a cluster has its own number.
        address: of a running cluster; None = Ray is started here, for this rollout alone.

    Raises:
        SimulationError: Ray is not installed; later, what an episode raised.
    """
    return _results(_load(address is None), deployment, outputs, episodes, workers, address)


def _results(
    ray: Any,
    deployment: Deployment,
    outputs: Outputs,
    episodes: Sequence[Episode],
    workers: int,
    address: str | None,
) -> Iterator[Result]:
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, workers, address)
    running: list[Any] = []
    try:
        resources = ray.cluster_resources()
        options = share(resources, deployment.device) | {'max_retries': _RETRIES}
        start, finish = ray.remote(**options)(_start), ray.remote(**options)(_finish)
        todo, room = iter(episodes), _AHEAD * max(1, int(resources.get('CPU', 1)))
        same = (deployment, outputs, os.getcwd())
        while True:
            for episode in islice(todo, room - len(running)):
                running.append(finish.remote(*same, *episode, start.remote(*same, *episode)))
            if not running:
                return
            done, running = _wait(ray, running)
            yield _result(ray, done[0])
    finally:
        if ray.is_initialized():  # to cancel where Ray is gone would start another one
            for reference in running:
                with suppress(Exception):
                    ray.cancel(reference, force=True)
        if mine:
            ray.shutdown()


def _wait(ray: Any, running: list[Any]) -> tuple[list[Any], list[Any]]:
    try:
        done, left = ray.wait(running)
        return done, left
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise _gone(error) from None


def _gone(error: Exception) -> SimulationError:
    return SimulationError(
        f'the connection to Ray is lost ({_line(error)}); with --json or --parquet the same '
        'command goes on with what is left, over Ray or with --engine local'
    )


def share(resources: dict[str, float], device: str) -> dict[str, float]:
    """What one task asks Ray for: a processor, and its part of the GPUs where it needs one.

    Raises:
        SimulationError: the policy is to run on a GPU, and the cluster has none.
    """
    if device == 'cpu':
        return {'num_cpus': 1}
    gpus, processors = resources.get('GPU', 0), max(1, resources.get('CPU', 1))
    if not gpus:
        raise SimulationError(f'device {device}: this cluster has no GPU; take --device cpu')
    return {'num_cpus': 1, 'num_gpus': min(1.0, gpus / processors)}


def _result(ray: Any, reference: Any) -> Result:
    try:
        found: Result = ray.get(reference)
        return found
    except ray.exceptions.RayTaskError as error:
        raise SimulationError(str(error.cause)) from None
    except (ConnectionError, ray.exceptions.LocalRayletDiedError) as error:
        raise _gone(error) from None
    except ray.exceptions.RayError as error:
        raise SimulationError(
            f'an episode lost its worker {_RETRIES + 1} times ({type(error).__name__}); see the '
            'logs of Ray, or run it with --engine local'
        ) from None


def _load(alone: bool) -> Any:
    """The module ray; `alone` keeps what it starts on this machine and quiet."""
    if alone:
        # Read when ray is imported. The second one is named after the systems on which it is the
        # default: every server listens on 127.0.0.1, and no other machine can join.
        os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
        os.environ.setdefault('RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER', '0')
    try:
        return importlib.import_module('ray')
    except ImportError:
        raise SimulationError(
            'the engine ray needs Ray; pip install "flashrt_ros[ray]", or take --engine local'
        ) from None


def _connect(ray: Any, workers: int, address: str | None) -> None:
    options: dict[str, Any] = {'log_to_driver': False, 'logging_level': 'CRITICAL'}
    if address is not None:
        _reach(address)
        options['address'] = address
    else:
        options |= {
            'address': 'local',
            'num_cpus': workers,
            'include_dashboard': False,
            'object_store_memory': _STORE,
            '_system_config': _PATIENCE,
        }
    for attempt in range(_STARTS):
        try:
            ray.init(**options)
            return
        except Exception as error:  # Ray raises many kinds here, some of no class of their own
            ray.shutdown()
            text = str(error)
            if address is None:
                late = 'timed out' in text and attempt + 1 < _STARTS
            else:
                late = 'Initialization failure' in text and attempt + 1 < _AGAIN
            if not late:
                raise SimulationError(
                    f'no Ray at {address or "this machine"}: {_line(error)}; start a cluster with '
                    f'ray start --head, or leave --address out{_token(address)}'
                ) from None


def _reach(address: str) -> None:
    """Refuse a place where nobody listens: Ray itself would try for minutes.

    Raises:
        SimulationError: one line.
    """
    host, _, port = address.removeprefix('ray://').rpartition(':')
    if not host or not port.isdigit():
        return  # 'auto', or a form of Ray's own
    try:
        socket.create_connection((host.strip('[]'), int(port)), _REACH).close()
    except (OSError, OverflowError) as error:
        raise SimulationError(
            f'no Ray at {address}: {_line(error)}; want host:6379 of ray start --head on a '
            'machine of its cluster, or ray://host:10001 from any other'
        ) from None


def _line(error: Exception) -> str:
    """The line of a message that says most: the first, or the last where that only leads to it."""
    lines = str(error).strip().split('\n')
    return lines[-1 if lines[0].endswith(':') else 0].strip().rstrip('.')


def _token(address: str | None) -> str:
    """A hint: what Ray finds by 'auto' it gives its token, but to no address that it is told."""
    if address in (None, 'auto') or 'RAY_AUTH_MODE' in os.environ:
        return ''
    return '; if it asks for a token, set RAY_AUTH_MODE=token and have the same token here'


# In the workers -------------------------------------------------------------------------------

_station: Station | None = None  # of this process
_folder: Path  # for capsules on their way


def _open(deployment: Deployment, outputs: Outputs, where: str) -> Station:
    global _station, _folder
    if _station is None or (_station.deployment, _station.outputs) != (deployment, outputs):
        # One thread: the software rasteriser would start one for every core in every process.
        os.environ['LP_NUM_THREADS'] = '1'
        if os.path.isdir(where):
            os.chdir(where)
        _folder = Path(tempfile.mkdtemp(prefix='flashrt-'))
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
        _station = Station(deployment, outputs, _folder)
    return _station


def _start(
    deployment: Deployment, outputs: Outputs, where: str, task: Task, number: int, seed: int
) -> Parcel:
    """The capsule of an episode before its first tick."""
    try:
        live = _open(deployment, outputs, where).open(task.environment)
        begin(live, task, seed)
        capsule = live.snapshot('episode-start')
        registry: Any = live.actor.session.registry
        parcel: Parcel = registry.store.parcel(live.save(capsule))
        registry.evict(capsule)
        return parcel
    except FlashrtError as error:
        raise SimulationError(str(error)) from None


def _finish(
    deployment: Deployment,
    outputs: Outputs,
    where: str,
    task: Task,
    number: int,
    seed: int,
    parcel: Parcel,
) -> Result:
    """Restore that capsule and play."""
    try:
        station = _open(deployment, outputs, where)
        live = station.open(task.environment)
        registry: Any = live.actor.session.registry
        capsule = live.load(registry.store.accept(parcel))
        live.restore(capsule)
        registry.evict(capsule)
        return station.finish(live, task, number, seed)
    except FlashrtError as error:
        raise SimulationError(str(error)) from None
