"""The lock of `quorlock.aio`, on real nodes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
from conftest import SLOW, SOON, Nodes, eventually, waiters

import quorlock
import quorlock.aio

CANCELS = int(os.environ.get("QUORLOCK_CANCELS", "400"))


async def soon(condition: Callable[[], Awaitable[object]], what: str) -> None:
    until = time.monotonic() + SOON
    while not await condition():
        assert time.monotonic() < until, what
        await asyncio.sleep(0.005)


async def test_block_holds_the_lock_and_releases_it(aq, nodes, key):
    async with aq.lock(key, ttl=10, wait=10) as lock:
        assert lock.owned() and await lock.locked()
        assert not await aq.lock(key).acquire(blocking=False)
    assert not lock.owned()
    eventually(lambda: nodes.is_free(key), "the key is free")


async def test_calls_have_the_results_of_the_blocking_api(aq, key):
    lock = aq.lock(key, ttl=5)
    assert await lock.acquire() is True
    await lock.extend()
    assert await aq.lock(key).acquire(timeout=0.1) is False
    text = await lock.detach()
    attached = await aq.attach(text)
    assert attached.fence > 0
    await attached.downgrade()
    assert await attached.release() is True
    assert await aq.release_detached(text) is False
    assert (await aq.inspect(key)).state == "free"
    assert len(await aq.health()) == 3
    await aq.flush()
    assert not await lock.locked()


async def test_failed_calls_have_the_exceptions_of_the_blocking_api(aq, key):
    async with aq.lock(key):
        with pytest.raises(quorlock.WaitTimeoutError) as caught:
            async with aq.lock(key, wait=0.2):
                pass
    assert len(caught.value.nodes) == 3
    with pytest.raises(quorlock.NotAcquiredError):
        await aq.lock(key).release()
    with pytest.raises(quorlock.ConnectError):
        await quorlock.aio.Quorum([]).lock(key).acquire()


async def test_kinds_of_lock_are_those_of_the_blocking_api(aq, key):
    keys = [f"{key}/a", f"{key}/b"]
    async with aq.lock_all(keys), aq.semaphore(key, 2) as permit, aq.semaphore(key, 2):
        assert permit.slot in (0, 1)
        assert not await aq.lock_any(keys).acquire(blocking=False)
        assert not await aq.semaphore(key, 2).acquire(blocking=False)
    async with aq.lock(key, shared=True), aq.lock(key, shared=True):
        pass


async def test_lock_is_renewed_while_the_block_runs(aq, key):
    async with aq.lock(key, ttl=0.5) as lock:
        await asyncio.sleep(1.2)
        assert lock.owned()


async def test_loss_cancels_the_block(aq, nodes, key):
    with pytest.raises(quorlock.LostError) as caught:
        async with aq.lock(key, ttl=0.6):
            nodes.end(key)
            await asyncio.sleep(SOON)
    assert caught.value.cause == "ended"
    # The task goes on, and is not cancelled.
    await asyncio.sleep(0)
    if sys.version_info >= (3, 11):
        assert asyncio.current_task().cancelling() == 0


async def test_loss_at_the_end_of_the_block_cancels_nothing_later(aq, key):
    """The lock ends while the loop is busy, so the loss and the end of the block coincide."""
    for _ in range(5):
        with pytest.raises(quorlock.LostError):
            async with aq.lock(key, ttl=0.1, renew=False) as lock:
                while lock.owned():
                    time.sleep(0.001)
        await asyncio.sleep(0.01)


async def test_cancellation_from_elsewhere_stays_a_cancellation(aq, nodes, key):
    async def work():
        async with aq.lock(key):
            entered.set()
            await asyncio.sleep(SOON)

    entered = asyncio.Event()
    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    eventually(lambda: nodes.is_free(key), "the key is free")


async def test_exception_of_the_block_survives_the_loss(aq, nodes, key):
    with pytest.raises(KeyError):
        async with aq.lock(key):
            nodes.end(key)
            raise KeyError("work")


async def test_task_that_waits_can_be_cancelled(aq, q, nodes, key):
    async with aq.lock(key):
        waiting = asyncio.create_task(aq.lock(key).acquire(timeout=SOON))

        async def in_line() -> bool:
            return waiters(q, key) == 1

        await soon(in_line, "the task waits")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        async def has_left() -> bool:
            return waiters(q, key) == 0

        await soon(has_left, "the task has left the line")


async def test_time_limit_of_asyncio_ends_a_wait(aq, key):
    async with aq.lock(key):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aq.lock(key).acquire(timeout=SOON), 0.1)


async def test_result_that_arrives_with_the_cancellation_is_released(aq, nodes, key, monkeypatch):
    """Cancels in the turn of the loop in which the result has reached the future."""
    loop = asyncio.get_running_loop()
    create_future, futures = loop.create_future, []

    def create_and_cancel() -> asyncio.Future[object]:
        future = create_future()
        future.add_done_callback(lambda _: task.cancel())
        futures.append(future)
        return future

    lock = aq.lock(key)
    task = asyncio.create_task(lock.acquire())
    monkeypatch.setattr(loop, "create_future", create_and_cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(futures[0].result(), quorlock._quorlock.Held), "the result arrived"
    assert task.cancelled()
    assert not lock.owned()
    eventually(lambda: nodes.is_free(key), "the key is free")


async def test_cancelled_acquires_leave_nothing(nodes, key):
    """No key, no waiter, no thread and no descriptor, whenever a call is cancelled."""
    random.seed(7)
    aq = quorlock.aio.Quorum(nodes.urls, node_timeout=SLOW)
    async with aq.lock(key):
        pass

    def count() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    # The client repeats a release that may have overtaken its request, for a ttl at most.
    async def hold(name: str) -> None:
        async with aq.lock(name, ttl=3, wait=30):
            await asyncio.sleep(random.random() / 1000)

    # The wait connections that the client keeps are open before the count.
    await asyncio.gather(*(hold(f"{key}/{n % 4}") for n in range(32)))
    before, cancelled = count(), 0
    for turn in range(0, CANCELS, 20):
        tasks = [asyncio.create_task(hold(f"{key}/{turn}/{n % 4}")) for n in range(20)]
        for task in tasks:
            await asyncio.sleep(random.random() / 2000)
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled += sum(isinstance(result, asyncio.CancelledError) for result in results)
    # On a busy machine, some calls end before they are cancelled.
    assert cancelled > CANCELS / 10
    await aq.flush(SOON)
    for node in nodes.all:
        eventually(lambda node=node: node.ask("DBSIZE") == ":0", "no key is left")
        assert node.info()["lock_waiters"] == "0"
    # Idle wait connections stay in the client's pool, which is bounded.
    threads, descriptors = count()
    assert threads <= before[0]
    assert descriptors <= before[1] + 3 * 16
    # The frames of cancelled tasks refer to the client.
    del aq, results, tasks, task
    eventually(lambda: count()[1] < before[1], "the descriptors of the client are closed")


async def test_thousand_tasks_hold_locks_of_their_own(aq, key):
    async def hold(n: int) -> int:
        async with aq.lock(f"{key}/{n}", ttl=30, wait=30) as lock:
            return lock.fence

    fences = await asyncio.gather(*(hold(n) for n in range(1000)))
    assert len(fences) == 1000 and all(fences)


async def test_tasks_of_one_key_take_turns(aq, key):
    inside, most = 0, 0

    async def hold() -> None:
        nonlocal inside, most
        async with aq.lock(key, wait=SOON):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(hold() for _ in range(30)))
    assert most == 1


def test_one_quorum_serves_several_event_loops(nodes, key):
    aq = quorlock.aio.Quorum(nodes.urls, node_timeout=SLOW)

    async def hold() -> int:
        async with aq.lock(key) as lock:
            return lock.fence

    fences = [asyncio.run(hold()) for _ in range(3)]
    assert fences == sorted(set(fences))


def test_closed_event_loops_leave_no_descriptor(nodes, key):
    aq = quorlock.aio.Quorum(nodes.urls, node_timeout=SLOW)

    async def hold() -> None:
        async with aq.lock(key):
            pass

    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(hold())
    before = count()
    for _ in range(5):
        asyncio.run(hold())
    assert count() <= before


def close_loop_with_a_task(nodes: Nodes, key: str, until: Callable[[], object]) -> None:
    aq = quorlock.aio.Quorum(nodes.urls, node_timeout=SLOW)

    async def hold() -> None:
        async with aq.lock(key, ttl=1, wait=60):
            await asyncio.sleep(60)

    async def main() -> None:
        tasks.append(asyncio.create_task(hold()))

        async def condition() -> object:
            return until()

        await soon(condition, "the task has begun")

    tasks: list[asyncio.Task[None]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


def test_closed_event_loop_releases_the_locks_of_its_tasks(nodes, other, key):
    close_loop_with_a_task(nodes, key, lambda: other.inspect(key).state == "held")

    def is_free() -> bool:
        gc.collect()
        return nodes.is_free(key)

    eventually(is_free, "the key is free")


def test_lock_that_is_acquired_after_its_loop_was_closed_is_released(nodes, other, key):
    with other.lock(key):
        close_loop_with_a_task(nodes, key, lambda: waiters(other, key) == 1)

    def is_free() -> bool:
        gc.collect()
        return nodes.is_free(key)

    eventually(is_free, "the key is free")


async def test_event_loop_that_refuses_a_reader_can_try_again(aq, key, monkeypatch):
    def refuse(*arguments: object) -> None:
        raise OSError("no reader")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "add_reader", refuse)
        with pytest.raises(OSError, match="no reader"):
            await aq.inspect(key)
    assert (await asyncio.wait_for(aq.inspect(key), SOON)).state == "free"


async def test_handler_that_raises_loses_no_reply(aq, key):
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("handler")

    async def hold(n: int) -> None:
        async with aq.lock(f"{key}/{n}", wait=SOON):
            pass

    await hold(0)
    loop, errors = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    logger, handler = logging.getLogger("quorlock"), Broken()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        await asyncio.wait_for(asyncio.gather(*(hold(n) for n in range(50))), SOON)
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    assert errors and {str(error) for error in errors} == {"handler"}


def test_destroyed_coroutine_releases_its_lock(nodes, key):
    aq = quorlock.aio.Quorum(nodes.urls, node_timeout=SLOW)

    async def hold() -> None:
        async with aq.lock(key, ttl=30):
            entered.append(True)
            await asyncio.sleep(60)

    async def main() -> None:
        coroutine = hold()
        future = coroutine.send(None)
        await asyncio.wait([future])
        while not entered:
            future = coroutine.send(None)
        coroutine.close()

    entered: list[bool] = []
    asyncio.run(main())
    eventually(lambda: nodes.is_free(key), "the key is free")


def test_interrupted_event_loop_releases_its_locks(nodes, key):
    aq = quorlock.aio.Quorum(nodes.urls, node_timeout=SLOW)

    async def hold() -> None:
        async with aq.lock(key, ttl=30):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(hold())
    eventually(lambda: nodes.is_free(key), "the key is free")
