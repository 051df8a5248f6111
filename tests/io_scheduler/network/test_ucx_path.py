"""Data over UCX without UCX: bytes count with their header only, and no posted buffer is let go before its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from xxhash import xxh3_64_intdigest

from pystachio.errors import Cancelled, DataError, NodeLost, PystachioError
from pystachio.io_scheduler.devices.ucx import UcxWorker
from pystachio.io_scheduler.network.data_path import Arrival
from pystachio.io_scheduler.network.frames import Data, Frame
from pystachio.io_scheduler.network.ucx_path import UcxPath

SESSION, EPOCH, KEY = 77, 5, b"k" * 32

Ended = Callable[[PystachioError | None], None]


class FakeUcx:
    """Worker, connection and timers: messages pass by tag when both ends are there."""

    def __init__(self) -> None:
        self.posted: dict[int, tuple[memoryview, Ended]] = {}
        self.sent: dict[int, tuple[bytes, Ended]] = {}
        self.due: list[Callable[[], object]] = []
        self.closed = False
        self.lost: Callable[[], None] | None = None

    def connect(self, address: bytes, lost: Callable[[], None]) -> FakeUcx:
        assert address == b"there"
        self.lost = lost
        return self

    def receive(self, buffer: memoryview, tag: int, ended: Ended) -> None:
        assert tag not in self.posted
        self.posted[tag] = (buffer, ended)

    def send(self, buffer: memoryview, tag: int, ended: Ended) -> None:
        assert tag not in self.sent
        self.sent[tag] = (bytes(buffer), ended)

    def close(self) -> None:
        self.closed = True
        for _, ended in tuple(self.posted.values()):
            ended(NodeLost("closed"))

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        assert delay == 7.0
        self.due.append(callback)
        return cast(asyncio.TimerHandle, None)

    def time(self) -> float:
        return 0.0


class Ends:
    def __init__(self) -> None:
        self.arrived: list[Arrival] = []
        self.sent: list[PystachioError | None] = []
        self.lost: list[PystachioError] = []
        self.frames: list[Frame] = []


def make(*, is_initiator: bool = True) -> tuple[UcxPath, FakeUcx, Ends]:
    ucx, ends = FakeUcx(), Ends()
    path = UcxPath(
        worker=cast(UcxWorker, ucx),
        address=b"there",
        session=SESSION,
        epoch=EPOCH,
        key=KEY,
        is_initiator=is_initiator,
        node="peer",
        timers=ucx,
        give_up_seconds=7.0,
        send_frame=ends.frames.append,
        lost=ends.lost.append,
    )
    return path, ucx, ends


def land(ucx: FakeUcx, content: bytes) -> None:
    """The bytes of the one posted receive come."""
    ((tag, (buffer, ended)),) = ucx.posted.items()
    del ucx.posted[tag]
    buffer[: len(content)] = content
    ended(None)


def header(content: bytes, grant: int = 1, **changes: int) -> Data:
    data = Data(len(content), 0, True, grant, SESSION, EPOCH, xxh3_64_intdigest(content))
    return data._replace(**changes)


@pytest.mark.parametrize("header_first", [True, False])
def test_a_grant_ends_when_its_bytes_and_its_header_are_there(header_first: bool) -> None:
    path, ucx, ends = make()
    buffer = memoryview(bytearray(5))
    path.expect(1, buffer, ends.arrived.append)
    if header_first:
        path.take(header(b"hello"))
    else:
        land(ucx, b"hello")
    assert ends.arrived == []
    if header_first:
        land(ucx, b"hello")
    else:
        path.take(header(b"hello"))
    assert ends.arrived == [Arrival(5)]
    assert bytes(buffer) == b"hello"


def test_what_one_end_sends_the_other_expects() -> None:
    sender, ucx, ends = make()
    receiver, other, arrivals = make(is_initiator=False)
    buffer = memoryview(bytearray(5))
    receiver.expect(9, buffer, arrivals.arrived.append)
    sender.send(9, memoryview(b"hello"), ends.sent.append)
    (data,) = ends.frames
    assert isinstance(data, Data)
    ((tag, (content, ended)),) = ucx.sent.items()
    assert list(other.posted) == [tag]
    land(other, content)
    receiver.take(data)
    ended(None)
    assert bytes(buffer) == b"hello"
    assert arrivals.arrived == [Arrival(5)]
    assert ends.sent == [None]
    # Tags of the two directions, and of other sessions, have nothing to do with each other.
    sender.expect(9, memoryview(bytearray(5)), ends.arrived.append)
    assert tag not in ucx.posted


@pytest.mark.parametrize(
    "changes", [{"checksum": 1}, {"session": 1}, {"epoch": 1}, {"is_checked": 0}, {"length": 4}], ids=str
)
def test_what_does_not_fit_is_an_error_of_the_grant(changes: dict[str, int]) -> None:
    path, ucx, ends = make()
    path.expect(1, memoryview(bytearray(5)), ends.arrived.append)
    land(ucx, b"hello")
    path.take(header(b"hello", **changes))
    assert isinstance(ends.arrived[0].error, DataError)
    assert not ends.lost


def test_a_void_answer_carries_its_reason() -> None:
    sender, ucx, ends = make(is_initiator=False)
    sender.void(1, 3)
    path, other, arrivals = make()
    path.expect(1, memoryview(bytearray(5)), arrivals.arrived.append)
    (data,) = ends.frames
    assert isinstance(data, Data)
    path.take(data)
    assert ucx.sent.keys() == other.posted.keys()
    land(other, b"")
    assert isinstance(arrivals.arrived[0].error, DataError)


def test_what_is_given_up_keeps_its_buffer_until_it_is_answered() -> None:
    path, ucx, ends = make()
    path.expect(1, memoryview(bytearray(5)), ends.arrived.append)
    path.give_up(1)
    path.give_up(1)
    assert ends.arrived == []
    path.take(header(b"hello"))
    land(ucx, b"hello")
    assert isinstance(ends.arrived[0].error, Cancelled)
    for callback in ucx.due:
        callback()
    assert not ends.lost


def test_who_does_not_answer_what_is_given_up_is_lost() -> None:
    path, ucx, ends = make()
    path.expect(1, memoryview(bytearray(5)), ends.arrived.append)
    path.give_up(1)
    for callback in ucx.due:
        callback()
    assert ucx.closed
    assert isinstance(ends.arrived[0].error, NodeLost)
    assert len(ends.arrived) == len(ends.lost) == 1


@pytest.mark.parametrize("twice", [True, False])
def test_headers_that_nobody_asked_for_end_the_connection(twice: bool) -> None:
    path, ucx, ends = make()
    path.expect(1, memoryview(bytearray(5)), ends.arrived.append)
    path.take(header(b"hello"))
    path.take(header(b"hello", 1 if twice else 2))
    assert ucx.closed
    assert len(ends.lost) == 1
    assert [type(arrival.error) for arrival in ends.arrived] == [NodeLost]


def test_the_end_of_the_connection_ends_everything_once() -> None:
    path, ucx, ends = make()
    path.expect(1, memoryview(bytearray(5)), ends.arrived.append)
    assert ucx.lost is not None
    ucx.lost()
    path.close(NodeLost("again"))
    path.expect(2, memoryview(bytearray(5)), ends.arrived.append)
    path.send(3, memoryview(b"x"), ends.sent.append)
    path.void(4, 1)
    assert [type(arrival.error) for arrival in ends.arrived] == [NodeLost, NodeLost]
    assert isinstance(ends.sent[0], NodeLost)
    assert len(ends.lost) == 1
    assert ends.frames == []
