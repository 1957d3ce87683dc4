"""Capsules by name: newest first, bounded, some kept."""

import pytest

from flashrt_ros.control.shelf import START, Shelf, ShelfError


def filled(count: int, size: int) -> Shelf[int]:
    """Return a shelf with an episode's start and ``count`` others put on it."""
    shelf: Shelf[int] = Shelf('the brain', size)
    shelf.put('f' * 64, START, -1)
    for number in range(count):
        shelf.put(f'{number:064x}', f'note-{number}', number)
    return shelf


def test_the_newest_of_a_name_counts() -> None:
    """Two of one name: the name means the newer, and the older still answers to its key."""
    shelf = filled(0, 8)
    shelf.put('a' * 64, 'note', 1)
    shelf.put('b' * 64, 'note', 2)
    assert shelf.find('note') == 2
    assert shelf.find('a' * 64) == 1
    assert shelf.find('a' * 12) == 1


def test_the_oldest_goes_and_the_start_stays() -> None:
    """Beyond the size the oldest is dropped, never the start of the episode."""
    shelf = filled(10, 4)
    assert shelf.all() == [-1, 7, 8, 9]
    assert shelf.find(START) == -1


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    """One sentence: what was asked for, whose, and every name with its first digits."""
    with pytest.raises(ShelfError) as caught:
        filled(1, 8).find('yesterday')
    assert str(caught.value) == (
        "no capsule 'yesterday' of the brain; there is: episode-start (ffffffffffff), "
        'note-0 (000000000000)'
    )
    with pytest.raises(ShelfError, match='start an episode first'):
        Shelf('the brain', 2).find(START)


def test_digits_that_fit_several_name_nothing() -> None:
    """The first digits must be enough, and unique."""
    shelf = filled(3, 8)
    with pytest.raises(ShelfError):
        shelf.find('0' * 12)
    with pytest.raises(ShelfError):
        shelf.find('f' * 3)
