"""The node tests talk ROS on this machine alone, in domains of their own."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from flashrt_ros.commands.demo import prepare

prepare()
os.environ.setdefault('RCUTILS_COLORIZED_OUTPUT', '0')
