"""A connection that carries frames, until the handshake is over one by one, then by call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from pystachio.errors import NodeLost, PystachioError
from pystachio.io_scheduler.network.frames import Frame, FrameReader, Goodbye, encode

EARLY_FRAMES = 16
"""More than anybody has to say before he is known."""
UNSENT_BYTES = 16 << 20
"""A peer that lets so many bytes of control frames wait does not read them."""
LINGER_SECONDS = 1.0
"""For the last words of a connection that is closed."""


class FrameConnection(asyncio.Protocol):
    """Frames between two nodes. Everything is called on the loop; after `close` nothing is delivered any more."""

    def __init__(self, accepted: Callable[[FrameConnection], None] | None = None) -> None:
        """`accepted` is called when somebody has connected, for a listener's side."""
        self._accepted = accepted
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._early: deque[Frame] = deque()
        self._frame_came = asyncio.Event()
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
        return "" if self._transport is None else str(self._transport.get_extra_info("peername"))

    def send(self, frame: Frame) -> None:
        """Without effect when the connection is gone: whoever must know is told by `lost`."""
        if self._transport is None or self._error is not None:
            return
        self._transport.write(encode(frame))
        if self._transport.get_write_buffer_size() > UNSENT_BYTES:
            self.fail(NodeLost("a node does not read its control connection"))

    async def receive(self) -> Frame:
        """The next frame of the handshake. Raises NodeLost when the connection is gone."""
        while not self._early:
            if self._error is not None:
                raise self._error
            self._frame_came.clear()
            await self._frame_came.wait()
        return self._early.popleft()

    def attach(self, handle: Callable[[Frame], None], lost: Callable[[PystachioError], None]) -> None:
        """The handshake is over: every frame goes to `handle`, the connection's end to `lost`, once."""
        self._handle, self._lost = handle, lost
        while self._early and self._error is None:
            handle(self._early.popleft())
        if self._error is not None:
            self._tell_lost()

    def detach(self) -> asyncio.Transport:
        """The transport, for a protocol that is not of frames; the peer has said nothing more yet."""
        if self._transport is None or self._error is not None or self._early or not self._reader.is_empty:
            raise self._error or NodeLost("a node sent data before it could have been asked for")
        return self._transport

    def close(self, reason: str) -> None:
        """Say why, as far as the peer still reads, and end."""
        if self._transport is not None and self._error is None:
            self._transport.write(encode(Goodbye(reason)))
            self._handle = self._lost = None
            self._error = NodeLost(f"the connection was closed: {reason}")
            self._transport.close()
            # A peer that does not read would keep it open.
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def fail(self, error: PystachioError) -> None:
        """End at once; what the peer still sends is not read, what it has not read is lost."""
        if self._error is not None:
            return
        self._error = error
        if self._transport is not None:
            self._transport.abort()
        self._frame_came.set()
        self._tell_lost()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        if self._accepted is not None:
            self._accepted(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
                if self._error is not None:
                    return
        except PystachioError as error:
            self.fail(NodeLost(f"a node broke the protocol: {error.message}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(NodeLost(f"a node closed the connection{f' ({exc})' if exc is not None else ''}"))

    def _take(self, frame: Frame) -> None:
        if self._handle is not None:
            self._handle(frame)
        elif len(self._early) < EARLY_FRAMES:
            self._early.append(frame)
            self._frame_came.set()
        else:
            self.fail(NodeLost("a node talks before it is known"))

    def _tell_lost(self) -> None:
        if self._lost is not None and self._error is not None:
            lost, self._lost, self._handle = self._lost, None, None
            lost(self._error)
