"""What every executable does: init, make the node, spin, leave cleanly."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import (
    ExternalShutdownException,
    MultiThreadedExecutor,
    SingleThreadedExecutor,
)

from flashrt_ros.errors import FlashrtError

PARENT = 'FLASHRT_PARENT'  # process id of the runner: a node does not outlive it
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the runner dies; without a runner, do nothing."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit(1)


def run(make: Callable[[], Any], threads: int = 1) -> int:
    """Spin the node that ``make`` returns until SIGINT, SIGTERM or shutdown; return the exit code.

    A node may have ``close()``: it stops the node's own threads and is called last.
    """
    die_with_parent()
    rclpy.init()
    node = None
    try:
        node = make()
        executor = (
            SingleThreadedExecutor()
            if threads == 1
            else MultiThreadedExecutor(num_threads=threads)
        )
        executor.add_node(node)
        try:
            executor.spin()
        finally:
            executor.shutdown()
        return 0
    except (KeyboardInterrupt, ExternalShutdownException):
        return 0
    except FlashrtError as error:
        print(f'{error}', file=sys.stderr)
        return 2
    finally:
        if node is not None:
            if hasattr(node, 'close'):
                node.close()
            node.destroy_node()
        rclpy.try_shutdown()
