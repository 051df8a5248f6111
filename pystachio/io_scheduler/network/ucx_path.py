"""Data over UCX: each grant is a tagged receive, posted before the grant is sent; headers go by the control connection.

UCX authenticates nobody and matches by tag alone, so tags are counted from a random 64-bit number that only the two
nodes know, and the bytes count only with their header, which is sealed like every frame; its checksum finds damage and
no intent, as with `tcp_path`. A posted receive cannot be taken back: a grant that nobody wants any more ends when the
sender has answered it, or with the connection.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from xxhash import xxh3_64_intdigest

from pystachio.errors import Cancelled, DataError, NodeLost, PystachioError
from pystachio.io_scheduler.core.request import PathTaken
from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.devices.ucx import UcxWorker
from pystachio.io_scheduler.network.data_path import Arrival, Arrived, Sent
from pystachio.io_scheduler.network.frames import Data, Frame
from pystachio.io_scheduler.network.links import Timers
from pystachio.io_scheduler.network.refusals import error_of

_NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class _Expected:
    buffer: Buffer
    arrived: Arrived
    has_landed: bool = False
    is_given_up: bool = False
    data: Data | None = None


class UcxPath:
    """`data_path.DataPath` on a UCX connection of its own; `lost` is told when it ends or breaks the rules."""

    taken = PathTaken.UCX

    def __init__(
        self,
        *,
        worker: UcxWorker,
        address: bytes,
        session: int,
        epoch: int,
        key: bytes,
        is_initiator: bool,
        node: str,
        timers: Timers,
        give_up_seconds: float,
        send_frame: Callable[[Frame], None],
        lost: Callable[[PystachioError], None],
    ) -> None:
        self._session = session
        self._epoch = epoch
        self._node = node
        self._timers = timers
        self._give_up_seconds = give_up_seconds
        self._send_frame = send_frame
        self._lost = lost
        self._error: PystachioError | None = None
        self._expected: dict[int, _Expected] = {}
        tags = (_first_tag(key, b"to the initiator"), _first_tag(key, b"to the listener"))
        self._receive_tags, self._send_tags = tags if is_initiator else tags[::-1]
        self._connection = worker.connect(address, partial(self._break, "the node's UCX connection is gone"))

    def expect(self, grant: int, buffer: Buffer, arrived: Arrived) -> None:
        if self._error is not None:
            arrived(Arrival(0, self._error))
            return
        self._expected[grant] = _Expected(buffer, arrived)
        self._connection.receive(buffer, _tag(self._receive_tags, grant), partial(self._land, grant))

    def give_up(self, grant: int) -> None:
        expected = self._expected.get(grant)
        if expected is not None and not expected.is_given_up:
            expected.is_given_up = True
            self._timers.call_later(self._give_up_seconds, partial(self._close_unanswered, grant))

    def take(self, data: Data) -> None:
        expected = self._expected.get(data.grant)
        if expected is None or expected.data is not None:
            self._break("a node sent data that nobody asked for")
            return
        expected.data = data
        self._finish(data.grant, expected)

    def send(self, grant: int, buffer: Buffer, sent: Sent) -> None:
        if self._error is not None:
            sent(self._error)
            return
        # The bytes go first: the receiver's UCX asks for them while their header is made.
        self._connection.send(buffer, _tag(self._send_tags, grant), sent)
        # Device memory is not read back for a checksum: what carries it has its own.
        checksum = xxh3_64_intdigest(buffer) if isinstance(buffer, memoryview) else None
        self._send_frame(Data(len(buffer), 0, checksum is not None, grant, self._session, self._epoch, checksum or 0))

    def take_back(self, grant: int) -> None:
        """UCX has it already."""

    def void(self, grant: int, code: int) -> None:
        if self._error is None:
            self._send_frame(Data(0, code, False, grant, self._session, self._epoch, 0))
            self._connection.send(_NOTHING, _tag(self._send_tags, grant), _ignore)

    def close(self, error: PystachioError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._connection.close()
        expected, self._expected = tuple(self._expected.values()), {}
        for place in expected:
            place.arrived(Arrival(0, error))

    def _land(self, grant: int, error: PystachioError | None) -> None:
        expected = self._expected.get(grant)
        if expected is None:
            return
        if error is not None:
            del self._expected[grant]
            expected.arrived(Arrival(0, self._error or error))
            return
        expected.has_landed = True
        self._finish(grant, expected)

    def _finish(self, grant: int, expected: _Expected) -> None:
        data = expected.data
        if data is None or not expected.has_landed:
            return
        del self._expected[grant]
        problem: PystachioError | None
        if expected.is_given_up:
            problem = Cancelled("the receiver gave the data up")
        elif data.length == 0:
            problem = error_of(data.code, "the sender gave the message up", self._node)
        else:
            problem = self._mismatch(data, expected.buffer)
        expected.arrived(Arrival(data.length, problem))

    def _mismatch(self, data: Data, buffer: Buffer) -> DataError | None:
        if data.session != self._session or data.epoch != self._epoch:
            return DataError(f"data of another session or epoch arrived: epoch {data.epoch}", node=self._node)
        if data.length != len(buffer):
            return DataError(f"data arrived cut: {data.length:,} of {len(buffer):,} bytes", node=self._node)
        if isinstance(buffer, memoryview) and (not data.is_checked or xxh3_64_intdigest(buffer) != data.checksum):
            return DataError("data arrived damaged: the checksum differs", node=self._node)
        return None

    def _close_unanswered(self, grant: int) -> None:
        if grant in self._expected:
            self._break("a node does not answer a grant that was given up")

    def _break(self, reason: str) -> None:
        if self._error is None:
            error = NodeLost(reason, node=self._node)
            self.close(error)
            self._lost(error)


def _first_tag(key: bytes, label: bytes) -> int:
    return int.from_bytes(hmac.digest(key, label, "sha256")[:8])


def _tag(first: int, grant: int) -> int:
    return (first + grant) % (1 << 64)


def _ignore(error: PystachioError | None) -> None:
    """Nobody waits for the end of a message without bytes."""
