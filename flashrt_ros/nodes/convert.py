"""Messages to the loop's own types and back.

The gate has neither images nor joint states, and is on guard the sooner without their types.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from builtin_interfaces.msg import Time

from flashrt_interfaces.msg import ActionChunk, ControlCommand
from flashrt_ros.control.guards import GuardError
from flashrt_ros.control.types import Chunk, Command

if TYPE_CHECKING:
    from sensor_msgs.msg import Image, JointState

EXACT, CROP, PAD = 'exact', 'crop', 'pad'  # how an image of another size is made to fit


def floats(values: np.ndarray) -> array.array:
    """Return float32 values as the array a message field takes without a copy per number."""
    return array.array('f', np.ascontiguousarray(values, dtype=np.float32).tobytes())


def octets(values: np.ndarray) -> array.array:
    """Return uint8 values as the array a message field takes without a copy per number."""
    return array.array('B', np.ascontiguousarray(values, dtype=np.uint8).tobytes())


def command_to_msg(command: Command, stamp: Time) -> ControlCommand:
    """Return ``command`` as a message stamped ``stamp``."""
    msg = ControlCommand()
    msg.header.stamp = stamp
    msg.episode, msg.epoch, msg.generation = command.episode, command.epoch, command.generation
    msg.tick = command.tick
    msg.action = floats(command.action)
    msg.held, msg.reason = command.held, command.reason
    return msg


def msg_to_command(msg: ControlCommand) -> Command:
    """Return the command a message carries."""
    return Command(
        np.array(msg.action, dtype=np.float32),
        msg.tick,
        msg.episode,
        msg.epoch,
        msg.generation,
        msg.held,
        msg.reason,
    )


def chunk_to_msg(chunk: Chunk, stamp: Time, capsule: str) -> ActionChunk:
    """Return ``chunk`` as telemetry; ``stamp`` is that of its observation."""
    msg = ActionChunk()
    msg.header.stamp = stamp
    msg.episode, msg.epoch, msg.generation = chunk.episode, chunk.epoch, chunk.generation
    msg.tick, msg.due_tick = chunk.tick, chunk.due
    msg.horizon, msg.action_dim = chunk.actions.shape
    msg.actions = floats(chunk.actions)
    msg.capsule = capsule
    msg.inference_ms, msg.late = float(chunk.latency_ms), chunk.late
    return msg


def image_to_msg(pixels: np.ndarray, stamp: Time, frame: str) -> Image:
    """Return uint8 [H, W, 3] as an rgb8 image."""
    from sensor_msgs.msg import Image

    msg = Image()
    msg.header.stamp, msg.header.frame_id = stamp, frame
    msg.height, msg.width = pixels.shape[:2]
    msg.encoding, msg.step = 'rgb8', 3 * pixels.shape[1]
    msg.data = octets(pixels)
    return msg


# encoding -> bytes of a pixel, and which of them are red, green and blue
ENCODINGS = {
    'rgb8': (3, (0, 1, 2)), 'bgr8': (3, (2, 1, 0)), 'rgba8': (4, (0, 1, 2)),
    'bgra8': (4, (2, 1, 0)), 'mono8': (1, (0, 0, 0)),
}  # fmt: skip


def msg_to_image(msg: Image, camera: str = '') -> np.ndarray:
    """Return an image message as uint8 [H, W, 3] in RGB order.

    Args:
        msg: The message.
        camera: What to call it in an error; by default its frame.

    Raises:
        GuardError: The encoding is not one of `ENCODINGS`, or the data does not fit the size.
    """
    name = camera or msg.header.frame_id
    if msg.encoding not in ENCODINGS:
        *others, last = ENCODINGS
        raise GuardError(
            'encoding',
            f'image {name!r} has encoding {msg.encoding!r}; it must be {", ".join(others)} or '
            f'{last}',
        )
    depth, order = ENCODINGS[msg.encoding]
    data = np.frombuffer(msg.data, dtype=np.uint8)
    if msg.step < depth * msg.width or data.size != msg.step * msg.height:
        raise GuardError(
            'shape',
            f'image {name!r} holds {data.size} bytes with step {msg.step}; {msg.height} rows of '
            f'{msg.width} pixels need a step of {depth * msg.width} or more',
        )
    rows = data.reshape(msg.height, msg.step)[:, : depth * msg.width]
    pixels = rows.reshape(msg.height, msg.width, depth)  # [H, W, 1, 3 or 4]
    return np.ascontiguousarray(pixels[..., list(order)])


def fitted(pixels: np.ndarray, height_width: tuple[int, int], how: str) -> np.ndarray:
    """Return an image in the size that a policy takes: uint8 [H, W, 3].

    Args:
        pixels: uint8 [h, w, 3].
        height_width: H and W.
        how: 'exact' changes nothing; 'crop' cuts the middle out in the policy's proportions,
            'pad' keeps everything and adds black; both scale by averaging.
    """
    height, width = height_width
    if how == EXACT or pixels.shape[:2] == (height, width):
        return pixels
    from PIL import Image as Picture

    picture = Picture.fromarray(pixels)
    scale = (max if how == CROP else min)(height / picture.height, width / picture.width)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    small = picture.resize(size, Picture.Resampling.BOX)
    left, top = (width - small.width) // 2, (height - small.height) // 2
    whole = Picture.new('RGB', (width, height))
    whole.paste(small, (left, top))
    return np.array(whole)


def key(stamp: Time) -> int:
    """Return a stamp in nanoseconds, to pair messages by."""
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def joints_of(msg: JointState, wanted: Sequence[str]) -> np.ndarray:
    """Return the positions of the joints ``wanted``, in that order: float32 [P].

    Raises:
        GuardError: One of them is not in the message, or it has another number of positions.
    """
    if len(msg.position) != len(msg.name):
        raise GuardError(
            'joints',
            f'the joint state has {len(msg.name)} names and {len(msg.position)} positions; '
            'it must have a position for each name',
        )
    index = {name: place for place, name in enumerate(msg.name)}
    missing = [name for name in wanted if name not in index]
    if missing:
        raise GuardError(
            'joints',
            f'the joint state has {len(msg.name)} joints ({", ".join(msg.name)}) and no '
            f'{missing[0]!r}; the policy needs {len(wanted)}: {", ".join(wanted)}',
        )
    return np.array([msg.position[index[name]] for name in wanted], np.float32)
