"""Cache backends of django with a `lock` method, as django-redis has one.

    CACHES = {
        "default": {
            "BACKEND": "quorlock.django.RedisCache",
            "LOCATION": "redis://cache",
            "OPTIONS": {"quorlock": {"nodes": ["redis://lock-1", "redis://lock-2", "redis://lock-3"]}},
        }
    }

    with cache.lock("orders/42", timeout=10, blocking_timeout=5): ...

For another backend, such as that of django-redis, derive a class from `LockMixin` and from the
backend.
"""

from __future__ import annotations

import json
from typing import Any

from django.core.cache.backends.redis import (  # type: ignore[import-untyped]
    RedisCache as _RedisCache,
)

from . import Quorum
from .compat import Lock

__all__ = ["LockMixin", "RedisCache"]

# Django makes a backend for each thread. All of them share one client.
_quorums: dict[str, Quorum] = {}


def _quorum(options: dict[str, Any]) -> Quorum:
    name = json.dumps(options, sort_keys=True, default=repr)
    if name not in _quorums:
        given = dict(options)
        _quorums[name] = Quorum(given.pop("nodes"), **given)
    return _quorums[name]


class LockMixin:
    """Adds `lock` to a cache backend. The option `quorlock` has the arguments of a `Quorum`."""

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        options = dict(params.get("OPTIONS") or {})
        quorum = options.pop("quorlock", None)
        if not quorum:
            raise ValueError('the cache needs OPTIONS["quorlock"]["nodes"]: the URLs of the nodes')
        self._quorum = _quorum(quorum)
        super().__init__(server, {**params, "OPTIONS": options})  # type: ignore[call-arg]

    def lock(
        self,
        key: str,
        version: int | None = None,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        client: Any = None,
        thread_local: bool = True,
    ) -> Lock:
        """A lock on the key of the cache: see `quorlock.compat.Lock`."""
        name = self.make_key(key, version=version)  # type: ignore[attr-defined]
        return Lock(
            self._quorum,
            str(name),
            timeout=timeout,
            sleep=sleep,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            thread_local=thread_local,
        )


class RedisCache(LockMixin, _RedisCache):  # type: ignore[misc]
    """Django's own backend for Redis, with locks."""
