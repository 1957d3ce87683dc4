"""What every executable does: init, make the node, spin, leave cleanly."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import rclpy
from rclpy.executors import Executor, ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import scheduling

PARENT = 'FLASHRT_PARENT'  # process id of the runner: a node does not outlive it
_PR_SET_PDEATHSIG = 1
_PATIENCE = 10.0  # seconds that a node may take to end in order
_TURN = 5e-4  # seconds a thread may keep the interpreter from a tick; Python's own 5 ms are long
_LOOK = 0.1  # seconds after which a waiting executor looks for a signal
# Writes message types from definitions: a grammar, a parser, templates. ROS loads it with the
# first message, and does without where it is absent; a node is there a tenth of a second sooner.
# To Python a module that is None is absent.
_GENERATOR = 'rosidl_generator_py.generate_py_impl'


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the runner dies; without a runner, do nothing."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit(1)


def run(make: Callable[[], Any]) -> NoReturn:
    """Spin the node that ``make`` returns until SIGINT, SIGTERM or shutdown; end the process.

    A node with ``autostart`` is configured and activated first.

    A signal ends the spinning, not the middleware: the node can still send its last hold. A node
    may have ``close()``: it stops the node's own threads and is called before the middleware ends.
    By then all is closed, so the process ends at once instead of taking the interpreter and its
    libraries apart, which costs seconds with torch. Exit code 2: the node could not be made, and
    one line on standard error says why.
    """
    die_with_parent()
    sys.setswitchinterval(_TURN)
    sys.modules.setdefault(_GENERATOR, None)  # type: ignore[arg-type]
    code = 1
    try:
        code = _spin(make)
    except FlashrtError as error:
        print(f'{error}', file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        rclpy.try_shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def executor() -> Executor:
    """Return what calls a node's callbacks, one at a time.

    The older one builds its wait set anew for every message, which costs more than the message.
    """
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:  # ROS 2 Jazzy
        return SingleThreadedExecutor()
    return EventsExecutor()


def _spin(make: Callable[[], Any]) -> int:
    stop = threading.Event()

    def leave(*_: object) -> None:
        stop.set()
        last = threading.Timer(_PATIENCE, os._exit, (1,))  # whatever hangs, the process ends
        last.daemon = True
        last.start()

    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    spinner = executor()
    for number in (signal.SIGINT, signal.SIGTERM):  # after the executor, which takes them, too
        signal.signal(number, leave)
    node = make()
    spinner.add_node(node)
    if hasattr(node, 'p'):
        scheduling.apply(node)
    if getattr(node, 'autostart', False):
        node.trigger_configure()
        node.trigger_activate()
    try:
        while not stop.is_set() and rclpy.ok():
            # What a cleanup destroys may be waited for at that very moment: wait anew, without it.
            with contextlib.suppress(rclpy_implementation.InvalidHandle):
                spinner.spin_until_future_complete(Future(), timeout_sec=_LOOK)
    except ExternalShutdownException:
        pass
    finally:
        if hasattr(node, 'close'):
            node.close()
        spinner.shutdown()
        node.destroy_node()
    return 0
