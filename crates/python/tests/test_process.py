"""Fork, signals, exit, and threads that keep the GIL. Each script is a process of its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from conftest import SOON, Nodes, eventually, waiters

import quorlock

INTERRUPTS = int(os.environ.get("QUORLOCK_INTERRUPTS", "300"))
HOG_S = float(os.environ.get("QUORLOCK_HOG_S", "3"))

PRELUDE = """
import asyncio, ctypes, gc, multiprocessing, os, signal, sys, threading, time
import quorlock, quorlock.aio
urls, key = sys.argv[1].split(), sys.argv[2]
q = quorlock.Quorum(urls, node_timeout=5)

def waiters(q, key):
    return max((node.lease.waiters for node in q.inspect(key).nodes if node.lease), default=0)
"""


def start(nodes: Nodes, key: str, script: str) -> subprocess.Popen[str]:
    """Starts a script in a process of its own."""
    code = PRELUDE + textwrap.dedent(script)
    command = [sys.executable, "-W", "ignore", "-c", code, " ".join(nodes.urls), key]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(nodes: Nodes, key: str, script: str) -> str:
    """Runs a script to its end. Returns its output."""
    process = start(nodes, key, script)
    try:
        output, errors = process.communicate(timeout=30 + 2 * HOG_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output


FORK = """
def in_child(work):
    '''Runs work in a forked child, which must end well within 10 s.'''
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(10)
            work()
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def test_child_reconnects_while_the_lock_of_its_parent_goes_on(nodes, key):
    script = FORK + """
lock = q.lock(key, ttl=1)
lock.acquire()
def work():
    began = time.monotonic()
    assert not q.lock(key).acquire(blocking=False), "the parent holds it"
    with q.lock(key + "/child"):
        assert q.inspect(key + "/child").owner.endswith(f":{os.getpid()}")
    assert time.monotonic() - began < 5
for _ in range(3):
    in_child(work)
time.sleep(1.2)
assert lock.owned()
assert lock.release()
print("done")
"""
    assert run(nodes, key, script) == "done\n"


@pytest.mark.parametrize(
    "use", ["release()", "extend()", "detach()", "owned()", "fence", "acquire()", "__enter__()"]
)
def test_inherited_lock_raises(nodes, key, use):
    script = FORK + f"""
lock = q.lock(key)
lock.acquire()
def work():
    try:
        lock.{use}
    except quorlock.ForkedError:
        assert "parent" in repr(lock)
        return
    raise AssertionError("no error")
in_child(work)
assert lock.owned()
"""
    run(nodes, key, script)


def test_drop_of_an_inherited_lock_does_nothing(nodes, key):
    script = FORK + """
lock = q.lock(key)
lock.acquire()
def work():
    global lock, q
    lock.abandon()
    del lock, q
    gc.collect()
in_child(work)
assert q.inspect(key).state == "held"
assert lock.release() is True
"""
    run(nodes, key, script)


def test_child_of_a_process_with_a_waiting_thread_works(nodes, key):
    script = FORK + """
holder = quorlock.Quorum(urls)
lock = holder.lock(key)
lock.acquire()
waiting = threading.Thread(target=lambda: q.lock(key).acquire(timeout=20))
waiting.start()
while waiters(q, key) == 0: time.sleep(0.01)
def work():
    with q.lock(key + "/child"):
        pass
in_child(work)
lock.release()
waiting.join()
"""
    run(nodes, key, script)


def test_child_works_with_asyncio_after_its_parent_did(nodes, key):
    script = FORK + """
aq = quorlock.aio.Quorum(urls)
async def hold(name):
    async with aq.lock(name) as lock:
        return lock.fence
asyncio.run(hold(key))
async def main():
    async with aq.lock(key) as lock:
        in_child(lambda: threading.Thread(target=in_thread).start() or None)
        assert lock.owned()
def in_thread():
    asyncio.run(hold(key + "/child"))
asyncio.run(main())
"""
    run(nodes, key, script)


# How a call is interrupted: while it waits, or before, while it reads the level of the logger.
WHILE_IT_WAITS = "threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGALRM)).start()"
BEFORE_IT_WAITS = """
import logging
logger = logging.getLogger("quorlock")
level = logger.getEffectiveLevel
def read_level():
    logger.getEffectiveLevel = level
    signal.raise_signal(signal.SIGALRM)
    return level()
logger.getEffectiveLevel = read_level
"""


@pytest.mark.parametrize("interrupt", [WHILE_IT_WAITS, BEFORE_IT_WAITS], ids=["waits", "before"])
def test_fork_in_a_signal_handler_ends_the_call_of_the_child(nodes, key, interrupt):
    script = f'''
holder = quorlock.Quorum(urls).lock(key)
holder.acquire()
def fork(*_):
    children.append(os.fork())
children = []
signal.signal(signal.SIGALRM, fork)
{interrupt}
try:
    acquired = q.lock(key).acquire(timeout=1.5)
except quorlock.ForkedError:
    if children == [0]:
        with q.lock(key + "/child"):
            os._exit(7)
until = time.monotonic() + 10
while (ended := os.waitpid(children[0], os.WNOHANG)) == (0, 0) and time.monotonic() < until:
    time.sleep(0.01)
if ended == (0, 0):
    os.kill(children[0], signal.SIGKILL)
assert os.waitstatus_to_exitcode(ended[1]) == 7, ended
assert not acquired
'''
    run(nodes, key, script)


def test_child_closes_the_sockets_of_a_client_that_ends(own_nodes, key):
    script = FORK + '''
lock = q.lock(key, ttl=30)
lock.acquire()
print("acquired", flush=True)
sys.stdin.readline()
del lock, q
gc.collect()
def work():
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{fd}")]
    assert not any("eventpoll" in link for link in links), links
assert len(os.listdir("/proc/self/task")) > 1, "the client still releases the lock"
in_child(work)
os._exit(0)
'''
    process = start(own_nodes, key, script)
    assert process.stdout.readline() == "acquired\n"
    for node in own_nodes.all:
        node.pause()
    _, errors = process.communicate("\n", timeout=30)
    assert process.returncode == 0, errors


def test_children_of_children_work(nodes, key):
    script = FORK + """
def work(depth=3):
    with q.lock(f"{key}/{depth}"):
        if depth:
            in_child(lambda: work(depth - 1))
work()
"""
    run(nodes, key, script)


def test_child_does_not_keep_a_waiter_of_a_dead_parent_in_line(nodes, other, key):
    script = """
waiting = threading.Thread(target=lambda: q.lock(key).acquire(timeout=60), daemon=True)
waiting.start()
while waiters(q, key) == 0: time.sleep(0.01)
child = os.fork()
if child == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
time.sleep(60)
"""
    with other.lock(key):
        parent = start(nodes, key, script)
        assert parent.stdout.readline() == "forked\n"
        parent.kill()
        parent.wait()

        def has_left() -> bool:
            return waiters(other, key) == 0

        try:
            eventually(has_left, "the waiter has left the line")
        finally:
            parent.stdin.close()


def test_forked_child_closes_only_the_sockets_of_the_client(nodes, key):
    script = FORK + """
import select, socket
mine = select.epoll()
left, right = socket.socketpair()
mine.register(left.fileno(), select.EPOLLIN)
with q.lock(key):
    pass
def work():
    right.send(b"x")
    assert mine.poll(5) and left.recv(1) == b"x"
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{fd}")]
    assert sum("eventpoll" in link for link in links) == 1, links
in_child(work)
"""
    run(nodes, key, script)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_release_their_locks_at_their_exit(nodes, key, method, tmp_path):
    (tmp_path / "work.py").write_text(
        textwrap.dedent(
            """
            import quorlock
            def hold(urls, key):
                global lock
                lock = quorlock.Quorum(urls).lock(key, ttl=30)
                assert lock.acquire()
            """
        )
    )
    script = f"""
sys.path.insert(0, {str(tmp_path)!r})
import work
q.lock(key + "/parent").acquire()
children = multiprocessing.get_context({method!r})
children = [children.Process(target=work.hold, args=(urls, f"{{key}}/{{n}}")) for n in range(3)]
for child in children: child.start()
for child in children: child.join()
assert [child.exitcode for child in children] == [0, 0, 0]
for n in range(3):
    assert q.lock(f"{{key}}/{{n}}").acquire(timeout=2), "the lock of the child is released"
"""
    run(nodes, key, script)


def test_interrupt_arrives_within_a_tenth_of_a_second(q, other, nodes, key):
    # A shell lets its background jobs ignore this signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sent = []

    def interrupt() -> None:
        eventually(lambda: waiters(other, key) == 1, "the main thread waits")
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    with other.lock(key):
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            q.lock(key).acquire(timeout=SOON)
        late = time.monotonic() - sent[0]
        interrupter.join()
        assert late < 0.1, f"after {late:.3f} s"
        eventually(lambda: waiters(other, key) == 0, "the waiter has left")
    eventually(lambda: nodes.is_free(key), "the key is free")


class Interrupt(Exception):
    pass


def test_interrupted_acquires_leave_nothing(nodes, key):
    """No key, no waiter, no thread and no descriptor, whenever a signal raises an exception."""
    random.seed(7)
    q = quorlock.Quorum(nodes.urls)

    def interrupt(*_: object) -> None:
        raise Interrupt

    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    with q.lock(key):
        pass
    before, interrupted = count(), 0
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(INTERRUPTS):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + random.random() / 1000)
                with q.lock(f"{key}/{turn % 4}", ttl=3, wait=30):
                    pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interrupted > INTERRUPTS / 20
    q.flush(SOON)
    for turn in range(4):
        eventually(lambda turn=turn: nodes.is_free(f"{key}/{turn}"), "the key is free")
    for node in nodes.all:
        assert node.info()["lock_waiters"] == "0"
    threads, descriptors = count()
    assert threads <= before[0] and descriptors <= before[1] + 3 * 16


@pytest.mark.parametrize(
    "script",
    [
        "lock = q.lock(key, ttl=30); lock.acquire()",
        "def main(): lock = quorlock.Quorum(urls).lock(key, ttl=30); lock.acquire()\nmain()",
        "lock = q.lock(key, ttl=30); lock.acquire(); del lock, q",
        "lock = q.lock(key, ttl=30); lock.acquire(); sys.exit(0)",
        "t = threading.Thread(target=lambda: globals().update(l=q.lock(key)) or l.acquire())\n"
        "t.start()",
        "aq = quorlock.aio.Quorum(urls)\nasync def main():\n"
        "    global lock\n    lock = aq.lock(key, ttl=30)\n    await lock.acquire()\n"
        "asyncio.run(main())",
    ],
    ids=["global", "local", "dropped", "sys.exit", "thread", "asyncio"],
)
def test_exit_releases_the_locks_of_the_process(nodes, key, script):
    run(nodes, key, script)
    assert nodes.is_free(key)


def test_exit_leaves_the_lock_of_a_running_daemon_thread(nodes, key):
    """The thread may still work under its lock, which ends by its deadline."""
    script = """
held = threading.Event()
def work():
    with q.lock(key, ttl=30):
        held.set()
        time.sleep(60)
threading.Thread(target=work, daemon=True).start()
held.wait()
"""
    run(nodes, key, script)
    assert not nodes.is_free(key)
    nodes.end(key)


def test_exit_with_a_waiting_daemon_thread_succeeds(nodes, other, key):
    script = """
threading.Thread(target=lambda: q.lock(key).acquire(timeout=60), daemon=True).start()
while waiters(q, key) == 0: time.sleep(0.01)
"""
    with other.lock(key):
        run(nodes, key, script)


def test_exit_with_busy_daemon_threads_succeeds(nodes, key):
    script = """
def work(n):
    while True:
        with q.lock(f"{key}/{n}", ttl=1):
            busy[n].set()
busy = [threading.Event() for _ in range(4)]
for n in range(4): threading.Thread(target=work, args=(n,), daemon=True).start()
for event in busy: event.wait()
"""
    for _ in range(3):
        run(nodes, key, script)


def test_exit_is_not_held_up_by_nodes_that_are_down(own_nodes, key):
    script = """
lock = q.lock(key, ttl=30)
lock.acquire()
print("acquired", flush=True)
sys.stdin.readline()
"""
    process = start(own_nodes, key, script)
    assert process.stdout.readline() == "acquired\n"
    for node in own_nodes.all:
        node.pause()
    began = time.monotonic()
    process.communicate("\n", timeout=30)
    assert process.returncode == 0
    assert time.monotonic() - began < 8


HOG = f"""
def hog():
    # A function of a PyDLL keeps the GIL.
    ctypes.PyDLL(None).usleep(int({HOG_S} * 1e6))
"""


def test_lock_is_renewed_while_a_thread_keeps_the_gil(nodes, key):
    script = HOG + """
with q.lock(key, ttl=1) as lock:
    thread = threading.Thread(target=hog)
    thread.start()
    thread.join()
    assert lock.owned()
aq = quorlock.aio.Quorum(urls)
async def main():
    async with aq.lock(key, ttl=1) as lock:
        await asyncio.get_running_loop().run_in_executor(None, hog)
        assert lock.owned()
        hog()
        assert lock.owned()
asyncio.run(main())
"""
    run(nodes, key, script)


def test_renewal_that_needs_the_gil_would_lose_the_lock(nodes, key):
    """The twin of the test above: without renewal by the client, a Python thread is too late."""
    script = HOG + """
lock = q.lock(key, ttl=1, renew=False)
lock.acquire()
def renew():
    while lock.owned():
        lock.extend()
        time.sleep(0.3)
renewing = threading.Thread(target=renew)
renewing.start()
time.sleep(0.5)
assert lock.owned(), "the thread renews"
hog()
assert not lock.owned()
"""
    run(nodes, key, script)


def test_dropped_quorum_leaves_no_thread_and_no_descriptor(nodes, key):
    script = """
def count():
    gc.collect()
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
before = count()
for _ in range(5):
    short = quorlock.Quorum(urls)
    with short.lock(key):
        assert count() > before
    del short
until = time.monotonic() + 10
while count() != before: assert time.monotonic() < until, (count(), before)
"""
    run(nodes, key, script)


def test_interpreter_without_the_gil_is_refused(nodes, key):
    script = "import sys; sys._is_gil_enabled = lambda: False; import quorlock"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert process.returncode == 1
    assert "needs the GIL" in process.stderr
