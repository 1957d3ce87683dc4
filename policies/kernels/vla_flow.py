"""One Euler step of a flow, with its pull towards the previous chunk."""

from __future__ import annotations

from torch import Tensor


def advance(
    x: Tensor,
    velocity: Tensor,
    target: Tensor,
    held: Tensor,
    time: float,
    pull: float,
    length: float,
) -> None:
    """Move the noisy actions one step, in place (arXiv 2506.07339, equations 1 to 3).

    Args:
        x: [H, A], float32; written.
        velocity: [H, A], float32.
        target: what is left of the previous chunk [H, A], float32.
        held: how strongly each action is held to it [H, 1], float32.
        time: the flow's time, 1 at noise and 0 at actions.
        pull: guidance weight.
        length: of the step.
    """
    if x.is_cuda:
        from flashrt_policies.kernels import vla_flow_triton

        vla_flow_triton.advance(x, velocity, target, held, time, pull, length)
        return
    missing = (target - (x - time * velocity)) * held
    x.add_(velocity - pull * missing, alpha=-length)
