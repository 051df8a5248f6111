"""The central service's events on the wire, and back. Facts travel by kind: their order among kinds means nothing."""

from __future__ import annotations

from typing import assert_never

from pystachio.io_scheduler.central.events import (
    CentralMessage,
    JoinRequested,
    LeasePublished,
    LeaseRenewed,
    NodeFact,
    NodeJoined,
    NodeMessage,
    NodeReported,
    PlanAdmitted,
    PlanEnded,
    PlanReranked,
    PlanUsage,
)
from pystachio.io_scheduler.core.request import Lease
from pystachio.server.messages import (
    CentreJoined,
    CentreMissedSome,
    CentreReported,
    CentreToNode,
    LeaseProlonged,
    LeaseRecord,
    LeaseSent,
    NodeToCentre,
)


def to_centre(message: NodeMessage) -> NodeToCentre:
    admitted = tuple(fact.rank for fact in message.facts if isinstance(fact, PlanAdmitted))
    reranked = tuple(fact.rank for fact in message.facts if isinstance(fact, PlanReranked))
    match message:
        case NodeJoined():
            held = None if message.held is None else _record_of(message.held)
            return CentreJoined(message.sequence, admitted, reranked, held)
        case NodeReported():
            ended = tuple(fact.plan_id for fact in message.facts if isinstance(fact, PlanEnded))
            used = tuple(fact for fact in message.facts if isinstance(fact, PlanUsage))
            return CentreReported(message.sequence, message.seconds, admitted, reranked, ended, used, message.held)
        case _:
            assert_never(message)


def from_node(node: str, message: NodeToCentre) -> NodeMessage:
    """`node` is who sent it, by what the connection has proved."""
    ranks: list[NodeFact] = [PlanAdmitted(rank) for rank in message.admitted]
    ranks += (PlanReranked(rank) for rank in message.reranked)
    match message:
        case CentreJoined():
            return NodeJoined(
                node, message.sequence, tuple(ranks), None if message.held is None else _lease_of(message.held)
            )
        case CentreReported():
            ended = (PlanEnded(plan_id) for plan_id in message.ended)
            facts = (*ranks, *ended, *message.used)
            return NodeReported(node, message.sequence, message.seconds, facts, message.held)
        case _:
            assert_never(message)


def to_node(message: CentralMessage) -> CentreToNode:
    match message:
        case LeasePublished(lease, heard):
            return LeaseSent(_record_of(lease), heard)
        case LeaseRenewed(epoch, sequence, renews, seconds, heard):
            return LeaseProlonged(epoch, sequence, renews, seconds, heard)
        case JoinRequested():
            return CentreMissedSome()
        case _:
            assert_never(message)


def from_centre(message: CentreToNode) -> CentralMessage:
    match message:
        case LeaseSent(lease, heard):
            return LeasePublished(_lease_of(lease), heard)
        case LeaseProlonged(epoch, sequence, renews, seconds, heard):
            return LeaseRenewed(epoch, sequence, renews, seconds, heard)
        case CentreMissedSome():
            return JoinRequested()
        case _:
            assert_never(message)


def _record_of(lease: Lease) -> LeaseRecord:
    return LeaseRecord(lease.epoch, lease.sequence, lease.seconds, lease.plans)


def _lease_of(record: LeaseRecord) -> Lease:
    return Lease(record.epoch, record.sequence, record.seconds, record.plans)
