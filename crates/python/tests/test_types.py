"""The types of the package, as a strict checker reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

USER = """
import quorlock
import quorlock.aio
from datetime import timedelta

q = quorlock.Quorum("redis://a")
with q.lock("k", ttl=timedelta(seconds=1), shared=True) as lock:
    fence: int = lock.fence
held: bool = q.semaphore("s", 2).acquire(blocking=False)
wrong: str = q.lock("k").acquire()
q.lock("k", tll=1)


async def main() -> None:
    aq = quorlock.aio.Quorum("redis://a")
    async with aq.lock("k") as lock:
        left: float = lock.remaining
    state: str = (await aq.inspect("k")).state
"""


def check(*arguments: str, folder: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def test_package_and_its_users_are_checked(tmp_path: Path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    assert "Success" in check("--package", "quorlock", folder=tmp_path)
    found = check("user.py", folder=tmp_path)
    assert found.count("error:") == 2, found
    assert "user.py:10: error" in found and "user.py:11: error" in found
