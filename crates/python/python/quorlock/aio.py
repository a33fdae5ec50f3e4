"""The API for asyncio: the names of `quorlock`, with calls to await.

    q = quorlock.aio.Quorum(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
    async with q.lock("orders/42", ttl=10, wait=5) as lock:
        await ship(fence=lock.fence)

A call that is cancelled leaves nothing: the client releases what the call may have acquired.
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from . import _quorlock
from ._lock import LockState, QuorumBase, Time, note
from .errors import HeldError, LostError
from .reports import Inspection, NodeHealth

__all__ = ["Lock", "Quorum"]

# Only the loop refers to its bridge, and so to the tasks that await a call. The garbage collector
# ends the tasks of a closed loop, which releases their locks.
_bridges: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, weakref.ReferenceType[_quorlock.Bridge]
] = weakref.WeakKeyDictionary()

# A child gets no replies of its parent's calls.
os.register_at_fork(after_in_child=_bridges.clear)


def _bridge(loop: asyncio.AbstractEventLoop) -> _quorlock.Bridge:
    reference = _bridges.get(loop)
    bridge = None if reference is None else reference()
    if bridge is None:
        bridge = _quorlock.Bridge()
        loop.add_reader(bridge.fileno(), bridge.deliver)
        # Last, because the loop may refuse the reader.
        _bridges[loop] = weakref.ref(bridge)
    return bridge


async def _call(begin: Callable[..., Any], *arguments: Any) -> Any:
    """Awaits a call of the client. If it is cancelled, so is the call."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    call = begin(*arguments, (_bridge(loop), future))
    try:
        return await future
    except BaseException:
        call.cancel()
        # The result may have arrived together with the cancellation.
        if future.done() and not future.cancelled() and future.exception() is None:
            held = future.result()
            if isinstance(held, _quorlock.Held):
                held.abandon()
        raise


class Lock(LockState):
    """A lock. Made by `Quorum.lock` and its siblings.

    An object serves one holder at a time: make one for each task.

    If the lock is lost inside `async with`, the block is cancelled, and `LostError` is raised.
    """

    _watch: _Watch | None = None

    async def acquire(self, blocking: bool = True, timeout: Time | None = None) -> bool:
        """Acquires the lock; returns `False` if another client keeps it.

        Waits up to `timeout`, by default for the `wait` of the lock. With `blocking=False`, makes
        one attempt. Raises `NoQuorumError` if no majority of the nodes answers.
        """
        try:
            await self._acquire(timeout if blocking else 0)
        except HeldError:
            return False
        return True

    async def _acquire(self, wait: Time | None) -> None:
        self._refuse_second()
        self._keep(await _call(self._quorum.acquire, self._request, wait))

    async def release(self) -> bool:
        """Releases the lock. Returns whether it was held until then.

        Raises `NoQuorumError` if too few nodes confirm. The release then continues.
        """
        held = self._take()
        try:
            was_held: bool = await _call(held.release)
            return was_held
        except asyncio.CancelledError:
            # Cancelled before the client began.
            held.abandon()
            raise

    async def extend(self) -> None:
        """Makes the lock last its full ttl from now. A renewed lock does not need it."""
        await _call(self._require().extend)

    async def downgrade(self) -> None:
        """Turns an exclusive lock into a shared one, without a gap, and extends it."""
        await _call(self._require().downgrade)

    async def locked(self) -> bool:
        """Whether any client holds the key. It may change at any time."""
        inspected = [await _call(self._quorum.inspect, key) for key in self._inspected()]
        return self._is_locked([inspection.state for inspection in inspected])

    async def detach(self) -> str:
        """Ends the hold of this object, and returns a text with which another process attaches it.

        A program that knows the text can attach or release the lock: treat it as a password.
        """
        return self._take().detach()

    async def __aenter__(self) -> Lock:
        await self._acquire(None)
        self._watch = _Watch(self._require())
        return self

    async def __aexit__(self, kind: Any, exception: BaseException | None, traceback: Any) -> None:
        watch, self._watch = self._watch, None
        was_cancelled = watch is not None and watch.stop()
        if self._held is None:
            return
        held = self._take()
        if kind is GeneratorExit:
            # The coroutine is being destroyed and can await nothing.
            held.abandon()
            return
        try:
            await _call(held.finish)
        except asyncio.CancelledError:
            held.abandon()
            raise
        except LostError as lost:
            if exception is None or (was_cancelled and kind is asyncio.CancelledError):
                raise
            note(exception, lost)


class _Watch:
    """Cancels the task that holds a lock when the lock is lost."""

    def __init__(self, held: _quorlock.Held) -> None:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._has_cancelled = False
        self._future = loop.create_future()
        self._future.add_done_callback(self._ended)
        self._call = held.ended((_bridge(loop), self._future))

    def _ended(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None and future.result() is not None:
            if self._task is not None:
                self._has_cancelled = True
                self._task.cancel()

    def stop(self) -> bool:
        """Returns whether the task was cancelled because of the loss."""
        self._call.cancel()
        # A loss that the loop has not reported yet no longer cancels the task.
        task, self._task = self._task, None
        if self._has_cancelled and task is not None and sys.version_info >= (3, 11):
            # A cancellation from elsewhere, such as that of a time limit, remains.
            return task.uncancel() == 0
        return self._has_cancelled


class Quorum(QuorumBase[Lock]):
    __doc__ = QuorumBase.__doc__

    _lock_class = Lock

    async def attach(self, detached: str, *, renew: bool = True, ttl: Time | None = None) -> Lock:
        """Attaches a lock that another process detached, with its ttl or another one.

        The fence grows. Raises `GoneError` if the lock has ended or was attached elsewhere.
        """
        return self._attached(await _call(self._native.attach, detached, ttl, renew), renew)

    async def release_detached(self, detached: str) -> bool:
        """Releases a detached lock. Returns whether it was held until then."""
        was_held: bool = await _call(self._native.release_detached, detached)
        return was_held

    async def inspect(self, key: str | bytes) -> Inspection:
        """Asks every node which lock holds the key."""
        inspection: Inspection = await _call(self._native.inspect, key)
        return inspection

    async def health(self) -> list[NodeHealth]:
        """The state of the connection to each node."""
        nodes: list[NodeHealth] = await _call(self._native.health)
        return nodes

    async def flush(self, timeout: Time = 5) -> None:
        """Waits until the releases in the background have ended."""
        await _call(self._native.flush, timeout)
