"""Gated DeltaNet over the segments of a round: trunks first, then branches that start from them.

The chunked rule of `gated_delta` (arXiv 2412.06464, section 3.3), for many segments at once. What
needs no state is done for every chunk together. A first scan carries the state of each trunk,
leaving a checkpoint on the way; a second one starts each branch from the state that its trunk
ended in, which it reads through an index: no state is copied. A branch's convolution looks back
into its trunk's rows in the same manner. The torch body is the CPU path and the reference.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.fork.stream import (
    CHUNKS,
    COUNT,
    FIRST,
    MARK,
    PARENT,
    POSITION,
    ROW_PAST,
    SLOT,
    START,
    Tables,
)
from flashrt_policies.kernels.gated_delta import CHUNK, gates, l2_norm
from flashrt_policies.kernels.norm import gated_rms_norm


@dataclass(frozen=True)
class DeltaSlots:
    """The states that trunks start from and leave checkpoints in, one linear layer's.

    Attributes:
        window: per slot [W - 1, C], last inputs of the convolution.
        recurrent: per slot float32 [HV, K, V].
        window_apart: int64 [slots], elements from the first slot's window to each.
        recurrent_apart: int64 [slots], likewise.
    """

    window: list[Tensor]
    recurrent: list[Tensor]
    window_apart: Tensor
    recurrent_apart: Tensor


def mix(
    proj: Tensor,
    tables: Tables,
    rows: Tensor,
    slots: DeltaSlots,
    conv: Tensor,
    decay: Tensor,
    bias: Tensor,
    norm: Tensor,
    eps: float,
    dims: tuple[int, int, int, int],
) -> Tensor:
    """Run a linear layer between its two products: convolution, gates, delta rule, gated norm.

    Args:
        proj: [M, C + HV * V + 2 HV]: q, k, v, z, b, a.
        tables: the round.
        rows: int32 [4 or more, M], from `fork.stream.spread`.
        slots: trunks at position 0 start from nothing, others from here; a trunk with a mark
            leaves its state at the mark here.
        conv: [W, C].
        decay: float32 [HV], ``-exp(A_log)``.
        bias: float32 [HV].
        norm: float32 [V], scale of the gated norm.
        eps: of that norm.
        dims: (H, HV, K, V).

    Returns:
        [M, HV * V], type of `proj`; unused rows are meaningless.
    """
    if proj.is_cuda:
        from flashrt_policies.kernels.fork import delta_triton

        return delta_triton.mix(proj, tables, rows, slots, conv, decay, bias, norm, eps, dims)
    key_heads, heads, key_dim, dim = dims
    channels = conv.shape[1]
    segments = tables.segments.tolist()
    trunks = segments[: tables.sizes.requests]
    mixed = proj[:, :channels].float() * conv[-1].float()
    windows = torch.cat([window.float() for window in slots.window])  # [slots * (W - 1), C]
    nothing = torch.zeros(1, channels)
    # Rows of the stream, then nothing (-1), then the windows' rows from -2 down.
    series = torch.cat((proj[:, :channels].float(), windows.flip(0), nothing))
    for d in range(1, conv.shape[0]):
        source = rows[ROW_PAST + d - 1].long() % len(series)
        mixed.addcmul_(series.index_select(0, source), conv[-1 - d].float())
    b, a = proj[:, channels + heads * dim :].split((heads, heads), dim=1)
    parts = _Parts(tables, F.silu(mixed), gates(b, a, decay, bias), dims)
    out = torch.zeros(parts.u.shape)  # [N, HV, C, V]
    ends = torch.zeros(len(trunks), heads, key_dim, dim)
    for index, trunk in enumerate(trunks):
        state = ends[index : index + 1]
        if trunk[POSITION]:
            state.copy_(slots.recurrent[trunk[SLOT]])
        for turn in range(-(-trunk[COUNT] // CHUNK)):
            at = trunk[FIRST] + turn
            parts.step(slice(at, at + 1), state, out)
            if (turn + 1) * CHUNK == trunk[MARK]:
                slots.recurrent[trunk[SLOT]].copy_(state[0])
        if trunk[MARK]:
            last = trunk[START] + trunk[MARK]
            window = proj[last - conv.shape[0] + 1 : last, :channels]
            slots.window[trunk[SLOT]].copy_(window)
    branches = [x for x in segments[tables.sizes.requests :] if x[COUNT]]
    state = ends[[x[PARENT] for x in branches]]
    counts = torch.tensor([-(-x[COUNT] // CHUNK) for x in branches])
    first = torch.tensor([x[FIRST] for x in branches])
    for turn in range(int(counts.max())):
        going = (counts > turn).nonzero()[:, 0]
        mine = state[going]
        parts.step(first[going] + turn, mine, out)
        state[going] = mine
    o = out.transpose(1, 2).reshape(-1, heads, dim).index_select(0, parts.where)  # [M, HV, V]
    z = proj[:, channels : channels + heads * dim].unflatten(1, (heads, dim))
    return gated_rms_norm(o.to(proj.dtype), z, norm, eps).flatten(1)


class _Parts:
    """What every chunk contributes before its state is known; one row per chunk.

    Args:
        tables: the round.
        mixed: float32 [M, C], queries, keys and values.
        rates: log decay and step size, float32 [M, HV] each.
        dims: (H, HV, K, V).
    """

    def __init__(
        self,
        tables: Tables,
        mixed: Tensor,
        rates: tuple[Tensor, Tensor],
        dims: tuple[int, int, int, int],
    ) -> None:
        self.steady, used = tables.steady, int(tables.counts[CHUNKS])
        key_heads, heads, key_dim, dim = dims
        segment, turn = tables.chunks[:used].long().unbind(1)
        table = tables.segments.long()
        place = turn[:, None] * CHUNK + torch.arange(CHUNK)  # [N, C], row within the segment
        self.real = place < table[segment, COUNT][:, None]
        self.source = (table[segment, START][:, None] + place) * self.real
        self.where = torch.zeros(len(mixed), dtype=torch.long)  # [M], where a row stands in them
        self.where[self.source[self.real]] = self.real.flatten().nonzero()[:, 0]

        def split(x: Tensor, width: int) -> Tensor:  # [M, n * width] -> [N, n, C, width]
            found = x.index_select(0, self.source.flatten()) * self.real.view(-1, 1)
            return found.view(used, CHUNK, -1, width).transpose(1, 2).contiguous()

        cut = 2 * key_heads * key_dim
        q, k = split(mixed[:, :cut], key_dim).split(key_heads, dim=1)
        v = split(mixed[:, cut:], dim)
        g, beta = split(torch.cat(rates, 1), 1).split(heads, dim=1)  # [N, HV, C, 1]
        q = (l2_norm(q) * key_dim**-0.5).repeat_interleave(heads // key_heads, 1)
        k = l2_norm(k).repeat_interleave(heads // key_heads, 1)
        g = g.cumsum(-2)
        rise = g.exp()
        fade = (g - g.mT).exp_().tril_()  # what lies above the diagonal may be infinite
        steps = beta * k
        system = self._each(steps, k.mT).mul_(fade)
        right = torch.cat((beta * v, steps * rise), -1)
        solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        self.u, self.w = (x.contiguous() for x in solved.split((dim, key_dim), -1))
        self.inner = self._each(q, k.mT).mul_(fade)
        self.q = q * rise
        self.k = (k * (g[:, :, -1:] - g).exp()).mT.contiguous()
        self.last = rise[:, :, -1:]

    def step(self, chunks: Tensor | slice, state: Tensor, out: Tensor) -> None:
        """Take one chunk each into several states [n, HV, K, V], in place, and read it out."""
        fresh = self.u[chunks] - self._each(self.w[chunks], state)
        out[chunks] = self._each(self.q[chunks], state) + self._each(self.inner[chunks], fresh)
        state.mul_(self.last[chunks]).add_(self._each(self.k[chunks], fresh))

    def _each(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the products of [n, HV, ...] by [n, HV, ...].

        The library rounds a batch of another size otherwise: where that matters, one by one.
        """
        if not self.steady:
            return left @ right
        return torch.stack([a @ b for a, b in zip(left, right, strict=True)])
