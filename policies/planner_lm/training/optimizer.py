"""Muon for matrices, Adam for everything else, with every number in tensors.

Muon (Jordan et al., 2024): the momentum of a matrix is brought near an orthogonal matrix by five
Newton-Schulz steps before it is applied, scaled so that an update is as large as one of AdamW
(Liu et al., arXiv 2502.16982, section 2.2). Matrices of one shape go through it together. Rate and
step count are tensors, so that a whole training step can be captured as one CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
_STEPS = ((3.4445, -4.7750, 2.0315),) * 5  # coefficients of the Newton-Schulz polynomial


class Optimizer:
    """Updates the parameters of a network from their gradients.

    Args:
        network: whose parameters; matrices but the embedding go through Muon.
        decay: weight decay on those matrices.
        beta1: of Adam.
        beta2: of Adam.

    Attributes:
        rate: float32 [], the learning rate; filled before each step.
        state: name -> tensor, everything the next step depends on besides the parameters.
    """

    def __init__(self, network: nn.Module, decay: float, beta1: float, beta2: float) -> None:
        self.decay, self.betas = decay, (beta1, beta2)
        named = dict(network.named_parameters())
        device = next(iter(named.values())).device
        self.rate = torch.zeros((), device=device)
        self.shapes: dict[tuple[int, ...], list[Tensor]] = {}
        self.others: list[Tensor] = []
        self.state: dict[str, Tensor] = {'count': torch.zeros((), device=device)}
        self._first: list[Tensor] = []
        self._second: list[Tensor] = []
        for name, parameter in named.items():
            if parameter.ndim == 2 and 'embed' not in name:
                self.shapes.setdefault(tuple(parameter.shape), []).append(parameter)
                continue
            self.others.append(parameter)
            for kind, kept in (('first', self._first), ('second', self._second)):
                kept.append(torch.zeros_like(parameter))
                self.state[f'{kind}/{name}'] = kept[-1]
        for shape, group in self.shapes.items():
            momentum = torch.zeros((len(group), *shape), device=device)
            self.state['momentum/' + 'x'.join(map(str, shape))] = momentum

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients; the host waits for nothing."""
        self.state['count'] += 1
        for shape, group in self.shapes.items():
            momentum = self.state['momentum/' + 'x'.join(map(str, shape))]
            grads = torch.stack([p.grad for p in group if p.grad is not None])
            momentum.lerp_(grads, 1 - MOMENTUM)
            update = orthogonal(grads.lerp(momentum, MOMENTUM))
            update = update * (self.rate * 0.2 * math.sqrt(max(shape)))
            torch._foreach_mul_(group, 1 - self.rate * self.decay)
            torch._foreach_sub_(group, list(update.unbind(0)))
        beta1, beta2 = self.betas
        grads_ = [p.grad for p in self.others if p.grad is not None]
        torch._foreach_lerp_(self._first, grads_, 1 - beta1)
        torch._foreach_mul_(self._second, beta2)
        torch._foreach_addcmul_(self._second, grads_, grads_, 1 - beta2)
        count = self.state['count']
        scale = list(torch._foreach_mul(self._second, 1 / (1 - beta2**count)))
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, 1e-8)
        update_ = list(torch._foreach_div(self._first, scale))
        torch._foreach_mul_(update_, self.rate / (1 - beta1**count))
        torch._foreach_sub_(self.others, update_)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back a state."""
        for name, tensor in self.state.items():
            tensor.copy_(tensors[name])


def orthogonal(matrices: Tensor) -> Tensor:
    """Return float32 [N, A, B] with every singular value near 1, the vectors kept."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in _STEPS:
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()
