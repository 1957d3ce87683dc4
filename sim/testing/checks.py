"""What must hold between a planner and an actor, whatever becomes of the subgoals on their way."""

from __future__ import annotations

import numpy as np

from flashrt_ros.control.text import decode

from .trace import Given, Post, Read, Trace


def check_generations(trace: Trace) -> None:
    """Every chunk and every command says truly which subgoal it was made under.

    Each post raises the generation by one. An inference sees the newest subgoal whose delay is
    over, and no older one than the inference before. A command has its chunk's generation.

    Raises:
        AssertionError: one line that names tick and generations.
    """
    for before, post in zip(trace.posts, trace.posts[1:], strict=False):
        if post.epoch == before.epoch and post.generation != before.generation + 1:
            _fail(
                f'the post at tick {post.tick} got generation {post.generation} after '
                f'{before.generation}; want {before.generation + 1}'
            )
    newest: dict[int, int] = {}  # epoch -> generation of its newest read
    for read in trace.reads:
        least = newest.get(read.epoch, 0)
        expected = _due(trace, read)
        if read.generation < least:
            _fail(f'the chunk of tick {read.tick} says generation {read.generation} after {least}')
        if not trace.raced and expected and read.generation != expected.generation:
            _fail(
                f'the chunk of tick {read.tick} says generation {read.generation}; the newest '
                f'subgoal by then is {expected.generation}, {expected.message.text!r}'
            )
        newest[read.epoch] = read.generation
    for given, chunks in _sources(trace):
        said = {chunk.generation for chunk in chunks}
        if said and given.command.generation not in said:
            _fail(
                f'the command of tick {given.command.tick} says generation '
                f'{given.command.generation}; the chunk that it is from says {max(said)}'
            )


def check_epochs(trace: Trace) -> None:
    """Nothing of an old epoch comes out once a new one is in force.

    Epochs rise. A command carries the epoch in force, and unless it is a hold it is a row of a
    chunk that was begun in that epoch. No subgoal counts that was decided in another epoch.

    Raises:
        AssertionError: one line that names tick and epochs.
    """
    for before, change in zip(trace.changes, trace.changes[1:], strict=False):
        if change.epoch <= before.epoch:
            _fail(
                f'{change.why} at tick {change.tick} began epoch {change.epoch} after '
                f'{before.epoch}: epochs only rise'
            )
    for given, chunks in _sources(trace):
        command = given.command
        if command.epoch != given.epoch:
            _fail(
                f'the command of tick {command.tick} carries epoch {command.epoch}; epoch '
                f'{given.epoch} is in force'
            )
        if not command.held and not chunks:
            _fail(
                f'the command of tick {command.tick} is from no chunk of epoch {given.epoch}: an '
                'older one has come out'
            )
    for post in trace.posts:
        if post.message.epoch != post.epoch:
            _fail(
                f'{post.message.text!r}, decided in epoch {post.message.epoch}, was posted in '
                f'epoch {post.epoch}'
            )


def check_whole(trace: Trace) -> None:
    """No torn reads: every inference saw one row, whole, and that of its generation.

    Raises:
        AssertionError: one line that names the tick and what was seen.
    """
    rows: dict[int, list[np.ndarray]] = {}
    if trace.reads:
        rows[0] = [np.zeros_like(trace.reads[0].before)]  # before the first flip: no subgoal
    for post in trace.posts:
        rows.setdefault(post.generation, []).append(post.row)
    for read in trace.reads:
        if not np.array_equal(read.before, read.after):
            _fail(
                f'the subgoal changed during the inference of tick {read.tick}: from '
                f'{_words(read.before)} to {_words(read.after)}'
            )
        if not any(np.array_equal(read.before, row) for row in rows.get(read.generation, ())):
            _fail(
                f'the inference of tick {read.tick} saw {_words(read.before)}, which is not the '
                f'row of its generation {read.generation}'
            )


def check_handed_over(trace: Trace, within: int) -> None:
    """Every subgoal that the planner decided on is in effect soon.

    A subgoal that another one, or a new epoch, has followed within that time counts as well.

    Args:
        trace: what happened.
        within: ticks from the decision to the first command under it, at most.

    Raises:
        AssertionError: one line that names the subgoal.
    """
    last = max((given.command.tick for given in trace.given), default=-1)
    for number, message in enumerate(trace.sent):
        end = max(0, message.tick) + within
        followed = [other.tick for other in trace.sent[number + 1 :]]
        followed += [c.tick for c in trace.changes if c.epoch > message.epoch]
        if end > last or any(tick <= end for tick in followed):
            continue
        mine = {p.generation for p in trace.posts if p.message == message}
        if not any(
            given.command.generation in mine and not given.command.held
            for given in trace.given
            if message.tick <= given.command.tick <= end and given.epoch == message.epoch
        ):
            _fail(
                f'{message.text!r}, decided at tick {message.tick}, was not in effect within '
                f'{within} ticks'
            )


def _due(trace: Trace, read: Read) -> Post | None:
    """The post that an inference must have seen; None where that is not settled.

    A newer post whose delay is not over has taken the place of older ones that had not been seen:
    what the inference sees then depends on when they came.
    """
    there = [post for post in trace.posts[: read.posts] if post.epoch == read.epoch]
    if there and there[-1].message.tick + trace.subgoal_delay <= read.tick:
        return there[-1]
    return None


def _sources(trace: Trace) -> list[tuple[Given, list[Read]]]:
    """Every command with the chunks of its epoch that it may be a row of; holds with none."""
    found = []
    for given in trace.given:
        command = given.command
        matches = [
            read
            for read in trace.reads
            if not command.held
            and read.epoch == given.epoch
            and 0 <= command.tick - read.tick < len(read.actions)
            and np.array_equal(read.actions[command.tick - read.tick], command.action)
        ]
        found.append((given, matches))
    return found


def _words(row: np.ndarray) -> str:
    try:
        return repr(decode(row))
    except ValueError:
        return f'a row that is no text ({row[:8].tolist()}...)'


def _fail(line: str) -> None:
    raise AssertionError(line)
