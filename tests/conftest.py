"""What every test process needs, also when pytest is started without ``make test``."""

import os
import sys
from collections import Counter
from typing import Any

# Before rclpy, mujoco or torch is imported: they read the environment once.
os.environ.setdefault('AMENT_PREFIX_PATH', sys.prefix)
os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
os.environ.setdefault('MUJOCO_GL', 'egl')

# pytest-xdist calls its workers gw0, gw1, ...; each has its own ROS domain and share of the cores.
# Domains up to 101 keep clear of the ports that the system hands out.
_worker = int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0').removeprefix('gw'))
_workers = int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', '1'))
_base = int(os.environ.get('FLASHRT_TEST_DOMAIN') or 1 + os.getpid() % 90)
os.environ.setdefault('FLASHRT_TEST_DOMAIN', str(_base))  # workers count from the controller's
os.environ['ROS_DOMAIN_ID'] = str(1 + (_base + _worker) % 100)
os.environ.setdefault('OMP_NUM_THREADS', str(max(1, (os.cpu_count() or 1) // _workers)))


def pytest_report_header() -> str:
    """Name the ROS domain, so that a person can look into a test that hangs."""
    return f'ROS domain: {os.environ["ROS_DOMAIN_ID"]} and the next for each further worker'


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print why tests were skipped: each reason once, with how many it holds for."""
    skipped = terminalreporter.stats.get('skipped', ())
    reasons = Counter(report.longrepr[2].removeprefix('Skipped: ') for report in skipped)
    if reasons:
        terminalreporter.section('skipped')
    for reason, count in reasons.most_common():
        terminalreporter.line(f'{count:4d}  {reason}')
