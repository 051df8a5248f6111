"""Control messages: what is sent arrives as it was, and nothing else is read."""

from __future__ import annotations

import os
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import DataError, InvalidRequest, NotFound
from pystachio.io_scheduler.central.events import (
    JoinRequested,
    LeasePublished,
    LeaseRenewed,
    NodeJoined,
    NodeReported,
    PlanAdmitted,
    PlanEnded,
    PlanRank,
    PlanReranked,
    PlanUsage,
)
from pystachio.io_scheduler.central.fairness import LinkClass
from pystachio.io_scheduler.core.request import Direction, Lease, PlanOrder, PriorityClass
from pystachio.runtime.failure_message import Failure
from pystachio.runtime.membership.views import Member, View, ViewName, ViewTold
from pystachio.server import messages
from pystachio.server.central_messages import from_centre, from_node, to_centre, to_node
from pystachio.server.membership_messages import announcement, told_by
from pystachio.server.messages import (
    CentreMissedSome,
    DrainOrdered,
    Fenced,
    JoinForwarded,
    Left,
    MemberRecord,
    ViewAnnounced,
    decode,
    encode,
    measure,
)
from pystachio.server.plan_messages import (
    FilesSeen,
    FootersTold,
    SameFile,
    SourceAsked,
    SourceTold,
    StartFragment,
)

A, B = (Member(name, "host", port, f"{name}1") for port, name in enumerate("ab", 1))
TOLD = ViewTold(B, View(7, "a", (A, B.drained(True))), ViewName(6, "a"), 12)
LEASE = Lease(
    3, 4, 3.0, (PlanOrder("p", PriorityClass.BATCH, 0.5, None), PlanOrder("q", PriorityClass.NORMAL, 2.0, 1.5))
)
RANK = PlanRank("p", PriorityClass.INTERACTIVE, 2.0, 0.25)
USAGE = PlanUsage("p", LinkClass("disk", Direction.READ), 1 << 40, True)
JOINED = NodeJoined("n", 1, (PlanAdmitted(RANK), PlanReranked(RANK)), LEASE)
REPORTED = NodeReported("n", 2, 1.0, (PlanAdmitted(RANK), PlanReranked(RANK), PlanEnded("q"), USAGE), (3, 4))


@pytest.mark.parametrize(
    "message",
    [
        announcement(TOLD),
        JoinForwarded(MemberRecord("a", "host", 1, "a1")),
        Left(),
        Fenced(9),
        DrainOrdered(True),
        to_centre(JOINED),
        to_centre(REPORTED),
        to_node(LeasePublished(LEASE, 5)),
        CentreMissedSome(),
    ],
)
def test_what_is_sent_arrives(message: messages.ControlMessage) -> None:
    assert decode(encode(message)) == message


BULK = (b"", b"x", bytes(300), bytes(70_000))


@pytest.mark.parametrize(
    "message",
    [
        FilesSeen(1, tuple(range(100_000))),
        FootersTold(1, BULK),
        *(
            StartFragment("p", 1, ("a", "b"), 1, plan, {"/f": (0,)}, tuple(footers), 1, None, "", "")
            for plan in BULK
            for footers in ((), [(SameFile("/f", 1, 1), footer) for footer in BULK])
        ),
    ],
)
def test_the_length_of_bulk_is_known_before_it_is_encoded(message: messages.ControlMessage) -> None:
    assert 0 <= measure(message) - len(encode(message)) <= 3 * (1 + len(BULK))


def test_a_name_that_is_no_text_is_refused() -> None:
    name = os.fsdecode(b"donn\xe9es")
    with pytest.raises(InvalidRequest, match=r"not UTF-8: donn\\udce9es"):
        encode(SourceAsked(1, (name,)))
    failure = Failure.of(NotFound(f"no such file: {name}", hint=name), "a")
    assert decode(encode(SourceTold(1, (), (0,), failure))) == SourceTold(1, (), (0,), failure)
    assert (failure.message, failure.hint) == (r"no such file: donn\udce9es", r"donn\udce9es")


def test_views_and_facts_come_back_as_they_were() -> None:
    assert told_by(announcement(TOLD)) == TOLD
    for report in (JOINED, REPORTED, NodeJoined("n", 1, (), None)):
        assert from_node("n", to_centre(report)) == report
    for order in (LeasePublished(LEASE, 5), LeaseRenewed(3, 5, 4, 3.0, 6), JoinRequested()):
        assert from_centre(to_node(order)) == order


def encoded(**fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


RECORD = {"name": "a", "host": "h", "port": 1, "instance": "1"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        pickle.dumps([1]),
        encoded(type="Nothing"),
        encoded(epoch=1),
        encoded(type="Fenced"),
        encoded(type="Fenced", epoch=-1),
        encoded(type="Fenced", epoch=1 << 62),
        encoded(type="Fenced", epoch="1"),
        encoded(type="Fenced", epoch=1, more=2),
        encoded(type="DrainOrdered", draining=1),
        encoded(type="JoinForwarded", member={**RECORD, "name": ""}),
        encoded(type="JoinForwarded", member={**RECORD, "name": "x" * 256}),
        encoded(type="JoinForwarded", member={**RECORD, "port": 65_536}),
        encoded(type="JoinForwarded", member={**RECORD, "more": 1}),
        encoded(type="LeaseSent", lease={"epoch": 1, "sequence": 1, "seconds": 1.0, "plans": [["p", 7, 1.0]]}, heard=1),
        b"\x81" * 100_000,
        encode(Fenced(9)) + b"\x00",
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(DataError, match="a message of another node is malformed"):
        decode(body)


@given(st.binary(max_size=200))
def test_noise_is_refused_or_read(body: bytes) -> None:
    try:
        message = decode(body)
    except DataError:
        return
    assert isinstance(message, messages.ControlMessage)


@given(st.data())
def test_messages_with_damage_are_refused_or_read(data: st.DataObject) -> None:
    body = bytearray(encode(to_centre(REPORTED)))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(body))
    except DataError:
        return


@pytest.mark.parametrize("members", [(B, A), (A, A), (B,)])
def test_views_that_no_leader_publishes_are_refused(members: tuple[Member, ...]) -> None:
    told = ViewTold(B, View(7, "a", members), ViewName(6, "a"), 12)
    message = decode(encode(announcement(told)))
    assert isinstance(message, ViewAnnounced)
    with pytest.raises(DataError, match="does not hold together"):
        told_by(message)
