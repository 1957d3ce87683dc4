"""Every way the capsule layer says no, in one line: what is wrong, and what would be right."""

from __future__ import annotations

from flashrt_ros.errors import FlashrtError


class CapsuleError(FlashrtError, RuntimeError):
    """Base of all errors of the capsule layer."""


class ClosureError(CapsuleError):
    """A closure entry does not fit, or the closure can no longer change."""


class HostStateError(CapsuleError):
    """A host entry returned something that a capsule cannot hold, or refused to be set."""


class FingerprintError(CapsuleError):
    """The capsule was made under another deployment."""


class LineageError(CapsuleError):
    """The capsule is no ancestor of what the session holds."""


class EvictedError(CapsuleError):
    """The capsule's bytes are gone."""


class BudgetError(CapsuleError):
    """A tier is full and nothing in it may move."""


class PinnedError(CapsuleError):
    """A pinned capsule was to be demoted or evicted."""


class StoreError(CapsuleError):
    """A file or folder of the disk tier is not what it must be; nothing was read from it."""


class IncompleteError(CapsuleError, AssertionError):
    """A closure misses something that the next step depends on, or names something it does not."""
