"""Pairs a robot state with the camera images of the same moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import numpy as np

S = TypeVar('S')


class Pairing(Generic[S]):
    """Collects states and images by their stamp; gives an observation once all are there.

    Args:
        cameras: Names of the images that belong to an observation.
        depth: Moments that may wait for the rest; older ones are dropped.
    """

    def __init__(self, cameras: tuple[str, ...], depth: int = 8) -> None:
        self.cameras = cameras
        self.depth = depth
        self._states: dict[int, S] = {}
        self._images: dict[int, dict[str, np.ndarray]] = {}

    def state(self, stamp: int, state: S) -> tuple[S, Mapping[str, np.ndarray]] | None:
        """Take a state; return state and images if it was the last part of its moment."""
        self._states[stamp] = state
        return self._complete(stamp)

    def image(
        self, stamp: int, camera: str, pixels: np.ndarray
    ) -> tuple[S, Mapping[str, np.ndarray]] | None:
        """Take an image; return state and images if it was the last part of its moment."""
        self._images.setdefault(stamp, {})[camera] = pixels
        return self._complete(stamp)

    def _complete(self, stamp: int) -> tuple[S, Mapping[str, np.ndarray]] | None:
        for waiting in (self._states, self._images):
            while len(waiting) > self.depth:
                waiting.pop(min(waiting))
        images = self._images.get(stamp, {})
        if stamp not in self._states or any(name not in images for name in self.cameras):
            return None
        del self._images[stamp]
        return self._states.pop(stamp), images
