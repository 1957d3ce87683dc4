"""SROS2: each node in an enclave of its own, and nothing starts unless every key is there.

`scripts/make_keystore` makes the keystore from the policy files in `config/security`, one per
node, which allow each node what it uses and nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.nodes.launching import Started

ROOT = 'flashrt'  # every enclave is /flashrt[/NAMESPACE]/NODE
KEYS = (
    'cert.pem', 'key.pem', 'governance.p7s', 'identity_ca.cert.pem', 'permissions.p7s',
    'permissions_ca.cert.pem',
)  # fmt: skip
PROBE = """
import rclpy
rclpy.init(args=['--ros-args', '--enclave', {enclave!r}])
rclpy.create_node('security_probe')
"""


class SecurityError(FlashrtError):
    """The system cannot be started securely."""


def enclave(namespace: str, node: str) -> str:
    """Return the enclave of a node."""
    return '/' + '/'.join(part for part in (ROOT, namespace.strip('/'), node) if part)


def enclaved(started: Sequence[Started]) -> list[Started]:
    """Return ``started``, each in its enclave."""
    return [replace(one, enclave=enclave(one.namespace, one.process.node)) for one in started]


def environment(keystore: str) -> dict[str, str]:
    """Return the variables under which a node starts securely or not at all."""
    return {
        'ROS_SECURITY_ENABLE': 'true',
        'ROS_SECURITY_STRATEGY': 'Enforce',
        'ROS_SECURITY_KEYSTORE': keystore,
    }


def require(keystore: str, started: Sequence[Started]) -> None:
    """Refuse to go on unless every node can be started securely.

    Raises:
        SecurityError: No keystore, a key is missing or can be read by others, or the middleware
            was built without DDS security.
    """
    make = 'make it with scripts/make_keystore'
    if not keystore:
        raise SecurityError(f'no keystore was named: give keystore:=FOLDER, and {make}')
    folder = Path(keystore)
    if not folder.is_dir():
        raise SecurityError(f'there is no keystore {folder}: {make}')
    for one in started:
        place = folder / 'enclaves' / one.enclave.strip('/')
        missing = [name for name in KEYS if not (place / name).is_file()]
        if missing:
            raise SecurityError(f'enclave {one.enclave} has no {missing[0]} in {place}: {make}')
        key = place / 'key.pem'
        if key.stat().st_mode & 0o077:
            raise SecurityError(f'{key} can be read by others: chmod 600 it, or make it anew')
    middleware = probe(keystore, started[0].enclave)
    if middleware:
        raise SecurityError(middleware)


def probe(keystore: str, name: str) -> str:
    """Return why the middleware cannot make a secure node; '' if it can."""
    env = {**os.environ, **environment(keystore)}
    command = [sys.executable, '-c', PROBE.format(enclave=name)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode == 0:
        return ''
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    telling = [x for x in lines if 'ecurity' in x and 'File "' not in x and 'PROBE' not in x]
    said = (telling or lines or ['it said nothing'])[0]
    rmw = os.environ.get('RMW_IMPLEMENTATION', 'rmw_fastrtps_cpp')
    return (
        f'{rmw} makes no secure node ({said[:160]}): use one that was built with DDS security, '
        'as that of apt is and that of the PyPI wheels is not'
    )
