"""A real robot under SROS2: every node in an enclave of its own, Enforce, or nothing starts.

Make the keystore first with scripts/make_keystore, and give it as `keystore:=FOLDER`.
"""

from flashrt_ros.nodes.launching import description


def generate_launch_description():
    return description(simulated=False, secure=True)
