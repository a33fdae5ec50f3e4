"""Tasks of celery of which one instance at a time is queued or runs.

    @once(q, ttl=60)
    @app.task
    def report(day): ...

The caller acquires the lock, and its message carries the lock to the worker, which renews it while
the task runs. A message that waits for longer than the ttl loses its lock. The worker then acquires
the lock anew.

A program that reads the messages could release these locks, as it could run the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from . import Lock, Quorum
from .errors import GoneError, HeldError, QuorlockError

__all__ = ["AlreadyQueued", "once"]

HEADER = "quorlock_lock"
"""The header of a message with the detached lock, which is a secret."""

_running: ContextVar[dict[str, Lock]] = ContextVar("quorlock_running", default={})

Task = TypeVar("Task")


class AlreadyQueued(QuorlockError):
    """An instance of the task is queued or runs."""


def once(
    quorum: Quorum,
    *,
    key: str | Callable[..., str] | None = None,
    ttl: float | None = None,
    raise_if_queued: bool = True,
) -> Callable[[Task], Task]:
    """Decorates a task, so that one instance at a time is queued or runs.

    `key` is the key of the lock, or a function of the task's arguments that returns it. By default
    the name and the arguments of the task are. Without `raise_if_queued`, `delay` and `apply_async`
    return `None` instead of raising `AlreadyQueued`.
    """

    def decorate(task: Any) -> Any:
        send, work = task.apply_async, task.run

        def name(args: Any, kwargs: Any) -> str:
            if callable(key):
                return key(*(args or ()), **(kwargs or {}))
            if key is not None:
                return key
            arguments = json.dumps([list(args or ()), kwargs or {}], sort_keys=True, default=repr)
            return f"celery/{task.name}/{arguments}"

        def detached_lock(lock_key: str, is_retry: bool) -> str | None:
            # A task that retries itself passes its own lock on, and ends.
            lock = _running.get().get(lock_key) if is_retry else None
            if lock is not None and lock.owned():
                lock.extend()
            else:
                lock = quorum.lock(lock_key, ttl=ttl, renew=False)
                if not lock.acquire(blocking=False):
                    return None
            return lock.detach()

        def apply_async(
            args: Any = None, kwargs: Any = None, task_id: Any = None, **options: Any
        ) -> Any:
            is_retry = task_id is not None and task_id == task.request.id
            try:
                detached = detached_lock(name(args, kwargs), is_retry)
            except QuorlockError:
                if not is_retry:
                    raise
                detached = None
            # A retry that is not sent would be lost. Without the lock, its worker acquires it anew.
            if detached is None and not is_retry:
                if raise_if_queued:
                    raise AlreadyQueued(f"an instance of {task.name} is queued or runs")
                return None
            headers = {**(options.pop("headers", None) or {}), HEADER: detached}
            try:
                return send(args, kwargs, task_id=task_id, headers=headers, **options)
            except BaseException:
                try:
                    if detached is not None:
                        quorum.release_detached(detached)
                except QuorlockError:
                    pass  # It ends by its deadline. The caller learns why the task was not sent.
                raise

        def run(*args: Any, **kwargs: Any) -> Any:
            lock_key = name(args, kwargs)
            lock = take(lock_key)
            token = _running.set({**_running.get(), lock_key: lock})
            try:
                with _Entered(lock):
                    return work(*args, **kwargs)
            finally:
                _running.reset(token)

        def take(lock_key: str) -> Lock:
            request = task.request
            detached = getattr(request, HEADER, None) or (request.headers or {}).get(HEADER)
            if detached is not None:
                try:
                    return quorum.attach(detached, ttl=ttl)
                except GoneError:
                    # The message waited for longer than the ttl. Or it was delivered again, and the
                    # lock of the worker that died ends within the ttl.
                    pass
            lock = quorum.lock(lock_key, ttl=ttl, wait=None if ttl is None else 2 * ttl)
            was_sent = detached is not None or (request.retries > 0 and not request.is_eager)
            try:
                lock._acquire(None if was_sent else 0)
            except HeldError as error:
                raise AlreadyQueued(f"another instance of {task.name} is queued or runs") from error
            return lock

        task.apply_async, task.run = apply_async, run
        return task

    return decorate


class _Entered:
    """The block of a lock that is acquired already."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        pass

    def __exit__(self, *details: Any) -> None:
        self._lock.__exit__(*details)
