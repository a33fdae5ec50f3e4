"""A lock with the signature and the exceptions of redis-py's `Lock`, over a quorum.

    lock = quorlock.compat.Lock(q, "orders/42", timeout=10, blocking_timeout=5)

`docs/python.md` names what differs.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from . import Lock as QuorumLock
from . import Quorum
from .errors import LostError, QuorlockError, RevokedError

__all__ = ["Lock", "LockError", "LockNotOwnedError"]

_logger = logging.getLogger("quorlock")

# As with redis-py, a lock with a timeout outlives its object, and the thread that acquired it. A
# program may drop the object, so that only the timeout ends the lock.
_lasting: set[QuorumLock] = set()
# Ended locks are removed when there are this many.
_lasting_max = 64
os.register_at_fork(after_in_child=_lasting.clear)

if TYPE_CHECKING:

    class LockError(QuorlockError, ValueError):
        """The lock was not acquired, extended or released."""

        def __init__(self, message: str | None = None, lock_name: str | None = None) -> None: ...

    class LockNotOwnedError(LockError):
        """This object does not own the lock any more."""

else:
    try:
        # So that `except redis.exceptions.LockError` goes on to work.
        from redis.exceptions import LockError, LockNotOwnedError
    except ImportError:

        class LockError(QuorlockError, ValueError):
            """The lock was not acquired, extended or released."""

            def __init__(self, message=None, lock_name=None):
                super().__init__(message)
                self.message = message
                self.lock_name = lock_name

        class LockNotOwnedError(LockError):
            """This object does not own the lock any more."""


class Lock:
    """A lock as redis-py's, with a quorum in place of the client.

    Without a `timeout`, the client renews the lock until it is released or its object is dropped. A
    waiter stands in line on the nodes, and `sleep` has no effect.
    """

    def __init__(
        self,
        redis: Quorum,
        name: str | bytes,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        if not isinstance(redis, Quorum):
            raise TypeError(f"the first argument is a quorlock.Quorum, not {type(redis).__name__}")
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()
        self._keep(None)

    def _keep(self, lock: QuorumLock | None, ttl: float | None = None) -> None:
        global _lasting_max
        _lasting.discard(self._lock())
        if lock is not None and ttl:
            if len(_lasting) >= _lasting_max:
                _lasting.difference_update([it for it in tuple(_lasting) if not it.owned()])
                _lasting_max = max(64, 2 * len(_lasting))
            _lasting.add(lock)
        self.local.lock = lock
        self.local.ttl = ttl
        # Says whether this thread has the lock, and proves nothing: no program sees the real token.
        self.local.token = None if lock is None else str(lock.fence).encode()

    def _lock(self) -> QuorumLock | None:
        # Another thread has not set its own value.
        return getattr(self.local, "lock", None)

    def _error(self, text: str) -> LockError:
        return LockError(text, lock_name=self.name)  # type: ignore[arg-type]

    def _not_owned(self, verb: str) -> LockNotOwnedError:
        text = f"Cannot {verb} a lock that's no longer owned"
        return LockNotOwnedError(text, lock_name=self.name)  # type: ignore[arg-type]

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquires the lock; returns `False` if another client keeps it."""
        if token is not None:
            raise ValueError("the client draws a new token for every attempt: pass none")
        blocking = self.blocking if blocking is None else blocking
        wait = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        lock = self.redis.lock(
            self.name, ttl=self.timeout or None, renew=not self.timeout, wait=math.inf
        )
        try:
            acquired = lock.acquire(blocking, wait)
        except QuorlockError as error:
            raise self._error(str(error)) from error
        if acquired:
            self._keep(lock, self.timeout)
        return acquired

    def locked(self) -> bool:
        """Whether any client holds the key."""
        try:
            return self.redis.inspect(self.name).state != "free"
        except QuorlockError as error:
            raise self._error(str(error)) from error

    def owned(self) -> bool:
        """Whether this thread certainly holds the lock."""
        lock = self._lock()
        return lock is not None and lock.owned()

    def release(self) -> None:
        """Releases the lock. Raises `LockNotOwnedError` if it had ended before."""
        lock = self._lock()
        if lock is None:
            raise self._error("Cannot release a lock that's not owned or is already unlocked.")
        self._keep(None)
        try:
            was_held = lock.release()
        except QuorlockError as error:
            raise self._error(str(error)) from error
        if not was_held:
            raise self._not_owned("release")

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Adds time to the lock, or with `replace_ttl` makes it last that time from now.

        The fence grows, except if the new time is that of the last call.
        """
        lock = self._extensible("extend")
        ttl = additional_time if replace_ttl else lock.remaining + additional_time
        return self._last(lock, ttl, "extend")

    def reacquire(self) -> bool:
        """Makes the lock last its `timeout` from now."""
        lock = self._extensible("reacquire")
        return self._last(lock, self.timeout, "reacquire")

    def _extensible(self, verb: str) -> QuorumLock:
        lock = self._lock()
        if lock is None:
            raise self._error(f"Cannot {verb} an unlocked lock")
        if self.timeout is None:
            raise self._error(f"Cannot {verb} a lock with no timeout")
        return lock

    def _last(self, lock: QuorumLock, ttl: float | None, verb: str) -> bool:
        if ttl != self.local.ttl:
            return self._attach(lock, ttl, verb)
        try:
            lock.extend()
        except (LostError, RevokedError) as error:
            raise self._not_owned(verb) from error
        except QuorlockError as error:
            raise self._error(str(error)) from error
        return True

    def _attach(self, lock: QuorumLock, ttl: float | None, verb: str) -> bool:
        """Gives the lock another ttl, for which it must be detached."""
        if not lock.owned():
            raise self._not_owned(verb)
        detached = lock.detach()
        try:
            self._keep(self.redis.attach(detached, ttl=ttl, renew=False), ttl)
        except BaseException as error:
            self._keep(None)
            try:
                self.redis.release_detached(detached)
            except QuorlockError:
                pass  # It ends by its deadline.
            if isinstance(error, QuorlockError):
                raise self._not_owned(verb) from error
            raise
        return True

    def __enter__(self) -> Lock:
        if self.acquire():
            return self
        raise self._error("Unable to acquire lock within the time specified")

    def __exit__(self, kind: Any, exception: BaseException | None, traceback: Any) -> None:
        try:
            self.release()
        except LockError:
            if self.raise_on_release_error:
                raise
            _logger.warning("Lock was unlocked or no longer owned when exiting context manager.")
