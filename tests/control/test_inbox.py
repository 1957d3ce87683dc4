"""The inbox of subgoals: each once, in order, of the epoch in force, also what was missed."""

from __future__ import annotations

import pytest

from flashrt_ros.control.inbox import SubgoalInbox

NOW = (1, 2)


@pytest.mark.parametrize(
    ('heard', 'stamp', 'number', 'tick', 'working', 'refused'),
    [
        ([], NOW, 1, -1, False, ''),  # the first one, before the first tick
        ([1], NOW, 2, 30, False, ''),  # the next one
        ([1], NOW, 2, 30, True, ''),  # the next one, which has the same words
        ([1, 2], NOW, 2, 30, True, 'worked on'),  # a copy
        ([1, 2], NOW, 2, -1, True, 'worked on'),  # a renewal
        ([1, 2], NOW, 2, -1, False, ''),  # a renewal of what did not arrive
        ([1, 2], NOW, 1, 9, False, 'number 1 after number 2'),  # overtaken
        ([], NOW, 3, -1, True, 'worked on'),  # after a restore: the capsule has it
        ([], (1, 1), 2, 9, False, 'of episode 1, epoch 1; 1, 2 is in force'),
        ([], (0, 2), 2, 9, False, 'of episode 0'),
    ],
)
def test_what_counts(heard, stamp, number, tick, working, refused):
    """One row for each thing that may arrive."""
    inbox = SubgoalInbox()
    for before in heard:
        assert inbox.refuse(NOW, NOW, before, 5, False) == ''
    why = inbox.refuse(stamp, NOW, number, tick, working)
    assert refused in why and bool(why) == bool(refused)


def test_a_new_epoch_counts_anew():
    """After a restore the planner may be at an earlier subgoal."""
    inbox = SubgoalInbox()
    assert inbox.refuse(NOW, NOW, 4, 60, False) == ''
    assert inbox.refuse((1, 3), (1, 3), 2, -1, False) == ''
    assert 'after number 2' in inbox.refuse((1, 3), (1, 3), 1, 9, False)
