"""Records each episode into an MCAP file of its own, which Foxglove opens. No torch.

What ROS delivers is written as it came, byte for byte. A file gets its name when the episode is
over and the file complete; until then it ends in `.part`.
"""

from __future__ import annotations

import math
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from mcap.writer import CompressionType, Writer
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image

from flashrt_interfaces.msg import (
    ActionChunk,
    ControlCommand,
    EpisodeState,
    LoopStats,
    RobotState,
    Subgoal,
)
from flashrt_ros.control import episode
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.base import Managed
from flashrt_ros.nodes.msgdef import definition, full_name
from flashrt_ros.nodes.params import Param, declare
from flashrt_ros.nodes.scheduling import PROCESS_PARAMS
from flashrt_ros.nodes.spin import run

PARAMS = (
    Param('folder', 'recordings', 'where the files go'),
    Param('cameras', ['front', 'wrist'], 'cameras whose images are recorded'),
    Param('max_mb', 2048, 'a file that has grown so large is closed, in MiB', 1, 10**6),
    Param('keep', 100, 'files kept; the oldest are deleted', 1, 10**6),
    *PROCESS_PARAMS,
)
LOOK_S, LOOKS = 0.25, 4  # after its end, what was said of an episode may still be on its way
OVER = (episode.IDLE, episode.FAULT)


class Recording:
    """One MCAP file that is being written."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number, self.count = path, number, 0
        self._part = path.with_name(path.name + '.part')
        self._file = self._part.open('wb')
        self._writer = Writer(self._file, compression=CompressionType.ZSTD)
        self._writer.start(profile='ros2', library='flashrt_ros')
        self._channels: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes in the file so far."""
        return self._file.tell()

    def add(self, topic: str, kind: type, data: bytes, at: int) -> None:
        """Write one message; ``at`` is when it came, in nanoseconds."""
        if topic not in self._channels:
            schema = self._writer.register_schema(
                full_name(kind), 'ros2msg', definition(kind).encode()
            )
            self._channels[topic] = self._writer.register_channel(topic, 'cdr', schema)
        self.count += 1
        self._writer.add_message(self._channels[topic], at, data, at)

    def close(self) -> None:
        """Complete the file, and give it its name."""
        self._writer.add_metadata('flashrt', {'episode': str(self.number)})
        self._writer.finish()
        self._file.close()
        self._part.rename(self.path)


class RecorderNode(Managed):
    """Writes what brain, gate, robot and supervisor say, one file per episode."""

    def __init__(self, name: str = 'recorder', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, PARAMS)
        self._now: Recording | None = None
        self._latest = (0, 0)  # episode and epoch
        self._looks = math.inf  # before the file is complete

    def stamp(self) -> tuple[int, int]:
        """Return the episode and epoch that are heard of."""
        return self._latest

    def configure(self) -> None:
        """Make the folder and listen to everything."""
        self.folder = Path(self.p.folder).expanduser().absolute()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FlashrtError(
                f'recordings cannot go to {self.folder}: {error.strerror}; set `folder` to one '
                'that can be written to'
            ) from None
        topics: list[tuple[type, str, Any]] = [
            (EpisodeState, names.EPISODE, qos.LATCHED),
            (RobotState, names.ROBOT_STATE, qos.TELEMETRY),
            (ControlCommand, names.COMMAND, qos.TELEMETRY),
            (ControlCommand, names.GATED, qos.TELEMETRY),
            (ActionChunk, names.CHUNK, qos.TELEMETRY),
            (Subgoal, names.SUBGOAL, qos.TELEMETRY),
            (LoopStats, names.STATS, qos.TELEMETRY),
            (DiagnosticArray, names.DIAGNOSTICS, qos.TELEMETRY),
        ]
        latest = qos.image_subscription('best_effort')
        for camera in filter(None, self.p.cameras):
            topics.append((Image, names.IMAGE.format(camera=camera), latest))
        for kind, topic, profile in topics:
            self.listen(kind, topic, self._into(topic, kind), profile, raw=True)
        self.every(LOOK_S, self._look)

    def deactivate(self) -> None:
        """Complete the file that is being written."""
        self._end()

    def _into(self, topic: str, kind: type) -> Any:
        name = self.resolve_topic_name(topic)

        def heard(data: bytes) -> None:
            if not self.active:
                return
            if kind is EpisodeState:
                self._follow(deserialize_message(data, EpisodeState))
            if self._now is not None:
                self._now.add(name, kind, data, time.time_ns())
                if self._now.nbytes > self.p.max_mb * 2**20:
                    self.log.warning(f'{self._now.path.name} has {self.p.max_mb} MiB: closed')
                    self._end()

        return heard

    def _follow(self, msg: EpisodeState) -> None:
        self._latest = (msg.episode, msg.epoch)
        if self._now is not None and msg.episode != self._now.number:
            self._end()
        over = msg.state in OVER
        self._looks = LOOKS if over else math.inf
        if self._now is None and not over:
            at = datetime.now().strftime('%Y%m%d-%H%M%S')
            self._now = Recording(
                self.folder / f'episode-{msg.episode:04d}-{at}.mcap', msg.episode
            )

    def _look(self) -> None:
        """Between two looks at least one message of every topic that has some is taken."""
        self._looks -= 1
        if self._looks <= 0:
            self._end()

    def _end(self) -> None:
        if self._now is None:
            return
        done, self._now = self._now, None
        done.close()
        size = done.path.stat().st_size / 2**20
        self.log.info(f'{done.path}: {done.count} messages, {size:.1f} MiB')
        files = sorted(self.folder.glob('episode-*.mcap'), key=lambda p: p.stat().st_mtime)
        for old in files[: -self.p.keep]:
            old.unlink()


def main() -> None:
    """Run the recorder."""
    run(RecorderNode)


if __name__ == '__main__':
    main()
