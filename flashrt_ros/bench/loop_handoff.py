"""Hand-offs of subgoals from one thread to the replays of another: torn, lost, or in effect."""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from flashrt_ros.contract.context import Context
from flashrt_ros.contract.graph import ShapeKey
from flashrt_ros.control.mailbox import Mailbox

LENGTH = 64  # tokens in a row


@dataclass
class Handoffs:
    """What became of every hand-off.

    Attributes:
        posted: Subgoals handed over.
        torn: Replays that saw a row of two subgoals mixed, or not that of its generation.
        lost: Subgoals not in effect at the first replay begun after the post returned.
        replays: Replays meanwhile.
    """

    posted: int = 0
    torn: int = 0
    lost: int = 0
    replays: int = 0
    _seen: list[int] = field(default_factory=list, repr=False)


def run(device: str, count: int, seed: int = 0) -> Handoffs:
    """Hand over ``count`` subgoals at random phases of a replay loop on another thread."""
    ctx = Context(device)
    mailbox = Mailbox(ctx, LENGTH)
    row = ctx.buffer('bench/row', (LENGTH,), torch.int32)
    graph = ctx.graph(
        'reader',
        reads={'slots': mailbox.port.slots, 'live': mailbox.port.live},
        writes={'row': row},
    )

    def forward() -> None:
        live = mailbox.port.slots.tensor.index_select(0, mailbox.port.live.tensor)  # [1, L]
        row.tensor.copy_(live[0])

    key = ShapeKey(batch=1)
    graph.capture(key, forward)
    ctx.freeze()
    found, begun, stop, replayed = Handoffs(), 0, threading.Event(), threading.Condition()

    def read() -> None:
        nonlocal begun
        while not stop.is_set():
            begun += 1  # whatever was posted before this must be in effect at this replay
            mailbox.flip()
            generation = mailbox.generation
            graph.replay(key)
            values = row.tensor.cpu().numpy()
            with replayed:
                found._seen.append(generation)
                replayed.notify()
            found.torn += bool((values != generation).any())

    def enough(wanted: int) -> bool:
        return len(found._seen) >= wanted

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # threads take turns in the middle of things
    reader = threading.Thread(target=read, name='replay')
    reader.start()
    rng, due = random.Random(seed), []
    try:
        for number in range(1, count + 1):
            mailbox.post(np.full(LENGTH, number, np.int32), number)
            due.append((number, begun))
            found.posted += 1
            wanted = begun + 1 + rng.randrange(3)
            with replayed:
                if not replayed.wait_for(partial(enough, wanted), 60.0):
                    break  # the replays have ended; what is due counts as lost
            for _ in range(rng.randrange(2000)):  # any phase of the replay that is under way
                pass
    finally:
        stop.set()
        reader.join()
        sys.setswitchinterval(interval)
    found.replays = len(found._seen)
    # Replay number n is found._seen[n - 1]; the first begun after the post is number at + 1.
    seen = found._seen
    found.lost = sum(at >= len(seen) or seen[at] < number for number, at in due)
    return found
