"""Real nodes for the tests: servers with the module, on Unix sockets."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quorlock
import quorlock.aio

ROOT = Path(__file__).parents[3]
SERVER = os.environ.get("QUORLOCK_SERVER") or shutil.which("redis-server") or "valkey-server"
MODULE = os.environ.get("QUORLOCK_MODULE") or str(ROOT / "target/debug/libquorlock.so")
SOON = 10.0
# A busy machine may slow a node down. A client limits this to a quarter of the ttl.
SLOW = 5.0


def eventually(condition: Callable[[], object], what: str, limit: float = SOON) -> None:
    """Waits for a condition."""
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until, f"not within {limit} s: {what}"
        time.sleep(0.005)


def waiters(q: quorlock.Quorum, key: str) -> int:
    """How many clients wait for the key, on the node that knows of most."""
    return max((node.lease.waiters for node in q.inspect(key).nodes if node.lease), default=0)


class Node:
    """A server with the module."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "s"
        self.url = f"redis+unix://{self.path}"
        self.process = subprocess.Popen(
            [
                SERVER, "--port", "0", "--unixsocket", str(self.path), "--save", "",
                "--dir", str(directory), "--logfile", str(directory / "log"),
                "--loadmodule", MODULE, "--lock.rejoin-delay", "0",
            ]
        )  # fmt: skip
        eventually(self.is_ready, f"the node answers: {directory / 'log'}")

    def is_ready(self) -> bool:
        try:
            return self.ask("PING") == "+PONG"
        except OSError:
            return False

    def ask(self, *words: str) -> str:
        """Sends a command, and returns the first line of the reply, or the text of a string."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SOON)
            connection.connect(str(self.path))
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            with connection.makefile("rb") as replies:
                line = replies.readline().decode().rstrip("\r\n")
                if line.startswith("$") and line != "$-1":
                    return replies.read(int(line[1:])).decode()
                return line

    def info(self) -> dict[str, str]:
        lines = self.ask("INFO", "lock").split("\r\n")
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Nodes:
    """Nodes that one quorum uses."""

    def __init__(self, count: int = 3) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="ql")
        directories = [Path(self.directory.name) / str(index) for index in range(count)]
        for directory in directories:
            directory.mkdir()
        self.all = [Node(directory) for directory in directories]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.all]

    def ask(self, *words: str) -> list[str]:
        return [node.ask(*words) for node in self.all]

    def is_free(self, key: str) -> bool:
        return self.ask("EXISTS", key) == [":0"] * len(self.all)

    def end(self, key: str) -> None:
        """Ends the lock on a key, as an operator can."""
        self.ask("DEL", key)

    def stop(self) -> None:
        for node in self.all:
            node.resume()
            node.stop()
        self.directory.cleanup()


@pytest.fixture(scope="session")
def shared_nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.stop()


@pytest.fixture
def nodes(shared_nodes: Nodes) -> Nodes:
    """Three nodes for tests that use keys of their own and harm no node."""
    return shared_nodes


@pytest.fixture
def own_nodes() -> Iterator[Nodes]:
    """Three nodes for one test."""
    nodes = Nodes()
    yield nodes
    nodes.stop()


_keys = itertools.count()


@pytest.fixture
def key() -> str:
    return f"key/{os.getpid()}/{next(_keys)}"


@pytest.fixture
def q(nodes: Nodes) -> quorlock.Quorum:
    return quorlock.Quorum(nodes.urls, node_timeout=SLOW)


@pytest.fixture
def other(nodes: Nodes) -> quorlock.Quorum:
    """Another client of the same nodes."""
    return quorlock.Quorum(nodes.urls, node_timeout=SLOW)


@pytest.fixture
async def aq(nodes: Nodes) -> quorlock.aio.Quorum:
    return quorlock.aio.Quorum(nodes.urls, node_timeout=SLOW)
