"""What a node of a cluster says about itself: plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """`address` is HOST:PORT, `state` a word for people: able, suspect, draining, ..."""

    name: str
    address: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """At one moment. `plans` are those that clients gave to this node and that run, `fragments` the parts of other
    nodes' plans that run here. Memory is in bytes of host memory."""

    name: str
    address: str
    epoch: int
    leader: str
    members: tuple[MemberDescription, ...]
    plans: int
    fragments: int
    memory_used: int
    memory_budget: int
    transports: tuple[str, ...]
    draining: bool
