"""What the nodes report: the results of `inspect` and `health`. Times are in seconds."""

from __future__ import annotations

from typing import NamedTuple


class Lease(NamedTuple):
    """A lock on one node."""

    owner: str | None
    """The label of the client that acquired the lock."""
    fence: int | None
    """The fence; `None` for a key that another program wrote with `SET`."""
    ttl: float | None
    """How much longer the key is taken; `None` without an expiry."""
    held_for: float | None
    """How long ago the node granted the lock."""
    waiters: int
    """How many clients wait for the key on this node."""
    mode: str
    """`exclusive`, `shared`, `foreign` or `unknown`."""
    holders: int
    """How many clients hold the lock: one, unless it is shared."""
    revoked: bool
    """Whether an operator revoked the lock."""


class NodeInspection(NamedTuple):
    """What one node says about a key."""

    node: str
    """The address, without any password."""
    lease: Lease | None
    """The lock on this node; `None` if the key is free there, or if the node failed."""
    error: str | None
    """Why the node did not say."""


class Inspection(NamedTuple):
    """What the nodes say about a key. `str()` of it is a text for people."""

    state: str
    """`free`, `held` or `unclear`."""
    nodes: tuple[NodeInspection, ...]
    """What each node says, in the order in which the nodes were named."""
    text: str
    """All of it, for people."""
    fence: int | None = None
    """The fence of the lock, if it is held."""
    owner: str | None = None
    """The label of the holder, if the lock is held."""
    mode: str | None = None
    """`exclusive` or `shared`, if the lock is held."""
    holders: int = 0
    """How many clients hold the lock."""
    at_most: float | None = None
    """How long the lock lasts at most unless it is extended."""

    def __str__(self) -> str:
        return self.text


class NodeHealth(NamedTuple):
    """The state of the connection to one node."""

    node: str
    """The address, without any password."""
    error: str | None
    """Why the node cannot vote; `None` if the connection shows no reason."""
    since: float
    """How long the connection has been up, silent or down."""
    round_trip: float
    """The smoothed round-trip time."""
    module_version: str | None
    """The version of the node's module."""
    set: str | None
    """The set that the node reports."""
