"""Data over a TCP connection of its own: headers, each followed by its bytes, received straight into their buffer.

The control connection is another one, so that a grant or a heartbeat never waits behind bulk data.

Headers are sealed (`seal`): nobody else can put one there, change one, or send one again. Their bytes are not. XXH3
finds damage and no intent: who can change what passes on the network can change bytes so that the checksum still fits.
Where that must not be possible, use TLS.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from xxhash import xxh3_64

from pystachio.errors import Cancelled, DataError, NodeLost, PystachioError, Unsupported
from pystachio.io_scheduler.core.request import PathTaken
from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.network.data_path import Arrival, Arrived, Sent
from pystachio.io_scheduler.network.frames import DATA_BYTES, Data, decode_data, encode_data
from pystachio.io_scheduler.network.links import Timers
from pystachio.io_scheduler.network.refusals import error_of
from pystachio.io_scheduler.network.seal import MAC_BYTES, Seals
from pystachio.io_scheduler.network.unsent import UnsentLimit

TURN_BYTES = 2 << 20
"""Event loops read on as long as bytes are there, up to 32 times: after so many, what follows from them, and others'
frames, have a turn. One for each message of 1 MiB took a tenth more of its receiver's processor time."""
_SINK_BYTES = 64 << 10
_HEADER_BYTES = DATA_BYTES + MAC_BYTES


@dataclass(slots=True, eq=False)
class _Expected:
    """A grant's place. `arrived` is None once nobody wants the bytes, which then go nowhere."""

    buffer: memoryview
    length: int
    arrived: Arrived | None


@dataclass(slots=True, eq=False)
class _Outgoing:
    data: Data
    buffer: memoryview
    sent: Sent


class TcpPath(asyncio.BufferedProtocol):
    """`data_path.DataPath` on a connection whose handshake is over; `lost` is told when it ends or breaks the rules."""

    taken = PathTaken.TCP

    def __init__(
        self,
        *,
        session: int,
        epoch: int,
        seals: Seals,
        node: str,
        timers: Timers,
        give_up_seconds: float,
        flush: Callable[[], None],
        lost: Callable[[PystachioError], None],
    ) -> None:
        """`flush` sends what waits to be sent on the control connection: nothing waits for data to be written."""
        self._session = session
        self._epoch = epoch
        self._seals = seals
        self._node = node
        self._timers = timers
        self._give_up_seconds = give_up_seconds
        self._flush = flush
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._unsent = UnsentLimit(None, 0.0)
        self._error: PystachioError | None = None
        self._expected: dict[int, _Expected] = {}
        self._queue: deque[_Outgoing] = deque()
        self._writing: _Outgoing | None = None
        self._header = bytearray(_HEADER_BYTES)
        self._sink = memoryview(bytearray(_SINK_BYTES))
        self._filled = 0
        self._data: Data | None = None
        self._target: _Expected | None = None
        self._problem: PystachioError | None = None
        self._checksum = xxh3_64()
        self._read_in_turn = 0

    def run(self, transport: asyncio.Transport) -> None:
        """Take the connection over from the handshake."""
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        self._unsent = UnsentLimit(transport.get_extra_info("socket"), self._timers.time())
        transport.set_protocol(self)

    # Receiving.

    def expect(self, grant: int, buffer: Buffer, arrived: Arrived) -> None:
        if self._error is not None or not isinstance(buffer, memoryview):
            arrived(
                Arrival(
                    0,
                    self._error
                    or Unsupported(
                        "receiving into device memory over TCP", hint="receive into host memory, or use UCX"
                    ),
                )
            )
            return
        self._expected[grant] = _Expected(buffer, len(buffer), arrived)

    def give_up(self, grant: int) -> None:
        expected = self._expected.get(grant)
        if expected is None or expected.arrived is None:
            return
        # From here on the event loop reads this grant's bytes into the sink.
        arrived, expected.arrived, expected.buffer = expected.arrived, None, self._sink
        arrived(Arrival(0, Cancelled("the receiver gave the data up")))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._data is None:
            return memoryview(self._header)[self._filled :]
        if self._target is None or self._target.arrived is None:
            return self._sink[: self._data.length - self._filled]
        return self._target.buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        start, self._filled = self._filled, self._filled + nbytes
        if self._data is None:
            if self._filled == _HEADER_BYTES:
                self._filled = 0
                self._open_header()
            return
        if self._target is not None and self._target.arrived is not None:
            # While the bytes are in the processor's cache.
            self._checksum.update(self._target.buffer[start : self._filled])
        if self._filled == self._data.length:
            self._end(self._data)

    def take(self, data: Data) -> None:
        self._break("a node sent data without their bytes")

    def _open_header(self) -> None:
        header = self._header[:DATA_BYTES]
        try:
            self._seals.incoming.check(header, self._header[DATA_BYTES:])
        except DataError as error:
            self._break(f"a node broke the protocol: {error.message}")
            return
        self._begin(decode_data(header))

    def _begin(self, data: Data) -> None:
        expected = self._expected.get(data.grant)
        if expected is None:
            self._break("a node sent data that nobody asked for")
        elif data.length > expected.length:
            self._break(f"a node sent more than it was asked for: {data.length:,} of {expected.length:,} bytes")
        elif data.length == 0:
            del self._expected[data.grant]
            _tell(expected, Arrival(0, error_of(data.code, "the sender gave the message up", self._node)))
        else:
            self._data, self._problem = data, self._mismatch(data, expected)
            self._target = expected if self._problem is None else None
            self._checksum.reset()

    def _mismatch(self, data: Data, expected: _Expected) -> DataError | None:
        if data.session != self._session or data.epoch != self._epoch:
            return DataError(f"data of another session or epoch arrived: epoch {data.epoch}", node=self._node)
        if data.length != expected.length:
            return DataError(f"data arrived cut: {data.length:,} of {expected.length:,} bytes", node=self._node)
        return None

    def _end(self, data: Data) -> None:
        expected = self._expected.pop(data.grant)
        problem, self._data, self._target, self._filled = self._problem, None, None, 0
        if problem is None and (not data.is_checked or self._checksum.intdigest() != data.checksum):
            problem = DataError("data arrived damaged: the checksum differs", node=self._node)
        _tell(expected, Arrival(data.length, problem))
        self._read_in_turn += data.length
        if self._read_in_turn >= TURN_BYTES:
            self._let_loop_turn()

    def _let_loop_turn(self) -> None:
        self._read_in_turn = 0
        if self._error is None and self._transport is not None:
            self._transport.pause_reading()
            self._timers.call_later(0.0, self._read_on)

    def _read_on(self) -> None:
        if self._error is None and self._transport is not None:
            self._transport.resume_reading()

    # Sending.

    def send(self, grant: int, buffer: Buffer, sent: Sent) -> None:
        if self._error is not None or not isinstance(buffer, memoryview):
            sent(
                self._error
                or Unsupported("sending from device memory over TCP", hint="copy it to host memory, or use UCX")
            )
            return
        checksum = xxh3_64(buffer).intdigest()
        data = Data(len(buffer), 0, True, grant, self._session, self._epoch, checksum)
        self._queue.append(_Outgoing(data, buffer, sent))
        self._write_queued()

    def take_back(self, grant: int) -> None:
        writing = self._writing
        if writing is not None and writing.data.grant == grant:
            self._timers.call_later(self._give_up_seconds, partial(self._close_unread, writing))
        for outgoing in self._queue:
            if outgoing.data.grant == grant:
                self._queue.remove(outgoing)
                outgoing.sent(Cancelled("the sender gave the data up"))
                return

    def _close_unread(self, outgoing: _Outgoing) -> None:
        if self._writing is outgoing:
            self._break("a node does not read its data connection")

    def void(self, grant: int, code: int) -> None:
        # Headers alone are few and small: the transport may buffer them.
        if self._error is None and self._transport is not None:
            data = Data(0, code, False, grant, self._session, self._epoch, 0)
            if self._writing is None:
                self._transport.write(self._seal(data))
            else:
                self._queue.append(_Outgoing(data, memoryview(b""), _ignore))

    def pause_writing(self) -> None:
        """What the kernel did not take waits in the transport; `_write_queued` sees it."""

    def resume_writing(self) -> None:
        if self._writing is not None:
            done, self._writing = self._writing, None
            done.sent(None)
        self._write_queued()

    def _write_queued(self) -> None:
        transport = self._transport
        while self._queue and self._writing is None and transport is not None:
            self._flush()
            if self._error is not None:
                return  # the control connection ended at it, and this one with it
            outgoing = self._queue.popleft()
            self._writing = outgoing
            self._unsent.note(outgoing.data.length, self._timers.time())
            transport.writelines((self._seal(outgoing.data), outgoing.buffer))
            if transport.get_write_buffer_size() == 0 and self._writing is outgoing:
                self._writing = None
                outgoing.sent(None)

    def _seal(self, data: Data) -> bytes:
        """The header, as it is written: what is taken back before has no turn."""
        header = encode_data(data)
        return header + self._seals.outgoing.mac(header)

    # The end.

    def close(self, error: PystachioError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._transport is not None:
            self._transport.abort()
        self._target = None
        expected, self._expected = tuple(self._expected.values()), {}
        queued = (*((self._writing,) if self._writing is not None else ()), *self._queue)
        self._queue.clear()
        self._writing = None
        for place in expected:
            _tell(place, Arrival(0, error))
        for outgoing in queued:
            outgoing.sent(error)

    def eof_received(self) -> None:
        """The transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(f"a node closed the data connection{f' ({exc})' if exc is not None else ''}")

    def _break(self, reason: str) -> None:
        if self._error is None:
            error = NodeLost(reason, node=self._node)
            self.close(error)
            self._lost(error)


def _tell(expected: _Expected, arrival: Arrival) -> None:
    arrived, expected.arrived = expected.arrived, None
    if arrived is not None:
        arrived(arrival)


def _ignore(error: PystachioError | None) -> None:
    """Nobody waits for the end of a header."""
