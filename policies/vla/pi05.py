"""π0.5 (arXiv 2504.16054): the state stands in the prompt; the time modulates every norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.vla.linear import project
from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.vla import sizes as names
from flashrt_policies.vla.expert import Expert, take_norm
from flashrt_policies.vla.pi0 import PaliGemma
from flashrt_policies.vla.tensors import Source


class Pi05(PaliGemma):
    """π0.5: adaptive norms, no state token."""

    def _build(self, source: Source, times: Tensor) -> None:
        self._take_prefix(source)
        width, wide = self.sizes.expert.width, torch.float32
        condition = times
        for name in ('time_mlp_in', 'time_mlp_out'):
            weight = source.take(f'model.{name}.weight', width, width, dtype=wide)
            bias = source.take(f'model.{name}.bias', width, dtype=wide)
            condition = F.silu(condition @ weight.mT + bias)  # [S, W]
        self.expert = Expert(
            source, names.PI_EXPERT, self.sizes.expert, True, condition, float8=self.float8
        )
        out = source.take('model.action_out_proj.weight', self.sizes.action, width)
        self.norm = take_norm(source, f'{names.PI_EXPERT}norm', width, condition, out, 1.0)
        self.first = Matrix(source.take('model.action_in_proj.weight', width, self.sizes.action))
        self.first_bias = source.take('model.action_in_proj.bias', width, dtype=wide)

    def enter(self, x: Tensor, step: int, first: tuple[Tensor, ...]) -> Tensor:
        """Return the actions' tokens; the time is in the norms."""
        return project(x, self.first, self.first_bias)

    def suffix_ranks(self, device: torch.device) -> Tensor:
        """The actions see each other."""
        return torch.ones(self.suffix_tokens, dtype=torch.int32, device=device)
