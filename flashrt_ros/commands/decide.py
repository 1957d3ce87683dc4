"""`flashrt decide`: put questions to a state, by hand."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_policies.planner_lm.questions import Answer, Question

DESCRIPTION = """\
Puts questions to a state (a text file, or - for standard input) and prints how likely every answer
is. All questions are answered in one pass, each exactly as if it had been asked alone.

  --ask "Is it done?"                                    yes or no
  --ask "What comes next? open the drawer | finished"    one of the options
  --ask "How urgent is it? 0..4"                         a level, and the expected one
"""


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        'decide',
        help='put questions to a state, and see how likely every answer is',
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--state', required=True, help='a text file, or - for standard input')
    parser.add_argument(
        '--ask', action='append', required=True, metavar='QUESTION', help='may be given again'
    )
    parser.add_argument(
        '--planner', default='planner', help='shipped name, checkpoint folder or .gguf file'
    )
    parser.add_argument('--style', help='of the prompts: bytes, plain or chat')
    parser.add_argument('--device', default='cpu', help='cpu, cuda or cuda:N')
    parser.add_argument('--dtype', help='float32, bfloat16 or float16')
    parser.add_argument('--capacity', type=int, default=4096, help='longest state, tokens')


def run(args: argparse.Namespace) -> int:
    """Ask and print; exit code 0."""
    questions = [parse(text) for text in args.ask]
    if args.state != '-' and not Path(args.state).is_file():
        raise FlashrtError(f'--state {args.state} is no file; want a text file, or -')
    state = sys.stdin.read() if args.state == '-' else Path(args.state).read_text('utf-8')
    from flashrt_policies.planner_lm.decide import open_decider
    from flashrt_ros.contract.context import Context

    decider = open_decider(
        args.planner, Context(args.device), capacity=args.capacity, dtype=args.dtype,
        style=args.style,
    )  # fmt: skip
    began = time.perf_counter()
    answers = decider.decide(state.rstrip('\n'), questions, keep=False)
    spent = (time.perf_counter() - began) * 1e3
    for question, answer in zip(questions, answers, strict=True):
        print('\n'.join(lines(question, answer)))
    print(f'[{len(questions)} questions in {spent:.0f} ms]', file=sys.stderr)
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
