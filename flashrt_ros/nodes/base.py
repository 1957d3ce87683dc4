"""What the lifecycle nodes share: errors become one log line, active or not is one flag."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from flashrt_ros.errors import FlashrtError

OK = TransitionCallbackReturn.SUCCESS
FAILED = TransitionCallbackReturn.FAILURE


class Managed(LifecycleNode):
    """A lifecycle node whose transitions are four plain methods.

    ``__init__`` declares parameters; `configure` allocates, loads and warms up; `activate`
    starts; `deactivate` stops; `cleanup` gives back. Each may raise `FlashrtError`: the
    transition then fails, and the reason is one line in the log.
    """

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.active = False

    def configure(self) -> None:
        """Allocate, load, warm up."""

    def activate(self) -> None:
        """Start."""

    def deactivate(self) -> None:
        """Stop."""

    def cleanup(self) -> None:
        """Give back what `configure` took."""

    def close(self) -> None:
        """Deactivate if need be, then stop the node's own threads; called last."""
        was_active, self.active = self.active, False
        if was_active:
            self._step('deactivate', self.deactivate)

    def _step(self, name: str, step: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            step()
        except FlashrtError as error:
            self.get_logger().error(f'{name} failed: {error}')
            return FAILED
        except Exception as error:
            kind = type(error).__name__
            self.get_logger().error(f'{name} failed: {kind}: {str(error).splitlines()[0:1]}')
            return FAILED
        return OK

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run `configure`."""
        return self._step('configure', self.configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run `activate`."""
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
        return self._step('cleanup', self.cleanup)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop and give back."""
        was_active, self.active = self.active, False
        if was_active:
            self._step('deactivate', self.deactivate)
        return self._step('cleanup', self.cleanup)


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
            self.get_logger().error(f'{method.__name__.strip("_")} refused: {error}')
        except Exception as error:
            kind = type(error).__name__
            response.success, response.message = False, f'{kind}: {error}'
            self.get_logger().error(f'{method.__name__.strip("_")} failed: {kind}: {error}')
        return response

    return answer
