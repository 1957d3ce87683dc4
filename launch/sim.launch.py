"""The simulated robot: gate, simulator, brain and supervisor, brought up and active.

The processes come from the same table that `flashrt demo` starts them from; the arguments are
shown by `ros2 launch flashrt_ros sim.launch.py --show-args`.
"""

from flashrt_ros.nodes.launching import description


def generate_launch_description():
    return description(simulated=True)
