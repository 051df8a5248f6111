"""The data connection without a network: what is read where, what breaks it, and that nothing is written too late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from pystachio.errors import Cancelled, DataError, NodeLost, PystachioError
from pystachio.io_scheduler.network.data_path import Arrival
from pystachio.io_scheduler.network.frames import DATA_BYTES, Data, decode_data, encode_data
from pystachio.io_scheduler.network.seal import MAC_BYTES, make_seals
from pystachio.io_scheduler.network.tcp_path import TURN_BYTES, TcpPath

SESSION, EPOCH, KEY = 77, 5, b"k" * 32
HEADER_BYTES = DATA_BYTES + MAC_BYTES


class FakeTransport:
    """Takes `room` bytes at once; the rest waits until `drain`."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.written = bytearray()
        self.waiting = bytearray()
        self.aborted = False
        self.reads = True
        self.due: list[Callable[[], object]] = []
        self.soon: list[Callable[[], object]] = []

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, *, high: int) -> None:
        assert high == 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(TcpPath, protocol)

    def writelines(self, parts: tuple[bytes | memoryview, ...]) -> None:
        self.write(b"".join(parts))

    def write(self, data: bytes) -> None:
        assert not self.aborted
        taken = 0 if self.waiting else min(self.room, len(data))
        self.written += data[:taken]
        self.waiting += data[taken:]

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def drain(self) -> None:
        self.written += self.waiting
        self.waiting.clear()
        self.protocol.resume_writing()

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.aborted
        self.reads = True

    def turn(self) -> None:
        """Of the loop."""
        while self.soon:
            self.soon.pop()()

    def time(self) -> float:
        return 0.0

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        assert delay in (0.0, 7.0)
        (self.due if delay else self.soon).append(callback)
        return cast(asyncio.TimerHandle, None)


class Ends:
    def __init__(self) -> None:
        self.arrived: dict[int, Arrival] = {}
        self.sent: dict[int, PystachioError | None] = {}
        self.lost: list[PystachioError] = []
        self.peer = make_seals(KEY, b"data", is_initiator=False)
        self.transport: FakeTransport | None = None
        self.flushed_at: list[int] = []
        """How much data had been written each time."""

    def flush(self) -> None:
        assert self.transport is not None
        self.flushed_at.append(len(self.transport.written))

    def header(self, content: bytes, grant: int, **changes: int) -> bytes:
        """The peer's next one."""
        data = Data(len(content), 0, True, grant, SESSION, EPOCH, xxh3_64_intdigest(content))
        block = encode_data(data._replace(**changes))
        return block + self.peer.outgoing.mac(block)

    def arrive(self, grant: int, arrival: Arrival) -> None:
        assert grant not in self.arrived, "an end comes once"
        self.arrived[grant] = arrival

    def send(self, grant: int, error: PystachioError | None) -> None:
        assert grant not in self.sent, "an end comes once"
        self.sent[grant] = error


def make(transport: FakeTransport | None = None) -> tuple[TcpPath, FakeTransport, Ends]:
    ends = Ends()
    transport = transport if transport is not None else FakeTransport()
    path = TcpPath(
        session=SESSION,
        epoch=EPOCH,
        seals=make_seals(KEY, b"data", is_initiator=True),
        node="peer",
        timers=transport,
        give_up_seconds=7.0,
        flush=ends.flush,
        lost=ends.lost.append,
    )
    path.run(cast(asyncio.Transport, transport))
    ends.transport = transport
    return path, transport, ends


def expect(path: TcpPath, ends: Ends, grant: int, length: int) -> bytearray:
    buffer = bytearray(length)
    path.expect(grant, memoryview(buffer), lambda arrival: ends.arrive(grant, arrival))
    return buffer


def feed(path: TcpPath, stream: bytes, step: int = 1 << 20) -> None:
    """As a transport does: as much as fits into what the protocol offers."""
    position = 0
    while position < len(stream) and not cast(FakeTransport, path._transport).aborted:
        buffer = path.get_buffer(-1)
        assert len(buffer) > 0
        count = min(len(buffer), len(stream) - position, step)
        buffer[:count] = stream[position : position + count]
        path.buffer_updated(count)
        position += count


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=6), st.integers(1, 64), st.randoms())
def test_data_land_in_their_buffers_in_any_order_and_however_cut(
    contents: list[bytes], step: int, random: st.DataObject
) -> None:
    path, _, ends = make()
    buffers = {grant: expect(path, ends, grant, len(content)) for grant, content in enumerate(contents)}
    order = list(buffers)
    random.shuffle(order)  # type: ignore[attr-defined]
    feed(path, b"".join(ends.header(contents[grant], grant) + contents[grant] for grant in order), step)
    assert all(bytes(buffers[grant]) == contents[grant] for grant in order)
    assert all(ends.arrived[grant] == Arrival(len(contents[grant])) for grant in order)
    assert not ends.lost


def test_the_loop_turns_after_so_much() -> None:
    path, transport, ends = make()
    half = bytes(TURN_BYTES // 2)
    for turn in range(3):
        grants = (2 * turn, 2 * turn + 1)
        for grant in grants:
            expect(path, ends, grant, len(half))
            assert transport.reads
            feed(path, ends.header(half, grant) + half[:-1])
            assert transport.reads
            feed(path, half[-1:])
        assert not transport.reads
        transport.turn()
    assert transport.reads
    expect(path, ends, 9, TURN_BYTES)
    feed(path, ends.header(2 * half, 9) + 2 * half)
    assert not transport.reads
    path.close(NodeLost("it is over"))
    transport.turn()


def test_a_control_connection_that_ends_before_data_ends_the_path() -> None:
    path, transport, ends = make()
    gone = NodeLost("a node does not read its control connection")
    path._flush = lambda: path.close(gone)
    path.send(1, memoryview(b"abc"), partial(ends.send, 1))
    assert ends.sent == {1: gone}
    assert transport.aborted
    assert not transport.written


def test_what_was_said_goes_before_data() -> None:
    path, _, ends = make()
    for grant in (1, 2):
        path.send(grant, memoryview(b"abc"), partial(ends.send, grant))
    assert ends.flushed_at == [0, HEADER_BYTES + 3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"checksum": 1}, "checksum"),
        ({"is_checked": 0}, "checksum"),
        ({"session": 1}, "session"),
        ({"epoch": EPOCH + 1}, "epoch"),
    ],
)
def test_damaged_or_foreign_data_harm_their_grant_only(changes: dict[str, int], words: str) -> None:
    path, _, ends = make()
    bad, good = expect(path, ends, 1, 10), expect(path, ends, 2, 10)
    feed(path, ends.header(b"0123456789", 1, **changes) + b"0123456789" + ends.header(b"abcdefghij", 2) + b"abcdefghij")
    error = ends.arrived[1].error
    assert isinstance(error, DataError)
    assert words in error.message
    if "checksum" not in words:
        assert not any(bad), "what is not ours is not written"
    assert ends.arrived[2] == Arrival(10)
    assert good == b"abcdefghij"
    assert not ends.lost


def test_data_that_are_cut_are_an_error_of_their_grant() -> None:
    path, _, ends = make()
    expect(path, ends, 1, 10)
    feed(path, ends.header(b"01234", 1) + b"01234")
    assert isinstance(ends.arrived[1].error, DataError)
    assert not ends.lost


@pytest.mark.parametrize(("grant", "length"), [(1, 11), (1, 1 << 31), (2, 10)])
def test_data_that_were_not_asked_for_end_the_connection(grant: int, length: int) -> None:
    path, transport, ends = make()
    expect(path, ends, 1, 10)
    feed(path, ends.header(b"", grant, length=length) + b"x" * 64)
    assert transport.aborted
    assert len(ends.lost) == 1
    assert isinstance(ends.arrived[1].error, NodeLost)


def test_the_same_grant_is_answered_once() -> None:
    path, transport, ends = make()
    expect(path, ends, 1, 3)
    feed(path, ends.header(b"abc", 1) + b"abc" + ends.header(b"abc", 1))
    assert ends.arrived[1] == Arrival(3)
    assert transport.aborted


def test_a_void_answer_carries_its_reason() -> None:
    path, _, ends = make()
    expect(path, ends, 1, 3)
    feed(path, ends.header(b"", 1, code=3))
    assert isinstance(ends.arrived[1].error, DataError)
    assert not ends.lost


@pytest.mark.parametrize("read", [0, 5, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 99])
def test_what_was_given_up_is_read_elsewhere(read: int) -> None:
    path, _, ends = make()
    content = bytes(range(1, 101))
    buffer = expect(path, ends, 1, 100)
    stream = ends.header(content, 1) + content
    feed(path, stream[:read])
    path.give_up(1)
    assert isinstance(ends.arrived[1].error, Cancelled)
    buffer[:] = bytes(100)
    after = expect(path, ends, 2, 3)
    feed(path, stream[read:] + ends.header(b"abc", 2) + b"abc")
    assert not any(buffer), "the buffer is somebody else's by now"
    assert after == b"abc"
    path.give_up(1)
    assert not ends.lost


def test_what_is_given_up_may_never_come() -> None:
    path, _, ends = make()
    expect(path, ends, 1, 3)
    path.give_up(1)
    feed(path, ends.header(b"", 1, code=1))
    assert ends.arrived[1].error is not None
    assert not ends.lost


def test_sending_tells_when_the_buffer_is_free() -> None:
    path, transport, ends = make(FakeTransport(room=50))
    for grant in (1, 2, 3):
        path.send(grant, memoryview(b"x" * 100), lambda error, grant=grant: ends.send(grant, error))  # type: ignore[misc]
    assert ends.sent == {}
    transport.drain()
    assert ends.sent == {1: None}
    path.take_back(3)
    path.take_back(2)
    assert isinstance(ends.sent[3], Cancelled)
    assert 2 not in ends.sent, "on its way already"
    path.void(3, 1)
    transport.drain()
    assert ends.sent[2] is None
    for callback in transport.due:
        callback()
    transport.drain()
    assert not ends.lost
    sent, position = [], 0
    while position < len(transport.written):
        block, end = transport.written[position : position + DATA_BYTES], position + DATA_BYTES
        ends.peer.incoming.check(block, transport.written[end : end + MAC_BYTES])
        data = decode_data(block)
        sent.append((data.grant, data.length))
        position = end + MAC_BYTES + data.length
    assert sent == [(1, 100), (2, 100), (3, 0)]


def test_the_end_of_the_connection_ends_everything_once() -> None:
    path, transport, ends = make(FakeTransport(room=0))
    expect(path, ends, 1, 3)
    path.send(2, memoryview(b"abc"), lambda error: ends.send(2, error))
    path.send(3, memoryview(b"abc"), lambda error: ends.send(3, error))
    path.connection_lost(None)
    path.close(NodeLost("again"))
    assert isinstance(ends.arrived[1].error, NodeLost)
    assert all(isinstance(ends.sent[grant], NodeLost) for grant in (2, 3))
    assert len(ends.lost) == 1
    assert transport.aborted
    late = expect(path, ends, 4, 3)
    path.send(5, memoryview(b"abc"), lambda error: ends.send(5, error))
    assert isinstance(ends.arrived[4].error, NodeLost)
    assert isinstance(ends.sent[5], NodeLost)
    assert not any(late)


def test_a_receiver_that_does_not_take_what_nobody_wants_to_send_is_lost() -> None:
    path, transport, ends = make(FakeTransport(room=50))
    path.send(1, memoryview(b"x" * 100), lambda error: ends.send(1, error))
    path.take_back(1)
    assert ends.sent == {}
    for callback in transport.due:
        callback()
    assert isinstance(ends.sent[1], NodeLost)
    assert len(ends.lost) == 1


def test_a_header_that_is_not_authentic_ends_the_connection() -> None:
    for forge in (
        lambda ends: bytes([1]) + ends.header(b"abc", 1)[1:],
        lambda ends: (ends.header(b"abc", 2), ends.header(b"abc", 1))[1],
        lambda ends: ends.header(b"abc", 1)[:-1] + b"?",
    ):
        path, transport, ends = make()
        into = expect(path, ends, 1, 3)
        feed(path, forge(ends) + b"abc")
        assert transport.aborted
        assert "not authentic" in str(ends.arrived[1].error)
        assert not any(into)
