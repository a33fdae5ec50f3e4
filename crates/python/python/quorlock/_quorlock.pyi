from datetime import timedelta
from typing import Any, final

_Time = float | timedelta

@final
class Bridge:
    def __new__(cls) -> Bridge: ...
    def fileno(self) -> int: ...
    def deliver(self) -> None: ...

@final
class Call:
    def cancel(self) -> None: ...

@final
class Request:
    def __new__(
        cls,
        kind: str,
        keys: list[str | bytes] | list[bytes],
        *,
        permits: int | None = None,
        shared: bool = False,
        ttl: _Time | None = None,
        wait: _Time | None = None,
        renew: bool = True,
        min_validity: _Time | None = None,
        node_timeout: _Time | None = None,
        max_hold: _Time | None = None,
        owner: str | None = None,
    ) -> Request: ...

@final
class Held:
    @property
    def fence(self) -> int: ...
    @property
    def remaining(self) -> float: ...
    @property
    def ownership(self) -> str: ...
    @property
    def coverage(self) -> tuple[int, int]: ...
    @property
    def keys(self) -> list[bytes]: ...
    @property
    def slot(self) -> int | None: ...
    def abandon(self) -> None: ...
    # With a bridge and a future, each of these returns a `Call` instead.
    def extend(self, into: tuple[Bridge, Any] | None = None) -> Any: ...
    def downgrade(self, into: tuple[Bridge, Any] | None = None) -> Any: ...
    def release(self, into: tuple[Bridge, Any] | None = None) -> Any: ...
    def finish(self, into: tuple[Bridge, Any] | None = None) -> Any: ...
    def detach(self, into: tuple[Bridge, Any] | None = None) -> Any: ...
    def ended(self, into: tuple[Bridge, Any] | None = None) -> Any: ...

@final
class Quorum:
    def __new__(
        cls,
        nodes: list[str],
        *,
        user: str | None = None,
        password: str | None = None,
        set: str | None = None,
        node_timeout: _Time | None = None,
        connect_timeout: _Time | None = None,
        root_certificates: bytes | None = None,
        client_certificate: tuple[bytes | None, bytes | None] | None = None,
    ) -> Quorum: ...
    @property
    def is_open(self) -> bool: ...
    def acquire(
        self,
        request: Request,
        wait: _Time | None = None,
        into: tuple[Bridge, Any] | None = None,
    ) -> Any: ...
    def attach(
        self,
        detached: str,
        ttl: _Time | None = None,
        renew: bool = True,
        into: tuple[Bridge, Any] | None = None,
    ) -> Any: ...
    def release_detached(
        self, detached: str, into: tuple[Bridge, Any] | None = None
    ) -> Any: ...
    def inspect(self, key: str | bytes, into: tuple[Bridge, Any] | None = None) -> Any: ...
    def health(self, into: tuple[Bridge, Any] | None = None) -> Any: ...
    def flush(self, limit: _Time, into: tuple[Bridge, Any] | None = None) -> Any: ...

def inherited() -> set[int]: ...
def await_ended(limit: _Time) -> None: ...
