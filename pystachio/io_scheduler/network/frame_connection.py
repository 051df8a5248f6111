"""A connection that carries frames, until the handshake is over one by one, then by call."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from pystachio.endpoint import Endpoint
from pystachio.errors import NodeLost, PystachioError
from pystachio.io_scheduler.network.frames import PART_BYTES, BodyPart, Frame, FrameReader, Goodbye, encode
from pystachio.io_scheduler.network.refusals import copy_of
from pystachio.io_scheduler.network.seal import Seal, Seals

EARLY_BYTES = 64 << 10
"""More than anybody has to say before he is known; of those who are, the rest waits until they are listened to."""
UNSENT_BYTES = 16 << 20
UNREAD_SECONDS = 4.0
"""A peer that lets more than so many bytes wait, and has taken none of them for so long, does not read them."""
MOST_UNSENT_BYTES = 64 << 20
"""Nobody is told so much faster than he reads."""
BUFFERED_BYTES = 64 << 10
"""Of bodies, in the transport: any other frame waits behind so many at most, and as many in the kernel."""
TURN_PARTS = 16
"""Of bodies, in one turn of the loop: the frames of others must not wait for long either."""
LINGER_SECONDS = 1.0
"""For the last words of a connection that is closed."""


class FrameConnection(asyncio.Protocol):
    """Frames between two nodes. Everything is called on the loop; after `close` nothing is delivered any more."""

    def __init__(self, accepted: Callable[[FrameConnection], None] | None = None) -> None:
        """`accepted` is called when somebody has connected, for a listener's side."""
        self._accepted = accepted
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._seal: Seal | None = None
        self._frames: list[bytes] = []
        self._bodies: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._taken_at = 0.0
        """When the last of what waits was taken, or the first of it came."""
        self._is_paused = False
        self._is_due = False
        self._is_held = False
        self._frame_came = asyncio.Event()
        self._room_came = asyncio.Event()
        self._gone = asyncio.Event()
        self._handle: Callable[[Frame], None] | None = None
        self._lost: Callable[[PystachioError], None] | None = None
        self._error: PystachioError | None = None

    @property
    def error(self) -> PystachioError | None:
        """Why the connection is no more."""
        return self._error

    @property
    def address(self) -> str:
        """The other end, for messages."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(Endpoint(*name[:2])) if name else ""

    @property
    def is_encrypted(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    @property
    def is_drained(self) -> bool:
        """Whether everything that was told has gone, but for what the kernel and one buffer hold."""
        return not (self._bodies or self._is_paused)

    def send(self, frame: Frame) -> None:
        """Without effect when the connection is gone: whoever must know is told by `lost`.

        After the handshake, what is sent in one turn of the loop goes together: each write wakes the other end.
        """
        if self._transport is None or self._error is not None:
            return
        self._frames.append(encode(frame, self._seal))
        if self._handle is None:
            self.flush()
        elif len(self._frames) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def tell(self, body: bytes) -> None:
        """In order, in parts, as the other end reads them; frames that are sent go before what still waits."""
        if self._error is not None:
            return
        now = asyncio.get_running_loop().time()
        if not self._bodies:
            self._taken_at = now
        is_unread = self._waiting_bytes > UNSENT_BYTES and now - self._taken_at > UNREAD_SECONDS
        if is_unread or self._waiting_bytes > MOST_UNSENT_BYTES:
            self.fail(NodeLost("a node does not read what it is told"))
            return
        self._bodies.append(memoryview(body))
        self._waiting_bytes += len(body)
        if not self._is_due:
            self._write_parts()

    async def drained(self) -> None:
        """Wait until `is_drained`. Raises why the connection is no more."""
        while self._error is None and not self.is_drained:
            self._room_came.clear()
            await self._room_came.wait()
        if self._error is not None:
            raise copy_of(self._error)

    async def receive(self) -> Frame:
        """The next frame of the handshake. Raises NodeLost when the connection is gone."""
        while True:
            try:
                frame = self._reader.next()
            except PystachioError as error:
                # Whoever listens at a port that was mistyped has its own way to begin.
                stranger = _breach(error) if self._seal is not None else _no_node(self.address, error)
                self.fail(stranger)
                raise stranger from error
            if frame is not None:
                return frame
            if self._error is not None:
                raise self._error
            self._frame_came.clear()
            await self._frame_came.wait()

    def secure(self, seals: Seals) -> None:
        """Both have proved themselves: every frame from here on, either way, is sealed."""
        self._seal = seals.outgoing
        self._reader.unseal(seals.incoming)

    def attach(self, handle: Callable[[Frame], None], lost: Callable[[PystachioError], None]) -> None:
        """The handshake is over: every frame goes to `handle`, the connection's end to `lost`, once."""
        self._handle, self._lost = handle, lost
        self._deliver()
        if self._error is not None:
            self._tell_lost()
        elif self._is_held:
            self.hold(False)

    def hold(self, is_held: bool) -> None:
        """Whether nothing is read for now: the other end's bodies wait there."""
        if self._transport is not None and self._error is None and is_held is not self._is_held:
            self._is_held = is_held
            if is_held:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def detach(self) -> asyncio.Transport:
        """The transport, for a protocol that is not of frames; the peer has said nothing more yet."""
        if self._transport is None or self._error is not None or len(self._reader):
            raise self._error or NodeLost("a node sent data before it could have been asked for")
        self.flush()
        return self._transport

    def close(self, reason: str) -> None:
        """Say why, as far as the peer still reads, and end. What is told and not `drained` is not sent any more."""
        if self._transport is not None and self._error is None:
            self._handle = self._lost = None
            self._part(NodeLost(f"the connection was closed: {reason}"), reason)

    def fail(self, error: PystachioError) -> None:
        """End at once; what the peer still sends is not read, what it has not read is lost."""
        if self._error is not None:
            return
        self._end(error)
        if self._transport is not None:
            self._transport.abort()
        self._tell_lost()

    async def gone(self) -> None:
        """Wait until nothing is left of a connection that has ended, for `LINGER_SECONDS` at most."""
        if self._transport is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    await self._gone.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFERED_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, BUFFERED_BYTES)
        if self._accepted is not None:
            self._accepted(self)

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        self._reader.add(data)
        if self._handle is not None:
            self._deliver()
            return
        self._frame_came.set()
        if len(self._reader) > EARLY_BYTES:
            if self._seal is None:
                self.fail(NodeLost("a node talks before it is known"))
            else:
                self.hold(True)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if not self._is_due:
            self._write_parts()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self.fail(NodeLost(f"a node closed the connection{f' ({exc})' if exc is not None else ''}"))

    def _deliver(self) -> None:
        try:
            while self._handle is not None and self._error is None and (frame := self._reader.next()) is not None:
                self._handle(frame)
        except PystachioError as error:
            if self._error is None:
                breach = _breach(error)
                self._part(breach, breach.message)
                self._tell_lost()

    def flush(self) -> None:
        """Write what was sent in this turn now."""
        frames, self._frames = self._frames, []
        if self._transport is None or self._error is not None or not frames:
            return
        self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._transport.get_write_buffer_size() > UNSENT_BYTES:
            self.fail(NodeLost("a node does not read its control connection"))

    def _write_parts(self) -> None:
        self._is_due = False
        for _ in range(TURN_PARTS):
            if self._error is not None or self._is_paused:
                return
            if not self._bodies:
                break
            body = self._bodies[0]
            content, rest = body[:PART_BYTES], body[PART_BYTES:]
            if len(rest):
                self._bodies[0] = rest
            else:
                self._bodies.popleft()
            self._waiting_bytes -= len(content)
            self._taken_at = asyncio.get_running_loop().time()
            # At once, for the transport says when it has enough of them.
            self._frames.append(encode(BodyPart(len(rest), bytes(content)), self._seal))
            self.flush()
        if self._bodies:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._write_parts)
        elif self.is_drained:
            self._room_came.set()

    def _part(self, error: PystachioError, reason: str) -> None:
        """End, with a last word."""
        assert self._transport is not None, "somebody is there"
        self._frames.append(encode(Goodbye(reason), self._seal))
        self.flush()
        self._end(error)
        self._transport.close()
        # A peer that does not read would keep it open.
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def _end(self, error: PystachioError) -> None:
        self._error = error
        self._frames.clear()
        self._bodies.clear()
        self._waiting_bytes = 0
        self._frame_came.set()
        self._room_came.set()

    def _tell_lost(self) -> None:
        if self._lost is not None and self._error is not None:
            lost, self._lost, self._handle = self._lost, None, None
            lost(self._error)


def _no_node(address: str, error: PystachioError) -> NodeLost:
    return NodeLost(
        f"whoever is at {address} does not speak the protocol of PystachIO's nodes ({error.message})",
        hint="see that the address is a node's, and that both ends use TLS or neither does",
    )


def _breach(error: PystachioError) -> NodeLost:
    return NodeLost(f"a node broke the protocol: {error.message}")
