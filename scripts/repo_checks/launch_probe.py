"""Run one launch file against stand-ins for launch and launch_ros; print what it would start."""

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

STARTED: list[dict[str, Any]] = []
ARGUMENTS: dict[str, str] = {}
ROOT = Path(os.environ['FLASHRT_ROOT'])


def text(value: Any) -> str:
    """Return what a substitution, a list of them or a path comes out as."""
    if isinstance(value, (list, tuple)):
        return ''.join(map(text, value))
    return value.value if isinstance(value, Thing) else str(value)


class Thing:
    """Stands for any class or function of launch and launch_ros."""

    def __init__(self, kind: str, *given: Any, **named: Any) -> None:
        self.kind, self.given, self.named = kind, given, named
        self.value = self.substitute()
        if 'package' in named and ('executable' in named or 'plugin' in named):
            parameters = [p for p in named.get('parameters') or [] if not isinstance(p, dict)]
            STARTED.append(
                {
                    'package': text(named['package']),
                    'executable': text(named.get('executable', named.get('plugin'))),
                    'name': text(named.get('name', '')),
                    'parameter_files': [text(p) for p in parameters],
                }
            )
        if kind == 'OpaqueFunction':
            named['function'](Thing('LaunchContext'), *named.get('args', ()))

    def substitute(self) -> str:
        """Return the text a substitution comes out as; empty for anything else."""
        if self.kind == 'DeclareLaunchArgument':
            ARGUMENTS[self.given[0]] = text(self.named.get('default_value', ''))
        if self.kind == 'LaunchConfiguration':
            return ARGUMENTS.get(self.given[0], text(self.named.get('default', '')))
        if self.kind == 'PathJoinSubstitution':
            return os.path.join(*map(text, self.given[0]))
        if self.kind in ('FindPackageShare', 'get_package_share_directory'):
            return str(ROOT)
        if self.kind in ('ParameterFile', 'TextSubstitution'):
            return text(self.given[0] if self.given else self.named.get('text', ''))
        return ''

    def perform(self, context: Any) -> str:
        """Return the text, as a substitution does."""
        return self.value

    def __getattr__(self, name: str) -> Any:
        """Stand for any method or attribute."""
        return lambda *given, **named: Thing(name, *given, **named)


class Maker:
    """Stands for a class of launch: called, it makes a Thing; its constants are their names."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, *given: Any, **named: Any) -> Thing:
        """Make the Thing."""
        return Thing(self.kind, *given, **named)

    def __getattr__(self, name: str) -> str:
        """Return a constant of the class."""
        return f'{self.kind}.{name}'


class StandIn(ModuleType):
    """A module that has everything."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        """Return the class or function called ``name``."""
        if name.startswith('__'):
            raise AttributeError(name)
        if name == 'get_package_share_directory':
            return lambda package: str(ROOT)
        return Maker(name)


def main() -> None:
    """Run the launch file named on the command line."""
    names = ['launch', 'launch_ros', 'ament_index_python', 'ament_index_python.packages']
    for part in ('actions', 'substitutions', 'conditions', 'event_handlers', 'events'):
        names += [f'launch.{part}', f'launch_ros.{part}']
    names += ['launch.launch_description_sources', 'launch_ros.parameter_descriptions']
    names += ['launch_ros.descriptions', 'launch_ros.events.lifecycle', 'lifecycle_msgs']
    names += ['lifecycle_msgs.msg']
    sys.modules.update({name: StandIn(name) for name in names})
    # Whether keys are there is no question of names; tests/nodes/test_launching.py asks it.
    importlib.import_module('flashrt_ros.nodes.security').require = lambda *given: None
    runpy.run_path(sys.argv[1])['generate_launch_description']()
    print(json.dumps(STARTED))


if __name__ == '__main__':
    main()
