"""What the locks of both APIs have in common."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

from . import _process, _quorlock, errors

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class Options(TypedDict, total=False):
        """The options of a lock."""

        ttl: Time | None
        wait: Time | None
        shared: bool
        renew: bool
        min_validity: Time | None
        node_timeout: Time | None
        max_hold: Time | None
        owner: str | None

Time = Union[float, timedelta]
"""Seconds, or a `timedelta`."""


class LockState:
    """A lock, and whether this object holds it.

    An object holds one lock at a time. It may acquire the lock again after a release.
    """

    def __init__(
        self, quorum: _quorlock.Quorum, kind: str, keys: list[str | bytes] | list[bytes], **given: Any
    ) -> None:
        self._quorum = quorum
        self._kind = kind
        self._keys = keys
        self._request = _quorlock.Request(kind, keys, **given)
        self._held: _quorlock.Held | None = None

    def _require(self) -> _quorlock.Held:
        if self._held is None:
            raise errors.NotAcquiredError("this object holds no lock: acquire it first")
        return self._held

    def _take(self) -> _quorlock.Held:
        held = self._require()
        # A forked child keeps the parent's lock, so that each use of it fails.
        held.ownership
        self._held = None
        return held

    def _refuse_second(self) -> None:
        if self._held is not None and self._held.ownership != "lost":
            raise errors.AlreadyAcquiredError(
                "this object holds the lock already: make a lock object for each holder"
            )

    def _inspected(self) -> list[str | bytes] | list[bytes]:
        if self._kind == "permits":
            raise TypeError("a semaphore has no state that is locked or not: inspect its slots")
        return self._keys

    def _is_locked(self, states: list[str]) -> bool:
        are_held = [state != "free" for state in states]
        return all(are_held) if self._kind == "any" else any(are_held)

    def _keep(self, held: _quorlock.Held) -> None:
        self._refuse_second()
        _process.acquired(held)
        # Last, so that a signal cannot interrupt the caller while this object has the lock.
        self._held = held

    @property
    def fence(self) -> int:
        """The fence of the lock, larger than that of every earlier holder of the key.

        Send it with every write to the protected resource, which refuses a smaller one.
        """
        return self._require().fence

    @property
    def remaining(self) -> float:
        """How many more seconds the lock is certainly held; 0 once it may have ended."""
        return 0.0 if self._held is None else self._held.remaining

    @property
    def keys(self) -> list[bytes]:
        """The locked keys, in byte order."""
        return self._require().keys

    @property
    def key(self) -> bytes:
        """The locked key; the first one of several."""
        return self.keys[0]

    @property
    def slot(self) -> int | None:
        """Which permit of a semaphore, or which one of several keys, the lock is on."""
        return self._require().slot

    @property
    def coverage(self) -> tuple[int, int]:
        """On how many nodes the lock is known to be held, and the number of all nodes."""
        return self._require().coverage

    def owned(self) -> bool:
        """Whether this object certainly holds the lock now."""
        return self.remaining > 0

    def abandon(self) -> None:
        """Releases the lock in the background, without waiting."""
        held, self._held = self._held, None
        if held is not None:
            held.abandon()

    def __repr__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        if self._held is None:
            return f"<{name}, not acquired>"
        try:
            return f"<{name} {self.key!r}, fence {self.fence}, {self.remaining:.3f} s left>"
        except errors.ForkedError:
            return f"<{name} of the parent process>"


def note(exception: BaseException | None, lost: errors.LostError) -> None:
    """Adds the loss of a lock to an exception that ended the block."""
    if exception is not None and sys.version_info >= (3, 11):
        exception.add_note(f"quorlock: {lost}")


def pem(certificate: str | bytes | None) -> bytes | None:
    """A certificate, which may be the path of a file."""
    if certificate is None or isinstance(certificate, bytes):
        return certificate
    with open(certificate, "rb") as file:
        return file.read()


L = TypeVar("L", bound=LockState)


class QuorumBase(Generic[L]):
    """Independent masters that together grant locks. Connects with the first call.

    Each process connects anew, so that a quorum can be made before a fork.

    `nodes` are URLs: `redis://host:6379`, `rediss://host` for TLS, `redis+unix:///path`. `user` and
    `password` are for all nodes whose URL has no password. Certificates are PEM: bytes, or the path
    of a file. `set` is the name of the nodes' set.
    """

    _lock_class: type[L]

    def __init__(
        self,
        nodes: str | Iterable[str],
        *,
        user: str | None = None,
        password: str | None = None,
        set: str | None = None,
        node_timeout: Time | None = None,
        connect_timeout: Time | None = None,
        root_certificates: str | bytes | None = None,
        client_certificate: str | bytes | None = None,
        client_key: str | bytes | None = None,
    ) -> None:
        if (client_certificate is None) != (client_key is None):
            raise ValueError("a client certificate needs its key, and a key its certificate")
        identity = (pem(client_certificate), pem(client_key)) if client_key is not None else None
        self._native = _quorlock.Quorum(
            [nodes] if isinstance(nodes, str) else list(nodes),
            user=user,
            password=password,
            set=set,
            node_timeout=node_timeout,
            connect_timeout=connect_timeout,
            root_certificates=pem(root_certificates),
            client_certificate=identity,
        )
        _process.opened(self._native)

    def lock(self, key: str | bytes, **given: Unpack[Options]) -> L:
        """Describes a lock on a key.

        Options: `ttl`, `wait`, `min_validity`, `node_timeout` and `max_hold`, in seconds or as a
        `timedelta`; `shared=True` for readers; `renew=False` for a lock that ends with its ttl;
        `owner`, a label for people. The defaults are those of the client: a ttl and a wait of 10 s.
        """
        return self._lock_class(self._native, "all", [key], **given)

    def lock_all(self, keys: Iterable[str | bytes], **given: Unpack[Options]) -> L:
        """Describes one lock on several keys: all of them or none, without deadlock."""
        return self._lock_class(self._native, "all", list(keys), **given)

    def lock_any(self, keys: Iterable[str | bytes], **given: Unpack[Options]) -> L:
        """Describes a lock on the first of several keys that becomes free."""
        return self._lock_class(self._native, "any", list(keys), **given)

    def semaphore(self, name: str | bytes, permits: int, **given: Unpack[Options]) -> L:
        """Describes a permit of a semaphore with at most `permits` holders, 1 to 64."""
        return self._lock_class(self._native, "permits", [name], permits=permits, **given)

    def _attached(self, held: _quorlock.Held, renew: bool) -> L:
        given = {"shared": held.is_shared, "ttl": held.ttl, "renew": renew}
        lock = self._lock_class(self._native, "all", held.keys, **given)
        lock._keep(held)
        return lock

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{self._native!r}>"
