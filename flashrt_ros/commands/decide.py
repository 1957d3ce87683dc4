"""`flashrt decide`: put questions to a state, by hand."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_policies.planner_lm.decide import Decider
    from flashrt_policies.planner_lm.questions import Answer, Question

DESCRIPTION = """\
Puts questions to a state (a text file, or - for standard input) and prints how likely every answer
is. All questions are answered in one pass, each exactly as if it had been asked alone.

  --ask "Is it done?"                                    yes or no
  --ask "What comes next? open the drawer | finished"    one of the options
  --ask "How urgent is it? 0..4"                         a level, and the expected one

With --check N it puts the planner's own four questions to N made-up situations whose wordings were
never trained, and prints how many answers were right, and how well calibrated.
"""


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        'decide',
        help='put questions to a state, and see how likely every answer is',
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--state', help='a text file, or - for standard input')
    parser.add_argument(
        '--ask', action='append', default=[], metavar='QUESTION', help='may be given again'
    )
    parser.add_argument('--check', type=int, metavar='N', help='measure on N held-out situations')
    parser.add_argument('--words', type=Path, help='of --check; those of the shipped planner')
    parser.add_argument('--seed', type=int, default=1, help='of --check (%(default)s)')
    parser.add_argument('--json', type=Path, help='of --check: write what was measured there')
    parser.add_argument(
        '--planner', default='shipped', help='checkpoint folder or .gguf file (%(default)s)'
    )
    parser.add_argument('--style', help='of the prompts: short, plain or chat')
    parser.add_argument('--device', default='cpu', help='cpu, cuda or cuda:N')
    parser.add_argument('--dtype', help='float32, bfloat16 or float16')
    parser.add_argument('--capacity', type=int, default=4096, help='longest state, tokens')


def run(args: argparse.Namespace) -> int:
    """Ask and print; exit code 0."""
    if args.check is not None:
        return check(args)
    if args.state is None or not args.ask:
        raise FlashrtError('want --state with at least one --ask, or --check N')
    questions = [parse(text) for text in args.ask]
    if args.state != '-' and not Path(args.state).is_file():
        raise FlashrtError(f'--state {args.state} is no file; want a text file, or -')
    state = sys.stdin.read() if args.state == '-' else Path(args.state).read_text('utf-8')
    decider = opened(args)
    began = time.perf_counter()
    answers = decider.decide(state.rstrip('\n'), questions, keep=False)
    spent = (time.perf_counter() - began) * 1e3
    for question, answer in zip(questions, answers, strict=True):
        print('\n'.join(lines(question, answer)))
    print(f'[{len(questions)} questions in {spent:.0f} ms]', file=sys.stderr)
    return 0


def opened(args: argparse.Namespace) -> Decider:
    """Return the model that the arguments name."""
    from flashrt_policies.planner_lm.decide import open_decider
    from flashrt_ros.contract.context import Context

    return open_decider(
        args.planner, Context(args.device), capacity=args.capacity, dtype=args.dtype,
        style=args.style,
    )  # fmt: skip


def check(args: argparse.Namespace) -> int:
    """Measure and print; exit code 0."""
    import torch

    from flashrt_policies.planner_lm import check as measuring
    from flashrt_policies.planner_lm.training import words
    from flashrt_policies.planner_lm.training.examples import Examples
    from flashrt_ros.share import config

    if args.check < 1:
        raise FlashrtError(f'--check {args.check}: want 1 or more')
    known = words.load(args.words or config('planner_words.yaml'))
    held_out = Examples(known, args.seed, held_out=True)
    report = measuring.check(opened(args), (held_out[i] for i in range(args.check)))
    for name, row in report.kinds.items():
        print(
            f'{name:<10} {100 * row["right"]:6.2f} % right of {row["count"]:>6}, '
            f'calibration error {100 * row["calibration_error"]:5.2f} %'
        )
    print(f'a round of four questions: {report.median_ms:.0f} ms median')
    if args.json is not None:
        facts = {
            'planner': str(args.planner), 'situations': args.check, 'seed': args.seed,
            'device': args.device, 'threads': torch.get_num_threads(),
            'round_ms_median': round(report.median_ms, 1), 'decisions': report.kinds,
        }  # fmt: skip
        args.json.write_text(json.dumps(facts, indent=1) + '\n', 'utf-8')
    return 0


def parse(text: str) -> Question:
    """Return the question that a command line means.

    Raises:
        FlashrtError: it cannot be asked.
    """
    from flashrt_policies.planner_lm.questions import Choice, Score, YesNo, check, levels

    head, mark, tail = text.rpartition('?')
    words, rest = (f'{head}?', tail.strip()) if mark else (text.strip(), '')
    low, dots, high = rest.partition('..')
    question: Question
    if dots and low.strip() == '0' and high.strip().isdigit():
        question = Score(words, levels(int(high) + 1))
    elif rest:
        parts = [part.strip().partition(':') for part in rest.split('|')]
        notes = tuple(note.strip() for _, _, note in parts)
        options = tuple(option.strip() for option, _, _ in parts)
        question = Choice(words, options, notes if any(notes) else ())
    else:
        question = YesNo(words)
    check(question)
    return question


def lines(question: Question, answer: Answer) -> list[str]:
    """Return an answer as people read it, the likeliest first; at most eight of many options."""
    from flashrt_policies.planner_lm.questions import Score

    ranked = sorted(zip(answer.probabilities, answer.options, strict=True), reverse=True)
    shown = ', '.join(f'{option} {100 * chance:.1f} %' for chance, option in ranked[:8])
    more = f', {len(ranked) - 8} more' if len(ranked) > 8 else ''
    told = f'{question.text}  {shown}{more}'
    return [f'{told}; expected {answer.level:.2f}' if isinstance(question, Score) else told]
