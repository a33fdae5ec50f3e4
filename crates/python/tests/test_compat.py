"""`quorlock.compat.Lock` behaves as redis-py's lock.

Each test checks a behaviour on which programs that use redis-py rely. The rows that cannot hold are
at the end, with what happens instead.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import pytest
from conftest import SOON, eventually, waiters
from redis.exceptions import LockError, LockNotOwnedError, RedisError

import quorlock
from quorlock import compat


@pytest.fixture
def lock(q, key):
    def make(**given):
        return compat.Lock(q, key, **given)

    return make


def remaining(q, key) -> float:
    return q.inspect(key).at_most


def test_exceptions_are_those_of_redis_py():
    assert compat.LockError is LockError
    assert compat.LockNotOwnedError is LockNotOwnedError
    assert issubclass(LockError, RedisError) and issubclass(LockError, ValueError)


def test_exceptions_exist_without_redis_py():
    script = (
        "import sys; sys.modules['redis'] = sys.modules['redis.exceptions'] = None\n"
        "from quorlock import compat\n"
        "error = compat.LockNotOwnedError('text', lock_name='k')\n"
        "assert isinstance(error, compat.LockError) and isinstance(error, ValueError)\n"
        "assert error.lock_name == 'k' and str(error) == 'text'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_lock_is_held_until_its_release(q, nodes, key, lock):
    held = lock()
    assert held.acquire(blocking=False) is True
    assert held.local.token is not None
    assert q.inspect(key).state == "held"
    held.release()
    assert held.local.token is None
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_locked_and_owned_follow_the_lock(lock):
    held, another = lock(), lock()
    assert not held.locked() and not held.owned()
    held.acquire(blocking=False)
    assert held.locked() and held.owned()
    assert another.locked() and not another.owned()
    held.release()
    assert not held.locked() and not held.owned()


def test_competing_lock_is_acquired_after_the_release(lock):
    first, second = lock(), lock()
    assert first.acquire(blocking=False)
    assert not second.acquire(blocking=False)
    first.release()
    assert second.acquire(blocking=False)
    assert not first.acquire(blocking=False)
    second.release()


@pytest.mark.parametrize("timeout", [10, 9.5])
def test_timeout_is_the_ttl(q, key, lock, timeout):
    held = lock(timeout=timeout)
    assert held.acquire(blocking=False)
    assert 8 < remaining(q, key) <= timeout
    held.release()


def test_lock_with_a_timeout_ends(lock):
    held = lock(timeout=0.3)
    held.acquire()
    eventually(lambda: not held.owned(), "the lock has ended")
    assert lock().acquire(blocking_timeout=5)


def test_lock_with_a_timeout_outlives_its_object(lock):
    assert lock(timeout=2).acquire(blocking=False)
    gc.collect()
    assert not lock().acquire(blocking_timeout=0.5)
    assert lock().acquire(blocking_timeout=SOON), "the timeout ends the lock"


def test_lock_with_a_timeout_outlives_its_thread(lock):
    held = lock(timeout=2)
    thread = threading.Thread(target=held.acquire)
    thread.start()
    thread.join()
    assert not lock().acquire(blocking_timeout=0.5)
    assert lock().acquire(blocking_timeout=SOON), "the timeout ends the lock"


def test_locks_that_have_ended_are_forgotten(key, lock, monkeypatch):
    assert lock(timeout=0.3).acquire()
    (ended,) = (kept for kept in compat._lasting if kept._keys == [key])
    eventually(lambda: not ended.owned(), "the lock has ended")
    monkeypatch.setattr(compat, "_lasting_max", 1)
    with lock(timeout=5):
        assert ended not in compat._lasting
    assert not any(kept._keys == [key] for kept in compat._lasting)


def test_lock_without_a_timeout_does_not_end(q, key, lock):
    """redis-py sets no expiry. Here the client renews the lock."""
    held = lock()
    held.acquire()
    first = remaining(q, key)
    eventually(lambda: remaining(q, key) > first - 3 and held.owned(), "the lock is held")
    time.sleep(4)
    assert held.owned() and remaining(q, key) > 6
    held.release()


def test_blocking_timeout_ends_a_wait(lock):
    held, waiting = lock(), lock(blocking_timeout=0.2, sleep=0.05)
    assert held.acquire(blocking=False)
    began = time.monotonic()
    assert not waiting.acquire()
    assert 0.2 < time.monotonic() - began < 2
    assert not lock().acquire(blocking_timeout=0.1)
    held.release()


def test_wait_without_a_limit_ends_with_the_release(q, key, lock):
    held, waiting, acquired = lock(), lock(), []
    held.acquire()

    def wait() -> None:
        acquired.append(waiting.acquire())
        waiting.release()

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: waiters(q, key) == 1, "the thread waits")
    held.release()
    thread.join(SOON)
    assert acquired == [True]


def test_blocking_false_is_a_default_of_the_object(lock):
    held, another = lock(), lock(blocking=False)
    held.acquire()
    assert not another.acquire()
    held.release()


def test_block_holds_the_lock(q, key, lock):
    with lock() as held:
        assert held.owned()
        assert q.inspect(key).state == "held"
    assert q.inspect(key).state == "free"


def test_block_raises_if_the_lock_is_not_acquired(lock):
    with lock(blocking=False):
        with pytest.raises(LockError) as caught:
            with lock(blocking_timeout=0.2, sleep=0.05):
                pass
    assert "within the time" in str(caught.value)


def test_error_has_the_name_of_the_lock(key, lock):
    with lock(), pytest.raises(LockError) as caught:
        lock(blocking=False).__enter__()
    assert caught.value.lock_name == key


def test_block_raises_if_its_lock_has_ended(lock):
    with pytest.raises(LockNotOwnedError):
        with lock(timeout=0.3) as held:
            eventually(lambda: not held.owned(), "the lock has ended")


def test_block_that_released_its_lock_raises(lock):
    with pytest.raises(LockError):
        with lock() as held:
            held.release()


@pytest.mark.parametrize("early", [True, False])
def test_errors_of_the_release_can_be_warnings(lock, caplog, early):
    with lock(timeout=0.3, raise_on_release_error=False) as held:
        if early:
            held.release()
        else:
            eventually(lambda: not held.owned(), "the lock has ended")
    assert "no longer owned" in caplog.text


def test_release_without_a_lock_raises(lock):
    with pytest.raises(LockError):
        lock().release()


def test_release_of_a_lock_that_was_overwritten_raises(nodes, key, lock):
    held = lock()
    held.acquire(blocking=False)
    nodes.ask("SET", key, "a")
    with pytest.raises(LockNotOwnedError):
        held.release()
    assert held.local.token is None
    nodes.end(key)


@pytest.mark.parametrize(("added", "replace", "least", "most"), [
    (10, False, 16, 20), (10.5, False, 16, 20.5), (10, True, 8, 10), (15, True, 13, 15),
])  # fmt: skip
def test_extend_adds_or_replaces_time(q, key, lock, added, replace, least, most):
    held = lock(timeout=10)
    held.acquire(blocking=False)
    assert held.extend(added, replace_ttl=replace) is True
    assert least < remaining(q, key) <= most
    assert held.owned()
    held.release()


@pytest.mark.parametrize("use", ["extend", "reacquire"])
def test_extension_without_a_lock_raises(lock, use):
    with pytest.raises(LockError):
        getattr(lock(timeout=10), use)(*([10] if use == "extend" else []))


@pytest.mark.parametrize("use", ["extend", "reacquire"])
def test_extension_without_a_timeout_raises(lock, use):
    with lock() as held, pytest.raises(LockError):
        getattr(held, use)(*([10] if use == "extend" else []))


@pytest.mark.parametrize("use", ["extend", "reacquire"])
def test_extension_of_a_lock_that_was_overwritten_raises(nodes, key, lock, use):
    held = lock(timeout=10)
    held.acquire(blocking=False)
    nodes.ask("SET", key, "a")
    with pytest.raises(LockNotOwnedError):
        getattr(held, use)(*([10] if use == "extend" else []))
    nodes.end(key)


def test_reacquire_restores_the_timeout(q, key, lock):
    held = lock(timeout=2)
    held.acquire(blocking=False)
    eventually(lambda: remaining(q, key) < 1.6, "some of the ttl has passed")
    assert held.reacquire() is True
    assert remaining(q, key) > 1.6
    held.release()


@pytest.mark.parametrize("use", ["reacquire", "extend"])
def test_timeout_is_restored_after_another_extension(q, key, lock, use):
    held = lock(timeout=10)
    held.acquire(blocking=False)
    held.extend(1, replace_ttl=True)
    assert held.reacquire() if use == "reacquire" else held.extend(10, replace_ttl=True)
    assert held.local.lock.remaining > 8
    assert 8 < remaining(q, key) <= 10
    held.release()


def test_extension_that_fails_releases_the_lock(nodes, key, lock):
    held = lock(timeout=50)
    held.acquire(blocking=False)
    with pytest.raises(LockNotOwnedError):
        held.extend(3600, replace_ttl=True)
    assert held.local.token is None
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_extension_that_is_interrupted_releases_the_lock(q, nodes, key, lock, monkeypatch):
    def attach(*arguments, **options):
        raise KeyboardInterrupt

    held = lock(timeout=50)
    held.acquire(blocking=False)
    monkeypatch.setattr(q, "attach", attach)
    with pytest.raises(KeyboardInterrupt):
        held.extend(10)
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_lock_belongs_to_its_thread(lock):
    held, errors = lock(), []
    held.acquire()

    def release() -> None:
        try:
            held.release()
        except LockError as error:
            errors.append(error)

    thread = threading.Thread(target=release)
    thread.start()
    thread.join()
    assert len(errors) == 1 and held.owned()
    held.release()


def test_lock_without_thread_local_storage_is_released_by_another_thread(lock):
    held = lock(thread_local=False)
    held.acquire()
    thread = threading.Thread(target=held.release)
    thread.start()
    thread.join()
    assert not held.owned() and not held.locked()


def test_nodes_that_do_not_answer_are_a_lock_error(key):
    nowhere = quorlock.Quorum(["redis://127.0.0.1:1"])
    for use in ("acquire", "locked"):
        with pytest.raises(LockError):
            getattr(compat.Lock(nowhere, key, blocking_timeout=0.1), use)()


# Rows of redis-py that cannot hold.


def test_token_of_the_caller_is_refused(lock):
    """redis-py stores the caller's token. Here a token is random, and no program sees it."""
    with pytest.raises(ValueError):
        lock().acquire(token="mine")


def test_local_token_is_not_the_string_under_the_key(nodes, key, lock):
    with lock() as held:
        assert nodes.all[0].ask("GET", key) != held.local.token.decode()


def test_long_sleep_does_not_end_a_wait_early(lock):
    """redis-py gives up at once if it could not look again in time. A waiter here stands in line."""
    with lock():
        began = time.monotonic()
        assert not lock(sleep=2, blocking_timeout=0.3).acquire()
        assert time.monotonic() - began >= 0.3


def test_key_has_an_expiry_without_a_timeout(nodes, key, lock):
    """redis-py sets a key that never expires. A holder that dies would block others for ever."""
    with lock():
        assert int(nodes.all[0].ask("PTTL", key)[1:]) > 0


def test_timeout_above_the_limit_of_the_nodes_is_refused(lock):
    with pytest.raises(LockError) as caught:
        lock(timeout=3600).acquire(blocking=False)
    assert "lock.max-ttl" in str(caught.value)


def test_client_of_redis_py_is_refused(key):
    import redis

    with pytest.raises(TypeError):
        compat.Lock(redis.Redis(), key)
