"""What the membership's core is told, and what it orders: plain data, events in the past tense, actions imperative."""

from __future__ import annotations

from dataclasses import dataclass

from pystachio.runtime.membership.views import Address, Member, View, ViewTold


@dataclass(frozen=True, slots=True)
class NodeConnected:
    """Both sides have proved themselves. Who it is in detail, the node tells itself."""

    name: str


@dataclass(frozen=True, slots=True)
class NodeDisconnected:
    """The connection is gone: silent for too long, broken, or closed by either side."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """Nobody answered `Connect`, or the wrong one."""

    address: Address
    reason: str


@dataclass(frozen=True, slots=True)
class SeedAnswered:
    """Who listens at the address of a seed."""

    seed: Address
    name: str


@dataclass(frozen=True, slots=True)
class AddressesDiscovered:
    """All that the back end knows now, in place of what it knew before."""

    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class ViewHeard:
    name: str
    told: ViewTold


@dataclass(frozen=True, slots=True)
class JoinAsked:
    """Another member is connected with this node, which is in no view of ours."""

    member: Member


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Of this node; `draining` false ends it."""

    draining: bool


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """This node is about to stop."""


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The other node has said that it is about to stop."""

    name: str


@dataclass(frozen=True, slots=True)
class FenceMet:
    """The other node refused a message: we are in no view of its."""

    name: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """To be told when `next_wake` has come."""


Event = (
    NodeConnected
    | NodeDisconnected
    | ConnectFailed
    | SeedAnswered
    | AddressesDiscovered
    | ViewHeard
    | JoinAsked
    | DrainAsked
    | LeaveAsked
    | NodeLeft
    | FenceMet
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class Connect:
    """To be answered by NodeConnected (and SeedAnswered) or ConnectFailed."""

    address: Address


@dataclass(frozen=True, slots=True)
class Disconnect:
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class TellView:
    to: str
    told: ViewTold


@dataclass(frozen=True, slots=True)
class AskJoin:
    """Have the leader know of a node that is in no view of ours."""

    to: str
    member: Member


@dataclass(frozen=True, slots=True)
class SayLeave:
    to: str


@dataclass(frozen=True, slots=True)
class AdoptView:
    """The view is in force here from now on."""

    view: View


@dataclass(frozen=True, slots=True)
class MemberReached:
    """A member can be reached now, and was not before."""

    name: str


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A member that could be reached is lost, is excluded, or has started anew; what it did for us is gone."""

    name: str
    reason: str


Action = Connect | Disconnect | TellView | AskJoin | SayLeave | AdoptView | MemberReached | MemberLost
