"""Views on the wire: what the membership tells, as messages and back."""

from __future__ import annotations

from typing import assert_never

from pystachio.errors import DataError
from pystachio.runtime.membership.events import Event, FenceMet, JoinAsked, NodeLeft, ViewHeard
from pystachio.runtime.membership.views import Member, View, ViewName, ViewTold
from pystachio.server.messages import Fenced, JoinForwarded, Left, MemberRecord, MembershipMessage, ViewAnnounced


def event_of(peer: str, message: MembershipMessage) -> Event:
    """Raises DataError."""
    match message:
        case ViewAnnounced():
            return ViewHeard(peer, told_by(message))
        case JoinForwarded(member):
            return JoinAsked(member_of(member))
        case Left():
            return NodeLeft(peer)
        case Fenced():
            return FenceMet(peer)
        case _:
            assert_never(message)


def announcement(told: ViewTold) -> ViewAnnounced:
    return ViewAnnounced(
        epoch=told.view.epoch,
        leader=told.view.leader,
        members=tuple(record_of(member) for member in told.view.members),
        sender=record_of(told.sender),
        knows_epoch=told.knows.epoch,
        knows_leader=told.knows.leader,
        sequence=told.sequence,
    )


def told_by(message: ViewAnnounced) -> ViewTold:
    """Raises DataError for a view that no leader publishes."""
    names = [record.name for record in message.members]
    if names != sorted(set(names)) or message.leader not in names:
        raise DataError("a view of the cluster does not hold together: its members are not in order, or not led")
    return ViewTold(
        sender=member_of(message.sender),
        view=View(message.epoch, message.leader, tuple(member_of(record) for record in message.members)),
        knows=ViewName(message.knows_epoch, message.knows_leader),
        sequence=message.sequence,
    )


def record_of(member: Member) -> MemberRecord:
    return MemberRecord(member.name, member.host, member.port, member.instance, member.draining)


def member_of(record: MemberRecord) -> Member:
    return Member(record.name, record.host, record.port, record.instance, record.draining)
