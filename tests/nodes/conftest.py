"""The node tests talk ROS on this machine alone, in domains of their own."""

import os
import sys
from pathlib import Path

import pytest

from flashrt_ros.commands.demo import prepare

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
prepare()
os.environ.setdefault('RCUTILS_COLORIZED_OUTPUT', '0')


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each test wait for as long as all of its waits together may take on a slow machine."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker('timeout') is None:
            item.add_marker(pytest.mark.timeout(900))
