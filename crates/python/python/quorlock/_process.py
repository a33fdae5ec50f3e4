"""Fork and exit of the process."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref

from . import _quorlock

EXIT_FLUSH_LIMIT = 2.0
"""How long the exit of the interpreter waits for releases in the background, in seconds."""

_quorums: weakref.WeakKeyDictionary[_quorlock.Quorum, None] = weakref.WeakKeyDictionary()
_held: weakref.WeakKeyDictionary[_quorlock.Held, int] = weakref.WeakKeyDictionary()
_finalized_pid = 0


def opened(quorum: _quorlock.Quorum) -> None:
    _quorums[quorum] = None


def acquired(held: _quorlock.Held) -> None:
    """Remembers on which thread a lock was acquired."""
    _held[held] = threading.get_ident()


def started() -> None:
    """Runs when a process starts its first engine.

    The children of `multiprocessing` and of celery's `billiard` run these finalizers at their exit,
    and no functions of `atexit`.
    """
    global _finalized_pid
    if _finalized_pid == os.getpid():
        return
    _finalized_pid = os.getpid()
    for name in ("multiprocessing.util", "billiard.util"):
        util = sys.modules.get(name)
        if util is not None:
            util.Finalize(None, flush_at_exit, exitpriority=0)


def flush_at_exit() -> None:
    """Releases the locks of threads that have ended, and waits for all releases.

    A daemon thread may still work under its lock, which then ends by its deadline.
    """
    running = set(sys._current_frames()) - {threading.get_ident()}
    # Unlike an iteration, `keyrefs` allows other threads to add keys meanwhile.
    for held in [reference() for reference in _held.keyrefs()]:
        if held is not None and _held.get(held) not in running:
            held.abandon()
    for quorum in [reference() for reference in _quorums.keyrefs()]:
        if quorum is not None and quorum.is_open:
            try:
                quorum.flush(EXIT_FLUSH_LIMIT)
            except Exception:
                # The locks end by their deadlines. An exit has no caller for an exception.
                pass
    _quorlock.await_ended(EXIT_FLUSH_LIMIT)


def close_inherited_sockets() -> None:
    """Closes the parent's connections in a forked child.

    A node would otherwise keep a waiter of a parent that has died in line, until the child ends.
    """
    _held.clear()
    markers = _quorlock.inherited()
    if not markers or not os.path.isdir("/proc/self/fdinfo"):
        return
    inherited: set[int] = set()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") != "anon_inode:[eventpoll]":
                continue
            with open(f"/proc/self/fdinfo/{descriptor}") as info:
                fields = [line.split() for line in info]
        except OSError:
            # The descriptor of the listing itself is closed by now.
            continue
        watched = {int(field[1]) for field in fields if field and field[0] == "tfd:"}
        if not watched.isdisjoint(markers):
            inherited |= {descriptor, *watched}
    for descriptor in inherited:
        os.close(descriptor)


atexit.register(flush_at_exit)
os.register_at_fork(after_in_child=close_inherited_sockets)
