"""The closures that the capsule benchmark measures.

Two closures made of buffers alone. The robot's: 60 buffers, 2 MiB, and a small queue. The
planner's, at the dimensions of Qwen3.5-0.8B: 6 full-attention layers with K and V bf16
[1, 2, T, 256], 18 linear layers with a recurrent state fp32 [1, 16, 128, 128] and a convolution
state bf16 [1, 6144, 3].
"""

from __future__ import annotations

import torch

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.buffer import Buffer
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
        self.cursor = Cursor('kv')
        self.caches: list[Buffer] = []
        self.states: list[Buffer] = []
        closure = Closure('planner')
        for layer in range(6):
            for part in 'kv':
                shape = (1, 2, capacity, 256)
                cache = self.ctx.buffer(f'{part}/{layer}', shape, torch.bfloat16)
                closure.append(cache, 2, self.cursor)
                self.caches.append(cache)
        for layer in range(18):
            recurrent = self.ctx.buffer(f'recurrent/{layer}', (1, 16, 128, 128), torch.float32)
            conv = self.ctx.buffer(f'conv/{layer}', (1, 6144, 3), torch.bfloat16)
            closure.fixed(recurrent, conv)
            self.states += [recurrent, conv]
        for buffer in (*self.caches, *self.states):
            buffer.tensor.normal_()
        self.registry = Registry(self.ctx, gpu_bytes, host_bytes)
        fingerprint = Fingerprint.of(closure, self.ctx.device)
        self.session = Session(self.ctx, closure, fingerprint, registry=self.registry)

    def grow(self, count: int = TURN) -> None:
        """What a prefill would report; the bytes are random anyway."""
        with self.cursor.appending(count):
            pass

    def start(self, length: int) -> Capsule:
        """A capsule of `length` tokens whose history shares nothing with any other."""
        self.cursor.truncate(0)
        self.caches[0].touch()
        self.grow(length)
        return self.session.snapshot('start', length)

    def views(self, length: int) -> list[torch.Tensor]:
        """The valid parts of all buffers."""
        caches = [cache.tensor[:, :, :length] for cache in self.caches]
        return caches + [state.tensor for state in self.states]
