"""The simulator's executable with a camera driver that lies: wrong size, then wrong encoding.

With ``image_every`` 8 the cameras are seen at ticks 0, 8, 16 and so on.
"""

from __future__ import annotations

import numpy as np
from builtin_interfaces.msg import Time

from flashrt_ros.nodes.convert import image_to_msg
from flashrt_ros.nodes.sim_node import SimNode
from flashrt_ros.nodes.spin import run

WRONG_SHAPE, WRONG_ENCODING = 16, 32  # ticks at which one camera lies


class LyingSim(SimNode):
    """A robot whose cameras are set up wrongly for a moment."""

    def _show(self, stamp: Time, moment: tuple[int, int]) -> None:
        _, tick = moment
        for camera, pixels in self.world.images().items():
            msg = image_to_msg(pixels, stamp, camera)
            if tick == WRONG_SHAPE and camera == 'front':
                msg = image_to_msg(np.zeros((9, 8, 3), np.uint8), stamp, camera)
            if tick == WRONG_ENCODING and camera == 'wrist':
                msg.encoding = '16UC1'
            self._cameras[camera].publish(msg)
        self._drawn = moment


if __name__ == '__main__':
    run(LyingSim)
