"""Install flashrt_ros: one ROS 2 package (ament_python), three import packages.

The folders ``policies/`` and ``sim/`` are installed under the import names ``flashrt_policies``
and ``flashrt_sim``. Nothing called ``policies``, ``sim`` or ``tests`` reaches site-packages.
"""

from pathlib import Path

from setuptools import find_packages, setup

NAME = 'flashrt_ros'
VERSION = '0.1.0'

# Import name -> folder. Only what stands here is installed, together with its own sub-packages.
ROOTS = {'flashrt_ros': 'flashrt_ros', 'flashrt_policies': 'policies', 'flashrt_sim': 'sim'}
NODES = (
    'policy_node',
    'planner_node',
    'brain',
    'supervisor_node',
    'gate_node',
    'sim_node',
    'recorder_node',
)


def packages() -> list[str]:
    """Return the import names of every package below ROOTS."""
    names = []
    for name, folder in ROOTS.items():
        names.append(name)
        names += [f'{name}.{sub}' for sub in find_packages(folder)]
    return names


def below(folder: str, *patterns: str) -> list[str]:
    """Return the files in ``folder`` that match one of ``patterns``, as setuptools wants them."""
    return sorted({p.as_posix() for pattern in patterns for p in Path(folder).glob(pattern)})


setup(
    name=NAME,
    version=VERSION,
    packages=packages(),
    package_dir=ROOTS,
    package_data={
        'flashrt_policies': ['weights/*/*.json', 'weights/*/*.safetensors', 'weights/*/*.md'],
        'flashrt_sim': ['envs/assets/**/*'],
    },
    data_files=[
        ('share/ament_index/resource_index/packages', [f'resource/{NAME}']),
        (f'share/{NAME}', ['package.xml', 'LICENSE']),
        *(
            (f'share/{NAME}/{folder}', below(folder, '*.yaml', '*.xml', '*.json'))
            for folder in ('config', 'config/robots', 'config/policies', 'config/security')
        ),
        (f'share/{NAME}/launch', below('launch', '*.py', '*.yaml', '*.xml')),
    ],
    python_requires='>=3.10',
    install_requires=[
        'gymnasium>=1.0',
        'Jinja2>=3.1',
        'imageio>=2.30',
        'imageio-ffmpeg>=0.5',
        'matplotlib>=3.8',
        'mcap>=1.2',
        'mcap-ros2-support>=0.5',
        'metaworld>=3.0',
        'mujoco>=3.0',
        'numpy>=1.26',
        'packaging',
        'pillow>=10',
        'pyarrow>=15',
        'PyYAML>=6',
        'safetensors>=0.4',
        'tokenizers>=0.20',
        'torch>=2.4',
        'tqdm>=4.60',
    ],
    extras_require={
        'gguf': ['gguf>=0.10'],
        'fetch': ['gymnasium-robotics>=1.4'],
        'ray': ['ray>=2.40'],
    },
    zip_safe=False,
    description='A robot brain whose whole state is one object: freeze, restore, fork, roll back.',
    long_description=Path('README.md').read_text('utf-8') if Path('README.md').exists() else '',
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    maintainer='flashrt_ros maintainers',
    maintainer_email='maintainers@users.noreply.github.com',
    entry_points={
        'console_scripts': ['flashrt = flashrt_ros.cli:main']
        + [f'{node} = flashrt_ros.nodes.{node}:main' for node in NODES],
        # Fixtures for tests of a planner and a policy of one's own; see docs/testing.md.
        'pytest11': ['flashrt = flashrt_sim.testing.plugin'],
    },
)
