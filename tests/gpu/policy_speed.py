"""What one launch of a few-row product costs at full size, by the shape of its tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from unittest import mock

import torch

from flashrt_policies.kernels import vla_linear_triton as kernels
from flashrt_policies.kernels.vla_matrix import Matrix, quantised

WORKS = (
    ('gated', 8192, 1024), ('add', 1024, 4096), ('add', 1024, 2048), ('store', 2560, 1024),
    ('gated', 4096, 720), ('add', 720, 2048),
)  # fmt: skip
TILES = (  # columns, depth, loads in flight
    (64, 128, 4), (32, 128, 5), (16, 128, 5), (16, 256, 4), (32, 256, 3), (64, 64, 6),
)  # fmt: skip
COPIES = 12  # of the weights: more than the cache holds
ROWS = 50


def product(device: str, end: str, width: int, depth: int, float8: bool) -> Callable[[], None]:
    """Return a call that multiplies by every copy of the weights once."""
    kind = 'gelu' if end == 'gated' else ''
    made = [
        torch.randn(width, depth, device=device, dtype=torch.bfloat16) * 0.05
        for _ in range(COPIES)
    ]
    weights = [quantised(one) if float8 else Matrix(one) for one in made]
    x = torch.randn(ROWS, depth, device=device, dtype=torch.bfloat16)
    columns = width // 2 if end == 'gated' else width
    out = torch.zeros(ROWS, columns, device=device, dtype=torch.bfloat16)
    scale = None if end == 'add' else torch.ones(depth, device=device)

    def call() -> None:
        for weight in weights:
            kernels._launch(x, weight, None, scale, 1e-6, out, end, kind)

    return call


def sweep(device: str) -> Iterator[str]:
    """Yield one line for each work and tile."""
    for end, width, depth in WORKS:
        for float8 in (False, True):
            call = product(device, end, width, depth, float8)
            for columns, deep, loads in TILES:
                if end == 'gated' and columns < 32:
                    continue
                with ExitStack() as stack:
                    for name, value in (
                        ('WIDTHS', (columns,)), ('BUSY', 0.0), ('DEPTH', deep),
                        ('stages', lambda *_, loads=loads: loads),
                    ):  # fmt: skip
                        stack.enter_context(mock.patch.object(kernels, name, value))
                    try:
                        spent = f'{graph_time(call) / COPIES:.2f} us'
                    except Exception as error:  # too much shared memory, say
                        spent = f'failed: {str(error)[:80]}'
                yield (
                    f'{end} {width}x{depth} float8={float8} columns={columns} depth={deep} '
                    f'loads={loads}: {spent}'
                )


def graph_time(call: Callable[[], None]) -> float:
    """Return microseconds of a call replayed from a graph; the best of five."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    best = []
    for _ in range(5):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True)
        a.record()
        for _ in range(5):
            graph.replay()
        b.record()
        b.synchronize()
        best.append(a.elapsed_time(b) / 5 * 1e3)
    return min(best)
