"""Launch files name packages, executables and parameter files that exist."""

from repo_checks.launching import launch_faults, processes

HEAD = """
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare
"""
SETUP = """
from setuptools import setup
setup(entry_points={'console_scripts': ['brain = flashrt_ros.nodes.brain:main']})
"""
NODE = """
def generate_launch_description():
    share = FindPackageShare('flashrt_ros')
    default = PathJoinSubstitution([share, 'config', {file!r}])
    return LaunchDescription([
        DeclareLaunchArgument('params', default_value=default),
        Node(package='flashrt_ros', executable={executable!r}, name='b',
             parameters=[LaunchConfiguration('params'), {{'use_sim_time': True}}]),
    ])
"""


def tree(plant, executable='brain', file='a.yaml', extra=''):
    """Return a tree with one launch file."""
    launch = HEAD + NODE.format(executable=executable, file=file) + extra
    return plant({'setup.py': SETUP, 'launch/a.launch.py': launch, 'config/a.yaml': ''})


def test_launch_files_resolve(root):
    """Every launch file runs, starts something, and every name in it leads somewhere."""
    assert sorted((root / 'launch').glob('*.py')), 'no launch files'
    assert launch_faults(root) == []


def test_a_sound_launch_file_is_no_fault(plant):
    """Arguments, defaults and substitutions are followed to the file they name."""
    folder = tree(plant)
    assert launch_faults(folder) == []
    (process,) = processes(folder, folder / 'launch' / 'a.launch.py')
    assert process['parameter_files'] == [str(folder / 'config' / 'a.yaml')]


def test_faults_of_launch_files_are_found(plant):
    """Planted: no such executable; then no such parameter file; then a file that does not run."""
    assert 'no executable nobody' in launch_faults(tree(plant, executable='nobody'))[0]
    assert 'no parameter file' in launch_faults(tree(plant, file='b.yaml'))[0]
    assert 'does not run' in launch_faults(tree(plant, extra='\nraise ValueError("x")\n'))[0]
