"""Several arms, each with gate, brain and supervisor in a namespace of its own.

`arms:=left,right robots:=arm7,arm7` names them and their parameter files.
"""

from flashrt_ros.nodes.launching import description


def generate_launch_description():
    return description(simulated=False, arms=True)
