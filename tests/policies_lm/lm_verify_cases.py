"""Does a pass over several drafted tokens have the bits of single decode steps, kernel by kernel?

Run as a script under TRITON_INTERPRET=1 it needs no GPU; `--fault` plants one that must show. On a
GPU `check_lm.py` compares whole texts instead.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from lm_kernel_cases import interpreter_with_new_numpy
from lm_model_cases import small_model, two_states

ROWS = 2


def compare(position: int, fault: bool) -> list[str]:
    """Return what differs between a pass of a few rows and as many steps."""
    from flashrt_policies.hybrid_lm.layers import Stretch
    from flashrt_policies.hybrid_lm.mtp_verify import Kept, verify_fused
    from flashrt_policies.hybrid_lm.step import step_layers
    from flashrt_policies.kernels.embed_triton import finish

    config, weights, freq = small_model()
    one, two = two_states(config, position)
    x = torch.empty(ROWS, config.hidden).normal_(generator=torch.Generator().manual_seed(position))
    valid = torch.ones(1, dtype=torch.int64)
    places = [Stretch(two.position.tensor + row, valid, freq) for row in range(ROWS)]
    kept = Kept(two, ROWS)
    made = verify_fused(config, weights, two, x.clone(), places, kept)
    differ = []

    def check(name: str, left: torch.Tensor, right: torch.Tensor) -> None:
        if not torch.equal(left, right):
            differ.append(f'{name} at {position}')

    for row in range(ROWS):
        at: Any = Stretch(one.position.tensor, valid, freq)
        after = step_layers(config, weights, one, x[row : row + 1].clone(), at)
        hidden = torch.empty_like(after)
        finish(after, weights.norm, config.eps, hidden, one.position.tensor)
        check(f'hidden of row {row}', made[row : row + 1], hidden)
        two.position.tensor.fill_(position)
        kept.settle(torch.tensor([max(0, row - 1) if fault else row]))
        assert one.recurrent is not None and two.recurrent is not None
        assert one.window is not None and two.window is not None and one.kv and two.kv
        check(f'state after row {row}', two.recurrent.tensor, one.recurrent.tensor)
        check(f'window after row {row}', two.window.tensor, one.window.tensor)
    end = position + ROWS
    check('keys and values', two.kv.tensor[:, :end], one.kv.tensor[:, :end])
    return differ


def main() -> int:
    """Return 1 when anything differs."""
    from flashrt_policies.kernels import decode_triton

    torch.set_num_threads(1)
    interpreter_with_new_numpy()
    decode_triton.SPLITS = 2  # what the interpreter does not need many of
    differ = compare(37, '--fault' in sys.argv)
    print('\n'.join(differ) or 'the same bits')
    return int(bool(differ))


if __name__ == '__main__':
    sys.exit(main())
