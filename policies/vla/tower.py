"""The image tower (SigLIP, arXiv 2303.15343) and its projection into the language model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.vla.norm import add_layer_norm
from flashrt_policies.vla import sizes as names
from flashrt_policies.vla.sizes import Tower
from flashrt_policies.vla.tensors import Source

EPS = 1e-6


class ImageTower:
    """Images to tokens.

    Args:
        source: the tensors.
        sizes: of the tower.
        smol: SmolVLA's names, squares of patches joined, no bias in the projection.
    """

    def __init__(self, source: Source, sizes: Tower, smol: bool) -> None:
        base = names.SMOL_TOWER if smol else names.PI_TOWER
        width, mlp, patch = sizes.width, sizes.mlp, sizes.patch
        self.sizes = sizes

        def take(name: str, *shape: int) -> Tensor:
            return source.take(base + name, *shape)

        filters = take('embeddings.patch_embedding.weight', width, 3, patch, patch)
        self.patch = filters.flatten(1)  # [W, 3 p p]
        self.patch_bias = take('embeddings.patch_embedding.bias', width)
        count = (sizes.side // patch) ** 2
        self.place = take('embeddings.position_embedding.weight', count, width)
        self.layers = []
        for i in range(sizes.layers):
            layer = f'encoder.layers.{i}.'
            qkv = [f'{layer}self_attn.{part}_proj.' for part in 'qkv']
            self.layers.append(
                (
                    take(f'{layer}layer_norm1.weight', width),
                    take(f'{layer}layer_norm1.bias', width),
                    torch.cat([take(f'{part}weight', width, width) for part in qkv]),
                    torch.cat([take(f'{part}bias', width) for part in qkv]),
                    take(f'{layer}self_attn.out_proj.weight', width, width),
                    take(f'{layer}self_attn.out_proj.bias', width),
                    take(f'{layer}layer_norm2.weight', width),
                    take(f'{layer}layer_norm2.bias', width),
                    take(f'{layer}mlp.fc1.weight', mlp, width),
                    take(f'{layer}mlp.fc1.bias', mlp),
                    take(f'{layer}mlp.fc2.weight', width, mlp),
                    take(f'{layer}mlp.fc2.bias', width),
                )
            )
        self.norm = (take('post_layernorm.weight', width), take('post_layernorm.bias', width))
        joined = width * sizes.shuffle**2
        if smol:
            name = f'{names.SMOL}vlm.model.connector.modality_projection.proj.weight'
            self.out, self.out_bias = source.take(name, sizes.out, joined), None
        else:
            name = f'{names.PI}paligemma.model.multi_modal_projector.linear.'
            self.out = source.take(f'{name}weight', sizes.out, joined)
            self.out_bias = source.take(f'{name}bias', sizes.out)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return tokens [V * N, out] of images [V, 3, side, side] in [-1, 1]."""
        views, patch = pixels.shape[0], self.sizes.patch
        heads = self.sizes.heads
        x = pixels.to(self.patch.dtype).unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
        x = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(0, 2)  # [V N, 3 p p]
        x = F.linear(x, self.patch, self.patch_bias)
        x = (x.unflatten(0, (views, -1)) + self.place).flatten(0, 1)  # [V N, W]
        delta: Tensor | None = None
        for w1, b1, qkv, qkv_bias, out, out_bias, w2, b2, up, up_bias, down, bias in self.layers:
            y = F.linear(add_layer_norm(x, delta, w1, b1, EPS), qkv, qkv_bias)
            q, k, v = y.view(views, -1, 3, heads, y.shape[-1] // (3 * heads)).permute(
                2, 0, 3, 1, 4
            )  # [V, H, N, D]
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            y = add_layer_norm(x, F.linear(y, out, out_bias), w2, b2, EPS)
            delta = F.linear(gelu_linear(y, up, up_bias), down, bias)
        x = add_layer_norm(x, delta, *self.norm, EPS)
        return F.linear(self._join(x.unflatten(0, (views, -1))), self.out, self.out_bias)

    def _join(self, x: Tensor) -> Tensor:
        """Join squares of patches [V, N, W] into tokens [V * N / s s, s s W]."""
        step = self.sizes.shuffle
        side = self.sizes.side // self.sizes.patch // step
        x = x.unflatten(1, (side, step, side, step))  # [V, h, s, w, s, W]
        return x.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(0, 2)


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``gelu(x @ weight.T + bias)``, tanh form; one launch on CUDA."""
    if not x.is_cpu:
        return torch._addmm_activation(bias, x, weight.mT, use_gelu=True)
    return F.gelu(F.linear(x, weight, bias), approximate='tanh')
