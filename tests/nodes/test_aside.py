"""A node's one executor thread never waits: services that take their time are answered aside."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import pytest
from harness import INSTRUCTION, ended, toy_system
from rclpy.exceptions import InvalidHandle

from flashrt_ros.nodes.aside import Aside

pytestmark = pytest.mark.xdist_group('ros')
HIDE = "import sys; sys.modules['rclpy.experimental'] = None\n"  # as in ROS 2 Jazzy


class Log:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.error = self.warning = self.lines.append


class Service:
    """What an executor sees of a service: it sends at once what the callback returns."""

    srv_name = 'slow'

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.threads: list[int] = []
        self.sent: list[tuple[Any, Any]] = []

    def callback(self, request: str, response: str) -> str:
        """Answer, once it may."""
        self.threads.append(threading.get_ident())
        self.begun.set()
        assert self.go.wait(60.0)
        return f'{response} to {request}'

    def send_response(self, response: Any, header: Any) -> None:
        """Send."""
        self.sent.append((response, header))

    def request(self) -> None:
        """Do as an executor does with a request."""
        self.send_response(self.callback('question', 'answer'), 'header')


@pytest.fixture
def log() -> Iterator[Log]:
    """A log."""
    yield Log()


def test_a_service_that_waits_holds_nobody_up(log: Log) -> None:
    """The executor goes on while it waits; the answer goes out with its own request's header."""
    aside, service = Aside(log, 1), Service()
    aside.serve(service)
    service.request()
    assert service.begun.wait(60.0)
    assert service.sent == []
    service.go.set()
    aside.close()
    assert service.sent == [('answer to question', 'header')]
    assert threading.get_ident() not in service.threads


def test_one_that_is_not_aside_does(log: Log) -> None:
    """Planted: without it, the executor's own thread does the work."""
    service = Service()
    service.go.set()
    service.request()
    assert service.threads == [threading.get_ident()]


def test_what_went_wrong_is_said(log: Log) -> None:
    """An error of a job, and an answer that nobody waits for any more, are a line each."""
    aside, service = Aside(log, 1), Service()
    service.go.set()

    def gone(response: Any, header: Any) -> None:
        raise InvalidHandle('cannot use Destroyable because destruction was requested')

    service.send_response = gone  # type: ignore[method-assign]
    aside.serve(service)
    service.request()
    wait([aside.do(lambda: 1 // 0)])
    aside.close()
    assert log.lines == [
        'slow: gone before its answer was there',
        'ZeroDivisionError: integer division or modulo by zero',
    ]


@pytest.mark.parametrize(('before', 'name'), [('', 'EventsExecutor'), (HIDE, 'SingleThreaded')])
def test_which_executor(before: str, name: str) -> None:
    """The one without wait sets, and the older one where rclpy has no other."""
    code = (
        f'{before}import os, rclpy\nrclpy.init()\nfrom flashrt_ros.nodes.spin import executor\n'
        'print(type(executor()).__name__, flush=True)\nos._exit(0)'
    )
    said = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert said.stdout.startswith(name), said.stderr


def test_an_episode_with_the_older_executor(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole system runs with it, too: nothing relies on the other one."""
    (tmp_path / 'sitecustomize.py').write_text(HIDE)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    with toy_system() as (_, operator, _):
        episode = operator.start(INSTRUCTION).episode
        assert ended(operator, episode)
        assert operator.episode is not None
        assert operator.episode.outcome == 'done'
