"""Measures a lock of this package beside those of other libraries and of the Rust client.

Prints a table in Markdown. `make bench-python` runs it. The ratio is that to the Rust client: for
the rows of asyncio to the one on tokio, and else to its blocking API.

Each client acquires and releases a free lock of its own, in rounds that take turns, so that other
work on the machine slows all of them alike.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

ROUNDS = int(os.environ.get("QUORLOCK_ROUNDS", "12"))
CALLS = int(os.environ.get("QUORLOCK_CALLS", "300"))
TASKS = 1000

warnings.simplefilter("ignore")
root = Path(__file__).parents[3]
module = os.environ.get("QUORLOCK_MODULE", str(root / "target/release/libquorlock.so"))
rust_client = root / "target/release/examples/rust_client"


def start_nodes(directory: str) -> tuple[list[subprocess.Popen[bytes]], list[int]]:
    import redis

    server = os.environ.get("QUORLOCK_SERVER") or shutil.which("redis-server") or "valkey-server"
    processes, ports = [], []
    for index in range(3):
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        folder = Path(directory) / str(index)
        folder.mkdir()
        processes.append(
            subprocess.Popen(
                [
                    server, "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                    "--dir", str(folder), "--logfile", str(folder / "log"),
                    "--loadmodule", module, "--lock.rejoin-delay", "0",
                ]
            )
        )  # fmt: skip
        ports.append(port)
        until = time.monotonic() + 10
        while True:
            try:
                redis.Redis(port=port).ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < until, "the node does not answer"
                time.sleep(0.01)
    return processes, ports


def timed(count: int, work: Callable[[], object]) -> list[float]:
    """The time of each call, in microseconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1e6)
    return times


def version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def clients(ports: list[int]) -> dict[str, Callable[[int], list[float]]]:
    """By name, a function that measures this number of calls."""
    import redis

    import quorlock
    import quorlock.aio
    import quorlock.compat

    urls = [f"redis://127.0.0.1:{port}" for port in ports]
    found: dict[str, Callable[[int], list[float]]] = {}
    rust: dict[str, list[float]] = {}

    def blocking(count: int) -> list[float]:
        command = [str(rust_client), str(count), *urls]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        first, second = output.split("tokio\n")
        rust["tokio"] = [float(line) for line in second.split()]
        return [float(line) for line in first.split()]

    found["Rust client, blocking, three nodes"] = blocking
    found["Rust client, tokio, three nodes"] = lambda count: rust["tokio"]

    def for_quorum(q: quorlock.Quorum, key: str) -> Callable[[int], list[float]]:
        def call() -> None:
            lock = q.lock(key, ttl=10)
            lock.acquire()
            lock.release()

        return lambda count: timed(count, call)

    found["quorlock, three nodes"] = for_quorum(quorlock.Quorum(urls), "python")
    found["quorlock, one node"] = for_quorum(quorlock.Quorum(urls[:1]), "one")
    compat = quorlock.compat.Lock(quorlock.Quorum(urls), "compat", timeout=10)
    found["quorlock.compat, three nodes"] = lambda count: timed(
        count, lambda: (compat.acquire(), compat.release())
    )

    loop = asyncio.new_event_loop()
    aio = quorlock.aio.Quorum(urls)

    def in_turn(count: int, make: Callable[[], object]) -> list[float]:
        async def main() -> list[float]:
            times = []
            for _ in range(count):
                began = time.perf_counter()
                await make()
                times.append((time.perf_counter() - began) * 1e6)
            return times

        return loop.run_until_complete(main())

    async def hold(key: str) -> None:
        lock = aio.lock(key, ttl=10)
        await lock.acquire()
        await lock.release()

    found["quorlock.aio, three nodes"] = lambda count: in_turn(count, lambda: hold("aio"))

    def tasks(count: int) -> list[float]:
        async def main() -> None:
            await asyncio.gather(*(hold(f"task/{n}") for n in range(TASKS)))

        began = time.perf_counter()
        loop.run_until_complete(main())
        return [(time.perf_counter() - began) * 1e6 / TASKS]

    found[f"quorlock.aio, each of {TASKS} tasks at once, three nodes"] = tasks

    client = redis.Redis(port=ports[0])
    redis_lock = client.lock("redis-py", timeout=10)
    found[f"{version('redis')} (redis-py) `Lock`, one node"] = lambda count: timed(
        count, lambda: (redis_lock.acquire(), redis_lock.release())
    )
    servers = [{"host": "127.0.0.1", "port": port, "db": 0} for port in ports]

    def redlock_py() -> Callable[[int], list[float]]:
        from redlock import Redlock

        redlock = Redlock(servers)

        def call() -> None:
            lock = redlock.lock("redlock-py", 10000)
            assert lock
            redlock.unlock(lock)

        return lambda count: timed(count, call)

    def pottery() -> Callable[[int], list[float]]:
        from pottery import Redlock

        masters = {redis.Redis(port=port) for port in ports}
        lock = Redlock(key="pottery", masters=masters, auto_release_time=10)

        def call() -> None:
            assert lock.acquire()
            lock.release()

        return lambda count: timed(count, call)

    def aioredlock() -> Callable[[int], list[float]]:
        from aioredlock import Aioredlock

        async def connect() -> Aioredlock:
            return Aioredlock(servers)

        manager = loop.run_until_complete(connect())

        async def call() -> None:
            lock = await manager.lock("aioredlock", lock_timeout=10)
            await manager.unlock(lock)

        return lambda count: in_turn(count, call)

    for package, make in [
        ("redlock-py", redlock_py), ("pottery", pottery), ("aioredlock", aioredlock)
    ]:  # fmt: skip
        try:
            measure = make()
            measure(1)
            found[f"{version(package)}, three nodes"] = measure
        except Exception as error:
            print(f"{package} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ql") as directory:
        processes, ports = start_nodes(directory)
        try:
            measured: dict[str, list[list[float]]] = {}
            found = clients(ports)
            for measure in found.values():
                measure(20)
            for _ in range(ROUNDS):
                for name, measure in found.items():
                    measured.setdefault(name, []).append(measure(CALLS))
        finally:
            for process in processes:
                process.kill()
                process.wait()
    p50s = {
        name: statistics.median(statistics.median(times) for times in rounds)
        for name, rounds in measured.items()
    }
    blocking, tokio = list(p50s.values())[:2]
    print(f"Python {sys.version.split()[0]}, {ROUNDS} rounds of {CALLS} calls, {os.cpu_count()} cores\n")
    print("| acquire and release a free lock | p50, µs | best round, µs | ratio |")
    print("|---|--:|--:|--:|")
    for name, rounds in measured.items():
        best = min(statistics.median(times) for times in rounds)
        base = tokio if "aio" in name else blocking
        print(f"| {name} | {p50s[name]:.0f} | {best:.0f} | {p50s[name] / base:.2f} |")


if __name__ == "__main__":
    main()
