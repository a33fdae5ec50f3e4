"""The lock of `quorlock`, on real nodes."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from datetime import timedelta

import pytest
from conftest import SOON, Nodes, eventually, waiters

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
    eventually(lambda: waiters(q, key) == 1, "the thread waits")
    first.release()
    waiter.join(SOON)
    assert acquired == [True]
    second.release()


def test_lock_is_renewed_while_the_block_runs(q, key):
    with q.lock(key, ttl=0.5) as lock:
        time.sleep(1.2)
        assert lock.owned()


def test_lock_without_renewal_ends_with_its_ttl(q, other, key):
    lock = q.lock(key, ttl=0.3, renew=False)
    assert lock.acquire()
    eventually(lambda: not lock.owned(), "the lock has ended")
    assert other.lock(key).acquire(timeout=5)
    with pytest.raises(quorlock.LostError):
        lock.extend()


def test_block_raises_if_its_lock_expired(q, key):
    with pytest.raises(quorlock.LostError) as caught:
        with q.lock(key, ttl=0.3, renew=False) as lock:
            eventually(lambda: not lock.owned(), "the lock has ended")
    assert caught.value.cause == "expired"
    assert len(caught.value.nodes) == 3


def test_block_raises_if_an_operator_ended_its_lock(q, nodes, key):
    with pytest.raises(quorlock.LostError) as caught:
        with q.lock(key, ttl=0.6) as lock:
            nodes.end(key)
            eventually(lambda: not lock.owned(), "renewal notices the end")
    assert caught.value.cause == "ended"


def test_block_that_ends_at_once_notices_an_ended_lock(q, nodes, key):
    with pytest.raises(quorlock.LostError):
        with q.lock(key):
            nodes.end(key)


def test_exception_of_the_block_survives_the_loss(q, nodes, key):
    with pytest.raises(KeyError) as caught:
        with q.lock(key):
            nodes.end(key)
            raise KeyError("work")
    if sys.version_info >= (3, 11):
        assert "quorlock" in caught.value.__notes__[0]


def test_exception_of_the_block_releases_the_lock(q, nodes, key):
    with pytest.raises(KeyError):
        with q.lock(key):
            raise KeyError("work")
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_block_may_release_its_lock_early(q, nodes, key):
    with q.lock(key) as lock:
        assert lock.release()
        eventually(lambda: nodes.is_free(key), "the key is free")


def test_release_of_an_ended_lock_returns_false(q, nodes, key):
    lock = q.lock(key)
    lock.acquire()
    nodes.end(key)
    assert lock.release() is False


def test_extend_lasts_a_full_ttl(q, key):
    lock = q.lock(key, ttl=2, renew=False)
    lock.acquire()
    eventually(lambda: lock.remaining < 1.5, "some of the ttl has passed")
    lock.extend()
    assert lock.remaining > 1.7
    lock.release()


def test_max_hold_ends_a_renewed_lock(q, key):
    with pytest.raises(quorlock.LostError) as caught:
        with q.lock(key, ttl=0.5, max_hold=0.6) as lock:
            eventually(lambda: not lock.owned(), "the lock has ended")
    assert caught.value.cause == "held_too_long"


def test_object_can_acquire_again_after_a_release(q, key):
    lock = q.lock(key)
    for _ in range(3):
        with lock:
            assert lock.owned()


def test_object_cannot_acquire_twice(q, key):
    lock = q.lock(key)
    with lock, pytest.raises(quorlock.AlreadyAcquiredError):
        lock.acquire()


@pytest.mark.parametrize("use", ["release", "extend", "detach", "downgrade"])
def test_object_without_a_lock_refuses(q, key, use):
    with pytest.raises(quorlock.NotAcquiredError):
        getattr(q.lock(key), use)()


def test_dropped_object_releases_its_lock(q, nodes, key):
    lock = q.lock(key)
    lock.acquire()
    del lock
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_locked_says_whether_any_client_holds_the_key(q, other, key):
    lock = q.lock(key)
    assert not lock.locked()
    with other.lock(key):
        assert lock.locked()
        assert not lock.owned()


def test_shared_locks_exclude_writers_only(q, other, key):
    with q.lock(key, shared=True), other.lock(key, shared=True):
        assert not q.lock(key).acquire(blocking=False)
    with q.lock(key):
        assert not other.lock(key, shared=True).acquire(blocking=False)


def test_downgrade_admits_readers(q, other, key):
    with q.lock(key) as lock:
        assert not other.lock(key, shared=True).acquire(blocking=False)
        lock.downgrade()
        with other.lock(key, shared=True, wait=5):
            assert lock.owned()


def test_lock_all_takes_all_keys_or_none(q, other, key):
    both = [f"{key}/a", f"{key}/b"]
    with other.lock(both[1]):
        assert not q.lock_all(both).acquire(blocking=False)
        assert other.lock(both[0]).acquire(timeout=5)
    with q.lock_all(reversed(both), wait=5) as lock:
        assert lock.keys == [name.encode() for name in both]
        assert lock.locked()


def test_lock_any_takes_a_free_key(q, other, key):
    both = [f"{key}/a", f"{key}/b"]
    with other.lock(both[0]):
        any_of = q.lock_any(both)
        with any_of:
            assert any_of.key == both[1].encode()
            assert any_of.slot == 1
            assert any_of.locked()
        assert not any_of.locked()


def test_semaphore_admits_as_many_holders_as_permits(q, other, key):
    first, second, third = (q.semaphore(key, 2), other.semaphore(key, 2), other.semaphore(key, 2))
    assert first.acquire() and second.acquire()
    assert {first.slot, second.slot} == {0, 1}
    assert not third.acquire(blocking=False)
    first.release()
    assert third.acquire(timeout=5)
    with pytest.raises(TypeError):
        first.locked()


def test_detached_lock_is_attached_by_another_client(q, other, key):
    lock = q.lock(key, ttl=5)
    lock.acquire()
    fence, text = lock.fence, lock.detach()
    assert not lock.owned()
    attached = other.attach(text)
    assert attached.fence > fence
    assert attached.owned()
    with pytest.raises(quorlock.GoneError) as caught:
        q.attach(text)
    assert len(caught.value.nodes) == 3
    assert attached.release()


def test_attached_lock_can_have_another_ttl(q, key):
    lock = q.lock(key, ttl=5)
    lock.acquire()
    attached = q.attach(lock.detach(), ttl=20, renew=False)
    assert 10 < attached.remaining <= 20
    assert attached.release()


def test_attached_lock_is_acquired_again_as_it_was(q, other, key):
    lock = q.lock(key, ttl=40, shared=True)
    lock.acquire()
    attached = other.attach(lock.detach())
    attached.release()
    with attached, q.lock(key, shared=True, wait=5):
        assert attached.remaining > 30


def test_detached_lock_is_released_by_another_client(q, other, nodes, key):
    lock = q.lock(key)
    lock.acquire()
    text = lock.detach()
    assert other.release_detached(text) is True
    eventually(lambda: nodes.is_free(key), "the key is free")
    assert other.release_detached(text) is False


def test_text_that_is_no_detached_lock_is_refused(q):
    with pytest.raises(quorlock.InvalidRequestError):
        q.attach("no lock")


@pytest.mark.parametrize("ttl", [2, 2.5, timedelta(seconds=2)])
def test_times_are_numbers_or_timedeltas(q, key, ttl):
    with q.lock(key, ttl=ttl, wait=timedelta(milliseconds=500)) as lock:
        assert 1 < lock.remaining <= 2.5


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"ttl": -1}, ValueError),
        ({"ttl": timedelta(seconds=-1)}, ValueError),
        ({"ttl": math.nan}, ValueError),
        ({"ttl": "10"}, TypeError),
        ({"tll": 10}, TypeError),
        ({"permits": 2}, TypeError),
    ],
)
def test_wrong_options_are_refused_at_once(q, key, given, error):
    with pytest.raises(error):
        q.lock(key, **given)


def test_key_is_text_or_bytes(q, other, key):
    with q.lock(key.encode()):
        assert not other.lock(key).acquire(blocking=False)
    with pytest.raises(TypeError):
        q.lock(7)


def test_request_that_can_never_be_granted_is_an_error(q, key):
    with pytest.raises(quorlock.InvalidRequestError) as caught:
        q.lock(key, ttl=0).acquire()
    assert isinstance(caught.value, ValueError)
    with pytest.raises(quorlock.NoQuorumError) as denied:
        q.lock(key, ttl=3600).acquire()
    assert denied.value.nodes[0].is_permanent


def test_logger_can_have_any_level(q, key):
    logger = logging.getLogger("quorlock")
    level = logger.level
    try:
        for any_level in (-1, 1000):
            logger.setLevel(any_level)
            with q.lock(key, wait=5):
                pass
    finally:
        logger.setLevel(level)


def test_infinite_wait_has_no_end(q, other, key):
    first, second = q.lock(key), other.lock(key, wait=math.inf)
    first.acquire()
    acquired = threading.Event()
    threading.Thread(target=lambda: second.acquire() and acquired.set(), daemon=True).start()
    eventually(lambda: waiters(q, key) == 1, "the thread waits")
    first.release()
    assert acquired.wait(SOON)
    second.release()


def test_repr_names_the_key_and_no_token(q, key):
    lock = q.lock(key)
    assert "not acquired" in repr(lock)
    with lock:
        assert key in repr(lock)
        assert str(lock.fence) in repr(lock)
        assert nodes_token(q, key) not in repr(lock)


def nodes_token(q: quorlock.Quorum, key: str) -> str:
    """The token of the lock, which is the string under the key."""
    import redis

    path = q.health()[0].node
    with redis.Redis(unix_socket_path=path) as client:
        return client.get(key).decode()


def test_threads_wait_without_the_gil(q, other, key):
    """A waiting thread that kept the GIL would stop this one until the end of its wait."""
    with other.lock(key):
        waiter = threading.Thread(target=lambda: q.lock(key).acquire(timeout=SOON))
        waiter.start()
        eventually(lambda: waiters(other, key) == 1, "the thread waits")
        assert waiter.is_alive()
    waiter.join(SOON)
    assert not waiter.is_alive()
