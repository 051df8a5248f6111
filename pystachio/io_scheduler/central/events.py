"""What nodes and the central service say to each other: plain data, fit for any wire.

Everything is sent and forgotten: any message may be lost, late, doubled or out of order, and nobody waits for one.
Seconds are relative to the arrival of a message; clocks of different machines are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pystachio.io_scheduler.central.fairness import LinkClass
from pystachio.io_scheduler.core.request import Lease, PriorityClass


class PlanRank(NamedTuple):
    """A plan as a node that runs it, or a part of it, sees it. It should end within `due_seconds`."""

    plan_id: str
    priority: PriorityClass
    weight: float = 1.0
    due_seconds: float | None = None


class PlanAdmitted(NamedTuple):
    """The node runs (a part of) the plan, by its own rank until a lease says otherwise."""

    rank: PlanRank


class PlanReranked(NamedTuple):
    """Somebody changed the plan's class or deadline; this holds in the whole cluster from now on."""

    rank: PlanRank


class PlanEnded(NamedTuple):
    plan_id: str


class PlanUsage(NamedTuple):
    """What the plan moved through the node's links of a class since the last report; `waits` if it wanted more."""

    plan_id: str
    link_class: LinkClass
    nbytes: int
    waits: bool


NodeFact = PlanAdmitted | PlanReranked | PlanEnded | PlanUsage


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """All that a centre must know of a node, in place of what it knew: on joining, or after a message was missed.

    Later reports of the node have a higher `sequence`. `held` is the lease in force there, whose weights a new centre
    starts from.
    """

    node: str
    sequence: int
    facts: tuple[NodeFact, ...]
    held: Lease | None = None


@dataclass(frozen=True, slots=True)
class NodeReported:
    """What happened on the node in the last `seconds`. `held` is the (epoch, sequence) of the lease it keeps."""

    node: str
    sequence: int
    seconds: float
    facts: tuple[NodeFact, ...]
    held: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The cluster's membership says so; the node's part of every plan has ended."""

    node: str


NodeMessage = NodeJoined | NodeReported


@dataclass(frozen=True, slots=True)
class LeasePublished:
    """The order of the node's plans. It takes the node's messages up to number `heard` into account."""

    lease: Lease
    heard: int


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The lease number `renews` of the same epoch, unchanged, is valid for `seconds` from now as number `sequence`."""

    epoch: int
    sequence: int
    renews: int
    seconds: float
    heard: int


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """The centre has missed something: the node is to describe itself anew."""


CentralMessage = LeasePublished | LeaseRenewed | JoinRequested


class Publish(NamedTuple):
    """Send the message to the node, and forget it."""

    node: str
    message: CentralMessage
