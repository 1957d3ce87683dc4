"""What the lifecycle nodes share: errors become one log line, active or not is one flag.

Every line of the log ends with the episode and the epoch it belongs to, as `key=value`.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from flashrt_interfaces.msg import LoopStats
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes.aside import Aside
from flashrt_ros.nodes.telemetry import Telemetry

OK = TransitionCallbackReturn.SUCCESS
FAILED = TransitionCallbackReturn.FAILURE


class Log:
    """A node's log, each line with the episode and epoch of its moment.

    Args:
        node: A `Managed` node.
    """

    def __init__(self, node: Any) -> None:
        self._logger = node.get_logger()
        self._stamp = node.stamp

    def _line(self, text: str) -> str:
        episode, epoch = self._stamp()
        return f'{text} | episode={episode} epoch={epoch}'

    def info(self, text: str) -> None:
        """Say what went as it should."""
        self._logger.info(self._line(text))

    def warning(self, text: str) -> None:
        """Say what is odd, and that the loop goes on."""
        self._logger.warning(self._line(text))

    def error(self, text: str) -> None:
        """Say what is wrong, and what would be right."""
        self._logger.error(self._line(text))


class Managed(LifecycleNode):
    """A lifecycle node whose transitions are four plain methods.

    ``__init__`` declares parameters; `configure` allocates, loads and warms up; `activate`
    starts; `deactivate` stops; `cleanup` gives back. Each may raise `FlashrtError`: the
    transition then fails, and the reason is one line in the log.

    Callbacks come one at a time, on the executor's one thread; what waits goes `aside`.
    """

    aside_threads = 1

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.active = False
        self.ready = False  # configured
        self._made: list[tuple[Any, Any]] = []
        self.log = Log(self)
        self.aside = Aside(self.log, self.aside_threads)
        self.telemetry = Telemetry(self)

    def stamp(self) -> tuple[int, int]:
        """Return episode and epoch, for the log and the telemetry."""
        return 0, 0

    def figures(self, msg: LoopStats) -> str:
        """Fill in what this node measures; return what is wrong with it, '' if nothing."""
        return ''

    def configure(self) -> None:
        """Allocate, load, warm up."""

    def activate(self) -> None:
        """Start."""

    def deactivate(self) -> None:
        """Stop."""

    def cleanup(self) -> None:
        """Give back what `configure` took."""

    # What `configure` makes with these is unmade when the node is cleaned up.

    def listen(self, kind: Any, topic: str, heard: Any, profile: Any, **more: Any) -> Any:
        """Subscribe to ``topic``."""
        made = self.create_subscription(kind, topic, heard, profile, **more)
        self._made.append((self.destroy_subscription, made))
        return made

    def offer(self, kind: Any, service: str, answer: Any, aside: bool = False) -> Any:
        """Offer ``service``; with ``aside`` it may wait, and is answered from another thread."""
        made = self.create_service(kind, service, answer)
        if aside:
            self.aside.serve(made)
        self._made.append((self.destroy_service, made))
        return made

    def every(self, seconds: float, look: Any) -> Any:
        """Call ``look`` every so many seconds."""
        made = self.create_timer(seconds, look)
        self._made.append((self.destroy_timer, made))
        return made

    def _unmake(self) -> None:
        while self._made:
            unmake, made = self._made.pop()
            unmake(made)

    def close(self) -> None:
        """Deactivate if need be, then stop the node's own threads; called last."""
        was_active, self.active = self.active, False
        if was_active:
            self._step('deactivate', self.deactivate)
        self.aside.close()

    def _step(self, name: str, step: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            step()
        except FlashrtError as error:
            self.log.error(f'{name} failed: {error}')
            return FAILED
        except Exception as error:
            kind = type(error).__name__
            self.log.error(f'{name} failed: {kind}: {str(error).splitlines()[0:1]}')
            return FAILED
        return OK

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run `configure`."""
        result = self._step('configure', self.configure)
        self.ready = result == OK
        if not self.ready:
            self._unmake()
        return result

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run `activate`."""
        # What has been loaded stays: the collector need not walk over it again between ticks.
        gc.collect()
        gc.freeze()
        result = self._step('activate', self.activate)
        self.active = result == OK
        return result if result != OK else super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run `deactivate`."""
        self.active = False
        result = self._step('deactivate', self.deactivate)
        return result if result != OK else super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run `cleanup`."""
        self.ready = False
        self._unmake()
        return self._step('cleanup', self.cleanup)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop and give back."""
        was_active, self.active = self.active, False
        if was_active:
            self._step('deactivate', self.deactivate)
        was_ready, self.ready = self.ready, False
        self._unmake()
        return self._step('cleanup', self.cleanup) if was_ready else OK


def answers(method: Callable) -> Callable:
    """Wrap a service callback: what it raises becomes ``success = False`` and one line.

    The wrapped method fills in the response and returns the sentence that says what was done.
    """

    @functools.wraps(method)
    def answer(self: Managed, request: Any, response: Any) -> Any:
        try:
            if not self.active:
                raise FlashrtError(f'{self.get_name()} is not active: activate it first')
            response.message = method(self, request, response)
            response.success = True
        except (FlashrtError, ValueError) as error:
            response.success, response.message = False, str(error)
            self.log.error(f'{method.__name__.strip("_")} refused: {error}')
        except Exception as error:
            kind = type(error).__name__
            response.success, response.message = False, f'{kind}: {error}'
            self.log.error(f'{method.__name__.strip("_")} failed: {kind}: {error}')
        return response

    return answer
