"""Promise: the byte encoder folds case, ignores padding, and reads every other byte."""

from __future__ import annotations

import flow_tiny as tiny
import torch

from flashrt_policies.flow_vla.text import SYMBOLS, TextEncoder, fold


def test_fold_lowers_exactly_the_letters() -> None:
    """Every symbol against Python's own `str.lower` on ASCII."""
    got = fold(torch.arange(SYMBOLS)).tolist()
    for symbol in range(1, SYMBOLS):
        byte = symbol - 1
        want = ord(chr(byte).lower()) if byte < 128 else byte
        assert got[symbol] == want + 1
    assert got[0] == 0


def test_length_of_the_row_does_not_matter_but_bytes_do() -> None:
    """More padding gives the same vector; another byte gives another."""
    torch.manual_seed(0)
    encoder = TextEncoder(tiny.SIZES).double()
    short = torch.from_numpy(tiny.row('open'))[None]
    long = torch.nn.functional.pad(short, (0, 9))
    with torch.no_grad():
        assert torch.allclose(encoder(short), encoder(long), atol=1e-12)
        assert torch.equal(encoder(short), encoder(torch.from_numpy(tiny.row('OPEN'))[None]))
        assert not torch.allclose(
            encoder(short), encoder(torch.from_numpy(tiny.row('oven'))[None])
        )
