"""What nodes say to each other beside data: a closed union of typed messages in msgpack, bounded and strictly read.

To add one: a class here, its place in `ControlMessage`, and a handler with `ControlPlane.handle`. Who sent a message is
what the connection has proved, never a field.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from pystachio.errors import DataError, InvalidRequest
from pystachio.io_scheduler.central.events import PlanRank, PlanUsage
from pystachio.io_scheduler.core.request import PlanOrder, PriorityClass
from pystachio.server.plan_messages import FootersTold, PlanMessage, StartFragment

MOST_MEMBERS = 4096
MOST_FACTS = 65_536

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=1000)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of messages."""


class Message(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Known by the name of its class."""


class MemberRecord(Record, frozen=True):
    name: Name
    host: Name
    port: Port
    instance: Name
    draining: bool = False


class ViewAnnounced(Message, frozen=True):
    """`runtime.membership.views.ViewTold`. The sender is one of the view's members."""

    epoch: Count
    leader: Name
    members: Annotated[tuple[MemberRecord, ...], Meta(min_length=1, max_length=MOST_MEMBERS)]
    sender: MemberRecord
    knows_epoch: Count
    knows_leader: Annotated[str, Meta(max_length=255)]
    sequence: Count


class JoinForwarded(Message, frozen=True):
    """To the leader: this node is connected with me, and in no view of ours."""

    member: MemberRecord


class Left(Message, frozen=True):
    """The sender is about to stop."""


class Fenced(Message, frozen=True):
    """The receiver's message was refused: it is no member, and has to be taken in again. `epoch` is the sender's."""

    epoch: Count


class DrainOrdered(Message, frozen=True):
    """The receiver is to end its plans and take no more, or to take them again."""

    draining: bool


class LongMessageSent(Message, frozen=True):
    """A message of `length` bytes comes as data message `number`, in this class: see `long_messages`."""

    number: Count
    length: Count
    priority: PriorityClass


class LeaseRecord(Record, frozen=True):
    """`io_scheduler.core.request.Lease`."""

    epoch: Count
    sequence: Count
    seconds: float
    plans: Annotated[tuple[PlanOrder, ...], Meta(max_length=MOST_FACTS)]


Ranks = Annotated[tuple[PlanRank, ...], Meta(max_length=MOST_FACTS)]
PlanIds = Annotated[tuple[Text, ...], Meta(max_length=MOST_FACTS)]
Usages = Annotated[tuple[PlanUsage, ...], Meta(max_length=MOST_FACTS)]


class CentreJoined(Message, frozen=True):
    """`io_scheduler.central.events.NodeJoined`, its facts by kind."""

    sequence: Count
    admitted: Ranks
    reranked: Ranks
    held: LeaseRecord | None


class CentreReported(Message, frozen=True):
    """`io_scheduler.central.events.NodeReported`, its facts by kind."""

    sequence: Count
    seconds: float
    admitted: Ranks
    reranked: Ranks
    ended: PlanIds
    used: Usages
    held: tuple[Count, Count] | None


class LeaseSent(Message, frozen=True):
    """`io_scheduler.central.events.LeasePublished`."""

    lease: LeaseRecord
    heard: Count


class LeaseProlonged(Message, frozen=True):
    """`io_scheduler.central.events.LeaseRenewed`."""

    epoch: Count
    sequence: Count
    renews: Count
    seconds: float
    heard: Count


class CentreMissedSome(Message, frozen=True):
    """`io_scheduler.central.events.JoinRequested`."""


MembershipMessage = ViewAnnounced | JoinForwarded | Left | Fenced
NodeToCentre = CentreJoined | CentreReported
CentreToNode = LeaseSent | LeaseProlonged | CentreMissedSome
ControlMessage = MembershipMessage | DrainOrdered | LongMessageSent | NodeToCentre | CentreToNode | PlanMessage

_LENGTH_BYTES = 3
"""By so many the length of long bytes may be longer than that of none."""

_ENCODER = Encoder()
_DECODER: Decoder[ControlMessage] = Decoder(ControlMessage)


def encode(message: ControlMessage) -> bytes:
    """Raises InvalidRequest for a text that is no Unicode: a name of a file may be any bytes."""
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError as error:
        shown = error.object.encode(errors="backslashreplace").decode()
        raise InvalidRequest(f"other nodes cannot be told of a name that is not UTF-8: {shown}") from None


def measure(message: ControlMessage) -> int:
    """How long the message is when it is encoded, or a few bytes more. Bulk in it is not copied for that."""
    rest: ControlMessage
    match message:
        case StartFragment():
            bulk = [message.plan, *(footer for _, footer in message.footers)]
            rest = replace(message, plan=b"", footers=tuple((file, b"") for file, _ in message.footers))
        case FootersTold():
            bulk = list(message.footers)
            rest = replace(message, footers=(b"",) * len(bulk))
        case _:
            bulk, rest = [], message
    return len(encode(rest)) + sum(map(len, bulk)) + _LENGTH_BYTES * len(bulk)


def decode(body: bytes | bytearray) -> ControlMessage:
    """Raises DataError for what is no message, in any respect."""
    try:
        return _DECODER.decode(body)
    except (MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"a message of another node is malformed: {error}") from error
