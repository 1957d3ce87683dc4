"""More wordings by words of the same meaning: none kept out comes back, none means two tasks."""

from __future__ import annotations

from flashrt_sim.envs.fifty import texts
from flashrt_sim.envs.words import varied


def all_varied():
    """Task -> its wordings with synonyms."""
    held_out = {wording for entry in texts().values() for wording in entry['held_out']}
    return {
        task: varied((entry['text'], *entry['paraphrases']), held_out)
        for task, entry in texts().items()
    }, held_out


def test_what_is_kept_out_stays_out():
    """Though some of them are one word away; without the list they would come out (control)."""
    found, held_out = all_varied()
    assert not held_out & {wording for wordings in found.values() for wording in wordings}
    entry = texts()['drawer-close']
    leaky = varied((entry['text'], *entry['paraphrases']), ())
    assert 'shut the drawer' in leaky and 'shut the drawer' in held_out


def test_no_wording_means_two_tasks():
    """There are more of them, the given ones first, and each belongs to one task."""
    found, _ = all_varied()
    everything = [wording for wordings in found.values() for wording in wordings]
    assert len(set(everything)) == len(everything) > 800
    for task, wordings in found.items():
        assert wordings[:6] == (texts()[task]['text'], *texts()[task]['paraphrases'])


def test_whole_words_only():
    """'press' in 'pressure' is no word."""
    assert varied(('press the pressure',), ()) == (
        'press the pressure', 'push the pressure', 'hit the pressure'
    )  # fmt: skip
