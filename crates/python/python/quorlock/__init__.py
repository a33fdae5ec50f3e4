"""Distributed locks on a majority of independent Redis or Valkey masters.

    import quorlock

    q = quorlock.Quorum(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
    with q.lock("orders/42", ttl=10, wait=5) as lock:
        ship(fence=lock.fence)

Every rule about locks is in the Rust client, which also renews the locks, on a thread that never
needs the GIL. `quorlock.aio` has the same names for asyncio.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError("quorlock needs the GIL: start Python with PYTHON_GIL=1 or without -X gil=0")

from ._lock import LockState, QuorumBase, Time, note
from .errors import (
    AcquireError,
    AlreadyAcquiredError,
    AttachError,
    ConnectError,
    ExtendError,
    FlushError,
    ForkedError,
    GoneError,
    HeldError,
    HeldTooLongError,
    InspectError,
    InsufficientValidityError,
    InvalidRequestError,
    LostError,
    NodeAnswer,
    NoQuorumError,
    NotAcquiredError,
    QuorlockError,
    ReleaseError,
    RevokedError,
    WaitTimeoutError,
)
from .reports import Inspection, Lease, NodeHealth, NodeInspection

__all__ = [
    "AcquireError",
    "AlreadyAcquiredError",
    "AttachError",
    "ConnectError",
    "ExtendError",
    "FlushError",
    "ForkedError",
    "GoneError",
    "HeldError",
    "HeldTooLongError",
    "InspectError",
    "Inspection",
    "InsufficientValidityError",
    "InvalidRequestError",
    "Lease",
    "Lock",
    "LostError",
    "NoQuorumError",
    "NodeAnswer",
    "NodeHealth",
    "NodeInspection",
    "NotAcquiredError",
    "QuorlockError",
    "Quorum",
    "ReleaseError",
    "RevokedError",
    "WaitTimeoutError",
]

logging.getLogger("quorlock").addHandler(logging.NullHandler())


class Lock(LockState):
    """A lock. Made by `Quorum.lock` and its siblings.

    An object serves one holder at a time: make one for each thread.
    """

    def acquire(self, blocking: bool = True, timeout: Time | None = None) -> bool:
        """Acquires the lock; returns `False` if another client keeps it.

        Waits up to `timeout`, by default for the `wait` of the lock. With `blocking=False`, makes
        one attempt. Raises `NoQuorumError` if no majority of the nodes answers.
        """
        try:
            self._acquire(timeout if blocking else 0)
        except HeldError:
            return False
        return True

    def _acquire(self, wait: Time | None) -> None:
        self._refuse_second()
        self._keep(self._quorum.acquire(self._request, wait))

    def release(self) -> bool:
        """Releases the lock. Returns whether it was held until then.

        Raises `NoQuorumError` if too few nodes confirm. The release then continues.
        """
        return self._take().release()

    def extend(self) -> None:
        """Makes the lock last its full ttl from now. A renewed lock does not need it."""
        self._require().extend()

    def downgrade(self) -> None:
        """Turns an exclusive lock into a shared one, without a gap, and extends it."""
        self._require().downgrade()

    def locked(self) -> bool:
        """Whether any client holds the key. It may change at any time."""
        return self._is_locked([self._quorum.inspect(key).state for key in self._inspected()])

    def detach(self) -> str:
        """Ends the hold of this object, and returns a text with which another process attaches it.

        A program that knows the text can attach or release the lock: treat it as a password.
        """
        return self._take().detach()

    def __enter__(self) -> Lock:
        self._acquire(None)
        return self

    def __exit__(self, kind: Any, exception: BaseException | None, traceback: Any) -> None:
        if self._held is None:
            return
        try:
            self._take().finish()
        except LostError as lost:
            if exception is None:
                raise
            note(exception, lost)


class Quorum(QuorumBase[Lock]):
    __doc__ = QuorumBase.__doc__

    _lock_class = Lock

    def attach(self, detached: str, *, renew: bool = True, ttl: Time | None = None) -> Lock:
        """Attaches a lock that another process detached, with its ttl or another one.

        The fence grows. Raises `GoneError` if the lock has ended or was attached elsewhere.
        """
        return self._attached(self._native.attach(detached, ttl, renew), renew)

    def release_detached(self, detached: str) -> bool:
        """Releases a detached lock. Returns whether it was held until then."""
        return self._native.release_detached(detached)

    def inspect(self, key: str | bytes) -> Inspection:
        """Asks every node which lock holds the key."""
        return self._native.inspect(key)

    def health(self) -> list[NodeHealth]:
        """The state of the connection to each node."""
        return self._native.health()

    def flush(self, timeout: Time = 5) -> None:
        """Waits until the releases in the background have ended.

        The exit of the interpreter does this, too. Raises `FlushError` after the timeout.
        """
        self._native.flush(timeout)
