"""Every way the contract says no, in one line: what is wrong, and what would be right."""

from __future__ import annotations

from flashrt_ros.errors import FlashrtError


class ContractError(FlashrtError, RuntimeError):
    """Base of all errors of the contract."""


class DeviceError(ContractError):
    """The device asked for is unknown or not there."""


class DuplicateNameError(ContractError):
    """A name is already taken in its context or plan."""


class WriteError(ContractError, ValueError):
    """A value does not fit the buffer it was to be written into."""


class ReboundError(ContractError):
    """The memory behind a buffer is no longer the memory that was captured."""


class MissingVariantError(ContractError, KeyError):
    """A graph was asked to replay a key for which nothing was captured."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ''  # KeyError would show the repr


class CaptureError(ContractError):
    """A callable cannot be captured, or capturing is not allowed at this moment."""


class FrozenError(ContractError):
    """The context is frozen: it replays, and makes nothing new."""


class AllocationError(ContractError):
    """Memory was allocated where only replays are allowed."""


class ThreadError(ContractError):
    """A replay came from a thread that the context is not bound to."""


class PlanError(ContractError):
    """A node does not fit its plan: an unknown dependency, a cycle, or a race."""
