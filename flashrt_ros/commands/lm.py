"""`flashrt lm`: try a language model's checkpoint by hand."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_policies.hybrid_lm.model import HybridLM
    from flashrt_policies.hybrid_lm.text import Tokenizer


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `generate` and `chat`."""
    parser = subparsers.add_parser(
        'lm', help='try a language model: continue a text, or chat',
        description='Run a Hugging Face folder (Qwen3.5, Llama, Qwen2, Qwen3) or a GGUF file.',
    )  # fmt: skip
    modes = parser.add_subparsers(dest='mode', metavar='MODE', required=True)
    generate = modes.add_parser('generate', help='continue a text')
    generate.add_argument('--prompt', required=True, help='the text to continue')
    chat = modes.add_parser('chat', help='talk, one line at a time; an empty line leaves')
    chat.add_argument('--system', default='', help='what the assistant is told first')
    for mode in (generate, chat):
        mode.add_argument('path', help='a checkpoint folder or a .gguf file')
        mode.add_argument('--tokens', type=int, default=128, help='longest answer, tokens')
        mode.add_argument('--temperature', type=float, default=0.0, help='0: the likeliest token')
        mode.add_argument(
            '--min-p', type=float, default=0.0,
            help='leave out tokens less likely than this share of the likeliest',
        )  # fmt: skip
        mode.add_argument('--seed', type=int, default=0, help='of the draws')
        mode.add_argument(
            '--mtp', type=int, nargs='?', const=2, default=0, metavar='N',
            help="the checkpoint's own head (mtp.*) guesses N tokens ahead (2): the same greedy "
            'text, in fewer passes where it is often right',
        )  # fmt: skip
        mode.add_argument('--device', default='cpu', help='cpu, cuda or cuda:N')
        mode.add_argument('--dtype', help='float32, bfloat16 or float16')
        mode.add_argument('--capacity', type=int, default=4096, help='longest text, tokens')


def run(args: argparse.Namespace) -> int:
    """Open the checkpoint and run the mode."""
    from flashrt_policies.hybrid_lm.opening import open_model
    from flashrt_ros.contract.context import Context

    if args.tokens < 1 or args.capacity < 1:
        raise FlashrtError(f'--tokens {args.tokens}, --capacity {args.capacity}; want 1 or more')
    if args.mtp < 0 or (args.mtp and args.temperature > 0):
        raise FlashrtError(
            f'--mtp {args.mtp} at --temperature {args.temperature}; want 0 or more, and greedy '
            'text (temperature 0) with guesses'
        )
    ctx = Context(args.device)
    lm, tokenizer = open_model(args.path, ctx, args.capacity, args.dtype, args.mtp)
    lm.reset(args.seed, args.temperature, args.min_p)
    if args.mode == 'generate':
        prompt = tokenizer.encode(args.prompt)
        start = time.perf_counter()
        lm.append(prompt)
        ctx.synchronize()
        passed = time.perf_counter() - start
        print(f'[{len(prompt)} tokens read in {passed:.3f} s]', file=sys.stderr)
        answer(lm, tokenizer, args.tokens, sys.stdout)
    else:
        chat(lm, tokenizer, args.system, args.tokens, sys.stdin, sys.stdout)
    return 0


def answer(lm: HybridLM, tokenizer: Tokenizer, count: int, out: TextIO) -> str:
    """Write what the model says as it says it, then its speed to standard error."""
    from flashrt_policies.hybrid_lm.mtp import DraftingLM
    from flashrt_policies.hybrid_lm.text import stream

    said, tokens = [], 0
    stops = tokenizer.stops | set(lm.config.eos)
    before = (lm.guessed, lm.right) if isinstance(lm, DraftingLM) else (0, 0)

    def counted() -> Iterator[int]:
        nonlocal tokens
        for token in lm.generate(count, stops):
            tokens += 1
            yield token

    start = time.perf_counter()
    for piece in stream(tokenizer.decode, counted(), stops):
        said.append(piece)
        print(piece, end='', flush=True, file=out)
    passed = time.perf_counter() - start
    print(file=out, flush=True)
    drafted = ''
    if isinstance(lm, DraftingLM) and lm.guessed > before[0]:
        guessed, right = lm.guessed - before[0], lm.right - before[1]
        drafted = f', {right} of {guessed} guesses right ({100 * right / guessed:.0f} %)'
    print(f'[{tokens} tokens, {tokens / passed:.1f} a second{drafted}]', file=sys.stderr)
    return ''.join(said)


def chat(
    lm: HybridLM,
    tokenizer: Tokenizer,
    system: str,
    count: int,
    lines: Iterable[str],
    out: TextIO,
) -> None:
    """Answer each line; what earlier turns left is resumed from a capsule, not read again."""
    from flashrt_policies.hybrid_lm.prefix import Texts
    from flashrt_policies.hybrid_lm.text import render_chat
    from flashrt_ros.capsule.closure import Closure
    from flashrt_ros.capsule.fingerprint import Fingerprint
    from flashrt_ros.capsule.session import Session

    closure = Closure('chat')
    lm.close_over(closure)
    fingerprint = Fingerprint.of(closure, lm.ctx.device, **lm.fingerprint())
    texts = Texts(lm, Session(lm.ctx, closure, fingerprint))
    messages = [{'role': 'system', 'content': system}] if system else []
    for line in lines:
        if not line.strip():
            return
        messages.append({'role': 'user', 'content': line.strip()})
        tokens = tokenizer.encode(render_chat(tokenizer, messages))
        start = time.perf_counter()
        ran = texts.prompt(tokens)
        lm.ctx.synchronize()
        print(
            f'[{ran.reused} tokens resumed, {ran.consumed} read in '
            f'{time.perf_counter() - start:.3f} s]',
            file=sys.stderr,
        )
        messages.append({'role': 'assistant', 'content': answer(lm, tokenizer, count, out)})
