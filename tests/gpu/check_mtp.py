"""One run on an NVIDIA GPU: is drafted text that of plain decode, and what does a round cost?

    python tests/gpu/check_mtp.py OUTDIR [--device cpu]

The model has the dimensions of Qwen3.5-0.8B and random weights in bfloat16, with a random head and
with heads made to be right now and then, often and always. Writes OUTDIR/mtp.json. The exit code
counts the texts that differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from flashrt_policies.hybrid_lm.config import parse_config
from flashrt_policies.hybrid_lm.model import HybridLM
from flashrt_policies.hybrid_lm.mtp import DraftingLM
from flashrt_policies.hybrid_lm.weights import Weights, allocate, randomise
from flashrt_ros.bench.planner import QWEN_0_8B, SMALL
from flashrt_ros.contract.context import Context

# How much of what random layers would do the layers of the other models do: the less, the oftener
# the head is right.
MIXINGS = (1.0, 0.02, 0.002, 0.0)


def look_at_the_last_token(weights: Weights, mixing: float) -> None:
    """Let model and head look mostly at the last token, so that they agree more or less."""
    head = weights.drafts
    assert head is not None
    for layer in (*weights.layers, head.layer):
        layer.w_out.mul_(mixing)
        layer.w_down.mul_(mixing)
    width = head.fc.shape[0]
    head.fc.zero_()
    head.fc[:, :width].fill_diagonal_(1.0)


def spoken(lm: HybridLM, prompt: torch.Tensor, count: int) -> tuple[Any, ...]:
    """Return the text, its logits' bits and state, and seconds per token."""
    lm.reset()
    lm.append(prompt)
    lm.ctx.synchronize()
    start = time.perf_counter()
    told = list(lm.generate(count))
    passed = (time.perf_counter() - start) / count
    assert lm.state.recurrent is not None
    return told, lm.logits.tensor.clone(), lm.state.recurrent.tensor.clone(), passed


def main() -> int:
    """Compare, time, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument('out', type=Path)
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--count', type=int, default=160)
    parser.add_argument('--drafts', type=int, nargs='*', default=(1, 2, 3))
    parser.add_argument('--prompts', type=int, nargs='*', default=(1, 64, 200, 1500))
    args = parser.parse_args()
    cpu = args.device == 'cpu'
    # A tied head over random weights repeats its token for ever.
    dims = {**(SMALL if cpu else QWEN_0_8B), 'tie_word_embeddings': False}
    config = parse_config(dims)
    device = torch.device(args.device)
    rng = torch.Generator().manual_seed(0)
    prompts = [torch.randint(config.vocab, (n,), generator=rng) for n in args.prompts]
    results: list[dict[str, Any]] = []
    bad = 0
    for mixing in MIXINGS:
        weights = allocate(config, device, torch.float32 if cpu else torch.bfloat16, drafts=True)
        randomise(config, weights, seed=0)
        if mixing < 1:
            look_at_the_last_token(weights, mixing)
        ways: list[tuple[int, HybridLM]] = []
        for drafts in (0, *args.drafts):
            ctx, more = Context(args.device), {'capacity': 2048, 'units': (64, 512)}
            made = DraftingLM(ctx, config, weights, drafts=drafts, **more) if drafts else None
            ways.append((drafts, made or HybridLM(ctx, config, weights, **more)))
        for prompt in prompts:
            plain: tuple[Any, ...] = ()
            for drafts, lm in ways:
                spoken(lm, prompt, 8)
                if isinstance(lm, DraftingLM):
                    lm.guessed = lm.right = 0
                found = spoken(lm, prompt, args.count)
                plain = plain or found
                same = found[0] == plain[0] and all(
                    torch.equal(a, b) for a, b in zip(found[1:3], plain[1:3], strict=True)
                )
                bad += not same
                right = lm.right / lm.guessed if isinstance(lm, DraftingLM) else None
                row = {
                    'mixing': mixing, 'prompt': len(prompt), 'drafts': drafts, 'same bits': same,
                    'same text': found[0] == plain[0], 'right': right,
                    'ms a token': round(found[3] * 1e3, 3), 'distinct': len(set(found[0])),
                }  # fmt: skip
                results.append(row)
                print(row, flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / 'mtp.json').write_text(json.dumps(results, indent=1))
    return bad


if __name__ == '__main__':
    sys.exit(main())
