"""Replays of every size compute a row alike: launches, and bits in the interpreter."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

pytest.importorskip('triton', reason='the kernels are written in Triton')
# The interpreter takes a minute where nothing else runs, and much longer on a busy machine.
pytestmark = pytest.mark.timeout(1800)
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import lm_aot  # noqa: E402

from flashrt_policies.hybrid_lm.schedule import CUDA_UNITS  # noqa: E402

# What may depend on the number of rows: how outputs are shared out among programs, how deep loads
# are pipelined, and how much of a product's one chain of sums a turn of its loop takes. Not what
# is summed elsewhere.
SHARED_OUT = {
    'matmul_kernel': {'R', 'N', 'K', 'STAGES', 'FETCH', 'num_warps'},
    'attend_kernel': {'R', 'num_warps'},
    'take_kernel': {'ROWS'},
}


def settings(rows: int, dtype: torch.dtype) -> list[tuple[str, dict[str, Any]]]:
    """Return the launches of a replay of `rows` tokens, without what may depend on them."""
    from flashrt_policies.kernels import gated_delta_triton

    found = []
    # Chunks in one stretch: in how many launches they are taken is no setting of a kernel.
    with mock.patch.object(gated_delta_triton, 'STRETCH', rows):
        launches = lm_aot.prefill_launches(rows, 232448, dtype)
    for kernel, args, kwargs in launches:
        name = kernel.fn.__name__
        kept = {k: v for k, v in kwargs.items() if k not in SHARED_OUT.get(name, set())}
        # Triton compiles another kernel where an integer is 1 or a multiple of 16.
        plain = {x.name for x in kernel.params if x.do_not_specialize}
        for parameter, value in zip(kernel.arg_names, args, strict=False):
            if isinstance(value, int) and parameter not in plain:
                kept[parameter] = 1 if value == 1 else 'of 16' if value % 16 == 0 else 'odd'
        found.append((name, kept))
    return found


def unlike(dtype: torch.dtype) -> list[str]:
    """Return the kernels whose settings differ between two units."""
    first, *others = (settings(unit, dtype) for unit in CUDA_UNITS)
    return [
        name
        for other in others
        for (name, kept), there in itertools.zip_longest(first, other, fillvalue=('', {}))
        if (name, kept) != there
    ]


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float32])
def test_what_decides_bits_is_the_same_for_every_unit(dtype: torch.dtype) -> None:
    """Kernels, loop steps, precision and compiled variants do not depend on a replay's size."""
    assert not unlike(dtype)


def test_a_setting_that_follows_the_rows_is_found() -> None:
    """The planted fault: other keys per turn in every other unit must be reported."""
    from flashrt_policies.kernels import attention_triton

    sizes = itertools.cycle([(64, 2), (32, 2)])
    fault = mock.patch.object(attention_triton, 'tile_sizes', side_effect=lambda *_: next(sizes))
    with fault:
        assert 'attend_kernel' in unlike(torch.bfloat16)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float32])
def test_row_tiles_take_the_same_matrix_instructions(dtype: torch.dtype) -> None:
    """Tiles share whole groups of 64 rows by 4 warps, so Hopper runs one kind of instruction."""
    for unit in CUDA_UNITS:
        for kernel, _, kwargs in lm_aot.prefill_launches(unit, 232448, dtype):
            if 'R' in kwargs:
                name = kernel.fn.__name__
                assert kwargs['R'] % 64 == 0 and kwargs['num_warps'] % 4 == 0, (name, kwargs)
                assert kwargs['R'] * 4 % (64 * kwargs['num_warps']) == 0, (name, kwargs)


def interpreted(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the cases in Triton's interpreter, in a process of its own."""
    environment = {**os.environ, 'TRITON_INTERPRET': '1', 'PYTHONWARNINGS': 'ignore'}
    return subprocess.run(
        [sys.executable, str(HERE / 'lm_unit_cases.py'), 'cpu', 'float32', *args],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip


def test_cut_at_a_chunk_every_kernel_keeps_its_bits() -> None:
    """128 rows in one replay or in two of 64: outputs and states have the same bits."""
    done = interpreted()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert 'delta state' in done.stdout and 'attention out' in done.stdout


def test_cut_within_a_chunk_bits_differ() -> None:
    """The planted fault: cut after 32 of 64 rows, the delta rule folds otherwise and it shows."""
    done = interpreted('unaligned')
    assert done.returncode == 1 and 'DIFFER delta state' in done.stdout, done.stderr[-2000:]


def fused_exponents(folder: Path, fault: bool) -> int:
    """Compile attention for Hopper; count the exponentials fed by a fused multiply-add."""
    from flashrt_policies.kernels import attention_triton

    text = Path(attention_triton.__file__).read_text(encoding='utf-8')
    if fault:  # scaled before the mask, and left to the compiler
        for old, new in (
            ('  # [R, N], to be scaled', ' * scale'),
            ('tl.fma(score, scale, -base[:, None])', 'score - base[:, None]'),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
    file = folder / f'attention_{fault}.py'
    file.write_text(text, encoding='utf-8')
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    q, keys = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((128, 8, 64), (2, 999, 64)))
    one = torch.empty(1, dtype=torch.int64)
    with lm_aot.recorded(232448) as seen:
        module.attend(q, keys, keys, one, one, None)
    ptx = lm_aot.compile_launch(seen[0], 90).asm['ptx']
    made = dict(reversed(match) for match in re.findall(r'(\S+)\s+(%r\d+), ', ptx))
    fed = re.findall(r'ex2\.approx\S*\s+%r\d+, (%r\d+)', ptx)
    return sum(made.get(register, '').startswith('fma') for register in fed)


def test_masked_and_plain_blocks_round_alike(tmp_path: Path) -> None:
    """Scores become exponents by a fused product in both loops; unfused in one, it shows."""
    each = 128 * 64 // 256  # scores of a block per thread
    assert fused_exponents(tmp_path, fault=False) == 2 * each
    assert fused_exponents(tmp_path, fault=True) < 2 * each
