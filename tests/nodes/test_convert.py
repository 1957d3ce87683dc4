"""Messages to the loop's types and back."""

import numpy as np
import pytest
from builtin_interfaces.msg import Time

from flashrt_ros.control.guards import GuardError
from flashrt_ros.control.types import Chunk, Command
from flashrt_ros.nodes.convert import (
    CROP,
    EXACT,
    PAD,
    chunk_to_msg,
    command_to_msg,
    fitted,
    image_to_msg,
    key,
    msg_to_command,
    msg_to_image,
)

STAMP = Time(sec=3, nanosec=7)
PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def test_commands_survive() -> None:
    """Every field of a command comes back, the action to the bit."""
    action = np.array([0.1, -1.0, np.pi, 0.0], np.float32)
    command = Command(action, 12, 3, 4, 2, True, 'because')
    back = msg_to_command(command_to_msg(command, STAMP))
    assert back.action.tobytes() == action.tobytes()
    assert (back.tick, back.episode, back.epoch) == (12, 3, 4)
    assert (back.generation, back.held, back.reason) == (2, True, 'because')


def test_chunks_are_told_in_full() -> None:
    """A chunk's telemetry holds every action, row after row, and what stamps it."""
    actions = np.arange(8, dtype=np.float32).reshape(4, 2)
    msg = chunk_to_msg(Chunk(actions, 8, 12, 1, 2, 3, 4.5, True), STAMP, 'abc')
    assert list(msg.actions) == list(range(8))
    assert (msg.horizon, msg.action_dim, msg.tick, msg.due_tick) == (4, 2, 8, 12)
    assert (msg.capsule, msg.inference_ms, msg.late) == ('abc', 4.5, True)
    assert key(msg.header.stamp) == 3_000_000_007


def test_images_survive() -> None:
    """rgb8 comes back as it was, bgr8 with its channels turned, padded rows without padding."""
    msg = image_to_msg(PIXELS, STAMP, 'front')
    assert np.array_equal(msg_to_image(msg), PIXELS)
    msg.encoding = 'bgr8'
    assert np.array_equal(msg_to_image(msg), PIXELS[..., ::-1])
    padded = np.zeros((4, 20), np.uint8)
    padded[:, :15] = PIXELS.reshape(4, 15)
    msg.encoding, msg.step, msg.data = 'rgb8', 20, padded.tobytes()
    assert np.array_equal(msg_to_image(msg), PIXELS)


def test_cameras_with_four_channels_or_one() -> None:
    """rgba8 and bgra8 lose their alpha, mono8 is grey."""
    msg = image_to_msg(PIXELS, STAMP, 'front')
    alpha = np.concatenate([PIXELS, np.full((4, 5, 1), 9, np.uint8)], axis=2)
    msg.encoding, msg.step, msg.data = 'rgba8', 20, alpha.tobytes()
    assert np.array_equal(msg_to_image(msg), PIXELS)
    msg.encoding = 'bgra8'
    assert np.array_equal(msg_to_image(msg), PIXELS[..., ::-1])
    msg.encoding, msg.step, msg.data = 'mono8', 5, PIXELS[..., 0].tobytes()
    assert np.array_equal(msg_to_image(msg), np.repeat(PIXELS[..., :1], 3, axis=2))


def test_images_of_another_size() -> None:
    """Exact leaves them for the guard, crop cuts the middle out, pad adds black."""
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, 4:12] = 200  # the middle, as high as it is wide
    assert fitted(wide, (4, 4), EXACT).shape == (8, 16, 3)
    assert np.array_equal(fitted(wide, (4, 4), CROP), np.full((4, 4, 3), 200, np.uint8))
    padded = fitted(wide, (4, 4), PAD)
    assert padded.shape == (4, 4, 3)
    assert padded[0].max() == padded[3].max() == 0
    assert padded[1, 1:3].min() == 200


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        ({'encoding': '16UC1'}, "encoding '16UC1'; it must be rgb8, bgr8, rgba8, bgra8 or mono8"),
        ({'step': 14}, 'need a step of 15 or more'),
        ({'height': 5}, 'holds 60 bytes'),
    ],
)
def test_a_wrong_image_is_refused(change: dict, words: str) -> None:
    """An encoding that is not understood, or data that does not fit its size: one sentence."""
    msg = image_to_msg(PIXELS, STAMP, 'front')
    for name, value in change.items():
        setattr(msg, name, value)
    with pytest.raises(GuardError, match=words):
        msg_to_image(msg)
