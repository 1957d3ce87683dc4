"""Optimisers whose whole state is named tensors, so that a run resumes with the same bits.

`Muon` (Jordan et al., 2024): the momentum of a matrix is brought near an orthogonal matrix by five
Newton-Schulz steps before it is applied, scaled so that an update is as large as one of AdamW
(Liu et al., arXiv 2502.16982, section 2.2). Matrices of one shape go through it together. Rate and
step count are tensors, so that a whole training step can be captured as one CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from flashrt_policies.training.loop import Loop

MOMENTUM = 0.95
_STEPS = ((3.4445, -4.7750, 2.0315),) * 5  # coefficients of the Newton-Schulz polynomial


class Optimizer(Protocol):
    """Updates the parameters of a network from their gradients."""

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""

    def step(self) -> None:
        """Apply the gradients."""

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next step depends on besides the parameters."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned."""


class AdamW:
    """torch's AdamW; matrices decay, vectors do not.

    Args:
        network: whose parameters.
        loop: rate, decay and betas; `graph`: on CUDA, so that a step can be captured.
    """

    def __init__(self, network: nn.Module, loop: Loop) -> None:
        self.network = network
        parameters = list(network.parameters())
        device = parameters[0].device
        cuda = device.type == 'cuda'
        captured = cuda and loop.graph
        self.inner = torch.optim.AdamW(
            [
                {'params': [p for p in parameters if p.ndim >= 2], 'weight_decay': loop.decay},
                {'params': [p for p in parameters if p.ndim < 2], 'weight_decay': 0.0},
            ],
            lr=torch.tensor(loop.rate, device=device) if captured else loop.rate,
            betas=(loop.beta1, loop.beta2),
            fused=cuda,
            capturable=captured,
        )

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        for group in self.inner.param_groups:
            if isinstance(group['lr'], Tensor):
                group['lr'].fill_(rate)
            else:
                group['lr'] = rate

    def step(self) -> None:
        """Apply the gradients."""
        self.inner.step()

    def state(self) -> dict[str, Tensor]:
        """Return the moments and step counts as ``<what>/<parameter>``."""
        found = {}
        for name, parameter in self.network.named_parameters():
            for what, value in self.inner.state[parameter].items():
                found[f'{what}/{name}'] = torch.as_tensor(value).reshape(
                    parameter.shape if what != 'step' else (1,)
                )
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned."""
        groups = self.inner.state_dict()['param_groups']
        ordered = [p for group in self.inner.param_groups for p in group['params']]
        numbers = {id(parameter): i for i, parameter in enumerate(ordered)}
        states: dict[int, dict[str, Tensor]] = {}
        for name, parameter in self.network.named_parameters():
            states[numbers[id(parameter)]] = {
                'step': tensors[f'step/{name}'].reshape(()),
                'exp_avg': tensors[f'exp_avg/{name}'],
                'exp_avg_sq': tensors[f'exp_avg_sq/{name}'],
            }
        self.inner.load_state_dict({'state': states, 'param_groups': groups})


class Muon:
    """Muon for matrices, Adam for everything else.

    Args:
        network: whose parameters; matrices but the embedding go through Muon.
        loop: decay of those matrices, and Adam's betas.
    """

    def __init__(self, network: nn.Module, loop: Loop) -> None:
        self.decay, self.betas = loop.decay, (loop.beta1, loop.beta2)
        named = dict(network.named_parameters())
        device = next(iter(named.values())).device
        self.rate = torch.zeros((), device=device)
        self.shapes: dict[tuple[int, ...], list[Tensor]] = {}
        self.others: list[Tensor] = []
        self._state: dict[str, Tensor] = {'count': torch.zeros((), device=device)}
        self._first: list[Tensor] = []
        self._second: list[Tensor] = []
        for name, parameter in named.items():
            if parameter.ndim == 2 and 'embed' not in name:
                self.shapes.setdefault(tuple(parameter.shape), []).append(parameter)
                continue
            self.others.append(parameter)
            for kind, kept in (('first', self._first), ('second', self._second)):
                kept.append(torch.zeros_like(parameter))
                self._state[f'{kind}/{name}'] = kept[-1]
        for shape, group in self.shapes.items():
            momentum = torch.zeros((len(group), *shape), device=device)
            self._state['momentum/' + 'x'.join(map(str, shape))] = momentum

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self.rate.fill_(rate)

    def state(self) -> dict[str, Tensor]:
        """Return moments, momentum and step count."""
        return self._state

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned."""
        for name, tensor in self._state.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients; the host waits for nothing."""
        self._state['count'] += 1
        for shape, group in self.shapes.items():
            momentum = self._state['momentum/' + 'x'.join(map(str, shape))]
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
        count = self._state['count']
        scale = list(torch._foreach_mul(self._second, 1 / (1 - beta2**count)))
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, 1e-8)
        update_ = list(torch._foreach_div(self._first, scale))
        torch._foreach_mul_(update_, self.rate / (1 - beta1**count))
        torch._foreach_sub_(self.others, update_)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return float32 [N, A, B] with every singular value near 1, the vectors kept."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in _STEPS:
        square = x @ x.mT
        square = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, square, x, beta=a)
    return (x.mT if tall else x).float()
