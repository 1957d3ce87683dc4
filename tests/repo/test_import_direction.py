"""Imports run one way: contract <- capsule <- (control | policies) <- sim <- nodes, cli."""

import subprocess
import sys

import pytest
from repo_checks.imports import NO_TORCH, direction, torch_free

AGAINST = {
    'contract knows capsule': ('flashrt_ros/contract/a.py', 'import flashrt_ros.capsule.session'),
    'contract uses triton': ('flashrt_ros/contract/a.py', 'import triton'),
    'capsule knows control': ('flashrt_ros/capsule/a.py', 'from flashrt_ros import control'),
    'relative': ('flashrt_ros/capsule/a.py', 'from ..control.actor import Actor'),
    'inside a function': (
        'flashrt_ros/capsule/a.py',
        'def f():\n    import flashrt_ros.nodes.brain',
    ),
    'by its name': (
        'flashrt_ros/capsule/a.py',
        'import importlib\nimportlib.import_module("flashrt_sim")',
    ),
    'control knows policies': ('flashrt_ros/control/a.py', 'import flashrt_policies.registry'),
    'policies know control': ('policies/a.py', 'from flashrt_ros.control import actor'),
    'policies know the simulation': ('policies/a.py', 'from flashrt_sim import envs'),
    'the simulation knows nodes': ('sim/a.py', 'from flashrt_ros.nodes import brain'),
    'the simulation knows ROS': ('sim/a.py', 'import rclpy'),
    'control knows messages': ('flashrt_ros/control/a.py', 'from std_msgs.msg import Bool'),
    'capsule knows interfaces': (
        'flashrt_ros/capsule/a.py',
        'from flashrt_interfaces.srv import Restore',
    ),
    'nodes know the command line': ('flashrt_ros/nodes/a.py', 'from flashrt_ros import cli'),
    'errors use torch': ('flashrt_ros/errors.py', 'import torch'),
    'a folder instead of the package': ('flashrt_ros/nodes/a.py', 'from policies import base'),
}
ALONG = {
    'flashrt_ros/errors.py': 'import os',
    'flashrt_ros/contract/a.py': 'import torch, numpy, threading\nfrom flashrt_ros import errors',
    'flashrt_ros/capsule/a.py': 'from flashrt_ros.contract.a import thing',
    'flashrt_ros/control/a.py': 'from ..capsule import a',
    'policies/a.py': 'import triton\nfrom flashrt_ros.capsule import a',
    'sim/a.py': 'from flashrt_ros.control import a\nimport flashrt_policies.a',
    'flashrt_ros/nodes/a.py': 'import rclpy\nimport flashrt_sim.a',
    'flashrt_ros/commands/demo.py': 'from flashrt_ros.nodes import a',
}


def test_every_import_runs_along_the_arrows(root):
    """No module imports what stands to its right, and only the right end knows ROS."""
    assert direction(root) == []


def test_imports_along_the_arrows_are_not_faults(plant):
    """The check finds nothing in a tree in which everything is as it should be."""
    assert direction(plant(ALONG)) == []


@pytest.mark.parametrize('fault', AGAINST)
def test_an_import_against_the_arrows_is_found(plant, fault):
    """Planted: one import against the arrows is one fault that names file and line."""
    path, source = AGAINST[fault]
    (found,) = direction(plant({path: source}))
    assert found.startswith(f'{path}:')


def test_gate_and_supervisor_reach_no_torch(root):
    """No chain of imports leads from the action gate or the supervisor to torch."""
    assert torch_free(root) == []


def test_a_chain_to_torch_is_found(plant):
    """Planted: torch three imports away, one of them inside a function and one in __init__."""
    tree = plant(
        {
            'flashrt_ros/nodes/gate_node.py': 'def main():\n    import flashrt_ros.control.gate',
            'flashrt_ros/control/gate.py': 'from flashrt_ros.capsule.errors import E',
            'flashrt_ros/capsule/__init__.py': 'import torch',
            'flashrt_ros/capsule/errors.py': 'E = 1',
        }
    )
    (found,) = torch_free(tree, ('flashrt_ros.nodes.gate_node',))
    assert found.endswith('flashrt_ros.control.gate -> flashrt_ros.capsule.errors.E -> torch')


def loaded_torch(*modules: str) -> bool:
    """Import modules in a fresh process; return whether torch came along."""
    imports = ''.join(f'import {module}\n' for module in modules)
    probe = f'{imports}import sys\nprint("torch" in sys.modules)'
    command = [sys.executable, '-c', probe]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout == 'True\n'


@pytest.mark.parametrize('module', NO_TORCH)
def test_the_process_itself_has_no_torch(module):
    """A real process that imports the node has no torch in it."""
    pytest.importorskip('rclpy', reason='no ROS 2 here')
    assert not loaded_torch(module)


def test_a_process_with_torch_is_found():
    """Planted: the same look at a process that does import torch sees it."""
    assert loaded_torch('flashrt_ros.contract.buffer')
