"""The exceptions. Most carry what each node answered, in `nodes`."""

from __future__ import annotations

from typing import NamedTuple


class NodeAnswer(NamedTuple):
    """The answer of one node."""

    node: str
    """The address, without any password."""
    answer: str
    """`granted`, `refused`, `failed`, or `pending` if the other nodes decided earlier."""
    error: str | None
    """Why the node did not vote, if it failed."""
    is_permanent: bool
    """Whether the error lasts until a person changes something."""


class QuorlockError(Exception):
    """The base of all exceptions of this package."""

    nodes: tuple[NodeAnswer, ...] = ()
    """What each node answered, if nodes were asked."""


class ConnectError(QuorlockError):
    """The nodes cannot be used, for example because a URL is invalid."""


class AcquireError(QuorlockError):
    """The lock was not acquired. The client releases it on nodes that granted it."""


class ExtendError(QuorlockError):
    """The lock was not extended."""


class AttachError(QuorlockError):
    """The detached lock was not attached."""


class ReleaseError(QuorlockError):
    """The release is not confirmed. It continues in the background."""


class InspectError(QuorlockError):
    """No node knows the state of the key."""


class HeldError(AcquireError):
    """Another client holds the lock or waits for it."""

    holder: str | None = None
    """Who holds the lock, if the nodes said so."""


class WaitTimeoutError(HeldError, TimeoutError):
    """The wait ended while another client held the lock or waited for it."""

    waited: float = 0.0
    """How long the call waited, in seconds."""


class NoQuorumError(AcquireError, ExtendError, AttachError, ReleaseError):
    """No majority of the nodes answered or agreed."""


class InsufficientValidityError(AcquireError, AttachError):
    """The nodes granted the lock too late."""


class InvalidRequestError(AcquireError, AttachError, ValueError):
    """The request can never be granted."""


class LostError(ExtendError):
    """The lock is not held any more. Stop the work that it protected."""

    cause: str = "unknown"
    """`ended`, `expired`, `revoked`, `held_too_long`, or `unknown`."""


class RevokedError(ExtendError):
    """An operator revoked the lock. It is held until its deadline and cannot be extended."""


class HeldTooLongError(ExtendError):
    """The lock has reached its `max_hold`. It is held until its deadline."""


class GoneError(AttachError):
    """The detached lock has ended, or another process has attached it."""


class FlushError(QuorlockError):
    """Releases in the background outlasted the limit. Their locks end by their deadlines."""

    pending: int = 0
    """The number of unfinished releases."""


class NotAcquiredError(QuorlockError, RuntimeError):
    """The object holds no lock that it could extend, release or detach."""


class AlreadyAcquiredError(QuorlockError, RuntimeError):
    """The object holds a lock already. Each holder needs a lock object of its own."""


class ForkedError(QuorlockError, RuntimeError):
    """The lock belongs to the parent process, which acquired it before the fork."""
