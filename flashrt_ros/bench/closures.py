"""The closures that the capsule benchmark measures.

The robot's: 60 buffers, 2 MiB, and a small queue. The planner's: the state of the language model
at the dimensions of Qwen3.5-0.8B, as `hybrid_lm.state` lays it out, without the model. Its caches
are keys and values bf16 [24, T, 256] of 6 full-attention layers and the tokens int32 [1, T]; its
fixed part is the recurrent states fp32 [18, 16, 128, 128], the convolutions' windows bf16
[18, 3, 6144] and eight small buffers.
"""

from __future__ import annotations

import torch

from flashrt_policies.hybrid_lm.config import parse_config
from flashrt_policies.hybrid_lm.state import LMState
from flashrt_ros.bench.planner import QWEN_0_8B
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context

TURN = 64  # tokens of one turn


class Robot:
    """60 buffers, 2 MiB, and a queue on the host."""

    def __init__(self, device: str) -> None:
        self.ctx = Context(device)
        self.buffers = [
            self.ctx.buffer(f'robot/{index}', (8960,), torch.float32) for index in range(60)
        ]
        self.queue = {'chunk': list(range(16)), 'epoch': 3}
        closure = Closure('robot').fixed(*self.buffers)
        closure.host('queue', lambda: dict(self.queue), self.queue.update)
        self.session = Session(self.ctx, closure, Fingerprint.of(closure, self.ctx.device))


class Planner:
    """A hybrid language model's state: caches of `capacity` tokens and recurrent states."""

    def __init__(self, device: str, capacity: int, gpu_bytes: int, host_bytes: int = 0) -> None:
        self.ctx = Context(device)
        self.wait = self.ctx.current_stream().synchronize  # all of a session's work is there
        self.state = LMState(self.ctx, parse_config(QWEN_0_8B), capacity, torch.bfloat16, 'lm')
        closure = Closure('planner')
        self.state.close_over(closure)
        for buffer in closure.buffers:
            if buffer.dtype.is_floating_point:
                buffer.tensor.normal_()
            else:
                buffer.tensor.random_(0, 1000)
        self.registry = Registry(self.ctx, gpu_bytes, host_bytes)
        fingerprint = Fingerprint.of(closure, self.ctx.device)
        self.session = Session(self.ctx, closure, fingerprint, registry=self.registry)

    def grow(self, count: int = TURN) -> None:
        """What a prefill would report; the bytes are random anyway."""
        with self.state.cursor.appending(count):
            pass

    def start(self, length: int) -> Capsule:
        """A capsule of `length` tokens whose history shares nothing with any other."""
        self.state.cursor.truncate(0)
        self.state.growing[0].touch()
        self.grow(length)
        return self.session.snapshot('start', length)

    def views(self, length: int) -> list[torch.Tensor]:
        """The valid parts of all buffers."""
        caches = [cache.tensor[:, :length] for cache in self.state.growing]
        return caches + [buffer.tensor for buffer in self.state.fixed]
