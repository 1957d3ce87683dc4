"""The table of processes, its parameter files and the launch files, without starting anything."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flashrt_ros.nodes import launching
from flashrt_ros.nodes.params import Param
from flashrt_ros.nodes.runner import arguments, executable
from flashrt_ros.nodes.system import APART, PACKAGE, PROCESSES, RECORDER, Process
from flashrt_ros.share import config, share

ROOT = share()


def declared(process: Process) -> dict[str, Param]:
    """Return the parameters that the process's executable declares, by name."""
    module = importlib.import_module(f'{PACKAGE}.nodes.{process.executable}')
    return {p.name: p for p in module.PARAMS}


def given(process: Process) -> dict[str, object]:
    """Return the parameters in the process's files."""
    values: dict[str, object] = {}
    for file in process.config:
        values.update(yaml.safe_load(config(file).read_text())['/**']['ros__parameters'])
    return values


@pytest.mark.parametrize('process', [*PROCESSES, *APART, RECORDER], ids=lambda p: p.executable)
def test_files_and_declarations_agree(process: Process) -> None:
    """Every declared parameter stands in the file and vice versa, of its type, in range."""
    params, values = declared(process), given(process)
    assert sorted(values) == sorted(params)
    for name, value in values.items():
        param = params[name]
        assert type(value) is type(param.default), name
        if param.low is not None and param.high is not None:
            assert param.low <= value <= param.high, name  # type: ignore[operator]
        if param.choices:
            assert value in param.choices, name
        assert param.description, name


@pytest.mark.parametrize('process', [*PROCESSES, *APART, RECORDER], ids=lambda p: p.executable)
def test_executables_exist(process: Process) -> None:
    """What the table starts is a module with a main, and an entry point of the package."""
    module = importlib.import_module(f'{PACKAGE}.nodes.{process.executable}')
    assert callable(module.main)
    assert executable(process.executable)[-1].endswith(process.executable)
    if (ROOT / 'setup.py').is_file():
        assert f"'{process.executable}'" in (ROOT / 'setup.py').read_text()


def test_arguments_are_those_of_launch() -> None:
    """A process gets its node name, its files and then what differs from them."""
    words = arguments(PROCESSES[0], {'silence_s': 0.2, 'flag': True})
    assert words[:3] == ['--ros-args', '-r', '__node:=gate']
    assert Path(words[words.index('--params-file') + 1]).is_file()
    assert words[-4:] == ['-p', 'silence_s:=0.2', '-p', 'flag:=true']


def test_launch_where_it_is_installed() -> None:
    """The description can be made wherever launch_ros is importable."""
    pytest.importorskip('launch_ros', reason='launch_ros is not on PyPI; part of a sourced ROS 2')
    assert launching.description(True).entities


def test_the_table_needs_no_rclpy() -> None:
    """Table and runner load neither rclpy nor torch."""
    code = (
        'import sys, flashrt_ros.nodes.system, flashrt_ros.nodes.runner; '
        'print([m for m in ("rclpy", "torch") if m in sys.modules])'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '[]'
