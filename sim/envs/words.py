"""More ways to say the same: wordings with single words changed for others of the same meaning.

The table knows no task: it holds what people say for one another whatever they talk about. A
wording that is kept out of training never comes out of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flashrt_ros.control.text import LENGTH

SYNONYMS: tuple[tuple[str, ...], ...] = (
    ('close', 'shut'),
    ('push', 'shove', 'press'),
    ('pull', 'drag', 'draw'),
    ('press', 'push', 'hit'),
    ('move', 'shift', 'bring'),
    ('put', 'place', 'set'),
    ('take', 'get', 'bring'),
    ('lift', 'raise'),
    ('pick up', 'grasp', 'grab', 'take'),
    ('turn', 'rotate', 'twist'),
    ('slide', 'glide', 'push'),
    ('sweep', 'brush', 'wipe'),
    ('hammer', 'strike', 'knock'),
    ('reach', 'touch', 'go to'),
    ('goal', 'mark', 'target'),
    ('puck', 'disc'),
    ('cube', 'block'),
    ('mug', 'cup'),
    ('thermos', 'bottle'),
    ('faucet', 'tap'),
    ('cover', 'lid'),
    ('basket', 'hoop'),
    ('under', 'below', 'beneath'),
    ('over', 'across'),
)


def varied(wordings: Sequence[str], held_out: Collection[str]) -> tuple[str, ...]:
    """Add to `wordings` those with one of their words changed, without those in `held_out`."""
    found = dict.fromkeys(wordings)
    for wording in wordings:
        padded = f' {wording} '
        for first, *others in SYNONYMS:
            if f' {first} ' in padded:
                for other in others:
                    found[padded.replace(f' {first} ', f' {other} ', 1).strip()] = None
    fits = (text for text in found if len(text.encode()) <= LENGTH and text not in held_out)
    return tuple(fits)
