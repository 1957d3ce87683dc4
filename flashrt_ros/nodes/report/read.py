"""Reads a recording of `recorder_node`, or any MCAP file with the same topics in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.control.guards import GuardError
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names
from flashrt_ros.nodes.convert import msg_to_image
from flashrt_ros.nodes.operator import Record

Timed = list[tuple[float, Any]]  # seconds since the epoch, message


class RecordingError(FlashrtError):
    """A file is no recording, or lacks what a report is made of."""


@dataclass
class Recording:
    """Everything of one file.

    Attributes:
        path: The file.
        record: What an operator would have heard.
        stats: LoopStats of every node.
        images: Camera name -> frames, uint8 [H, W, 3] each with its seconds.
        topics: Topic -> messages.
        prefix: The namespace all of it stands in, '/' or '/arm_1/'.
    """

    path: Path
    record: Record = field(default_factory=Record)
    stats: Timed = field(default_factory=list)
    images: dict[str, list[tuple[float, np.ndarray]]] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    prefix: str = '/'


def read(path: Path) -> Recording:
    """Read ``path``.

    Raises:
        RecordingError: It is no MCAP file, it is damaged, or no robot state is in it.
    """
    from mcap.exceptions import McapError
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    found = Recording(path)
    wanted = {
        names.ROBOT_STATE: found.record.states,
        names.GATED: found.record.sent,
        names.CHUNK: found.record.chunks,
        names.SUBGOAL: found.record.subgoals,
        names.EPISODE: found.record.episodes,
        names.STATS: found.stats,
    }
    try:
        with path.open('rb') as file:
            reader = make_reader(file, decoder_factories=[DecoderFactory()])
            for _, channel, message, decoded in reader.iter_decoded_messages():
                found.topics[channel.topic] = found.topics.get(channel.topic, 0) + 1
                at = message.log_time * 1e-9
                for topic, into in wanted.items():
                    if channel.topic.endswith(f'/{topic}'):
                        into.append((at, decoded))
                        found.prefix = channel.topic.removesuffix(topic)
                _see(found, channel.topic, at, decoded)
    except McapError as error:
        raise RecordingError(
            f'{path} is no complete MCAP file ({type(error).__name__}: {error}); give a file that '
            'the recorder has closed, or repair it with `mcap recover`'
        ) from None
    if not found.record.states:
        there = ', '.join(sorted(found.topics)) or 'none'
        raise RecordingError(
            f'{path} has no robot states: it must hold {names.ROBOT_STATE}; its topics: {there}'
        )
    return found


def _see(found: Recording, topic: str, at: float, msg: Any) -> None:
    before, _, camera = topic.rpartition('/')
    if not before.endswith('/' + names.IMAGE.rpartition('/')[0]):
        return
    try:
        found.images.setdefault(camera, []).append((at, msg_to_image(msg, camera)))
    except GuardError:
        return  # what the policy was not shown, the page does not show either
