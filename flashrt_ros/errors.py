"""The one root of every error a person may meet: one line, what is wrong and what would be right.

The command line prints such an error and leaves with exit code 2; a node answers a service call
with it and holds the robot. Anything else that escapes is a defect of this package.
"""

from __future__ import annotations


class FlashrtError(Exception):
    """Expected trouble: wrong input, a missing file, a state in which the request is refused."""
