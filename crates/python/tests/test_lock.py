"""The lock of `quorlock`, on real nodes."""

from __future__ import annotations

import math
import threading
import time
from datetime import timedelta

import pytest
from conftest import SOON, Nodes, eventually

import quorlock


def test_block_holds_the_lock_and_releases_it(q, other, nodes, key):
    with q.lock(key, ttl=10, wait=10) as lock:
        assert lock.owned()
        assert lock.fence > 0
        assert 5 < lock.remaining <= 10
        assert lock.key == key.encode()
        assert not other.lock(key).acquire(blocking=False)
    assert not lock.owned()
    assert lock.remaining == 0
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_fence_grows_with_each_lock_of_a_key(q, other, key):
    fences = []
    for quorum in (q, other, q, other):
        with quorum.lock(key) as lock:
            fences.append(lock.fence)
    assert fences == sorted(set(fences))


def test_acquire_returns_whether_the_lock_was_acquired(q, other, key):
    first, second = q.lock(key), other.lock(key)
    assert first.acquire() is True
    assert second.acquire(blocking=False) is False
    assert second.acquire(timeout=0.1) is False
    assert first.release() is True
    assert second.acquire(timeout=5) is True
    assert second.release() is True


def test_wait_ends_when_the_holder_releases(q, other, key):
    first, second = q.lock(key), other.lock(key, wait=SOON)
    first.acquire()
    acquired = []
    waiter = threading.Thread(target=lambda: acquired.append(second.acquire()))
    waiter.start()
    eventually(lambda: q.inspect(key).nodes[0].lease.waiters == 1, "the thread waits")
    first.release()
    waiter.join(SOON)
    assert acquired == [True]
    second.release()
