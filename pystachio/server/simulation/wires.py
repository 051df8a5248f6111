"""A network in virtual time: connections between hosts as asyncio's transports, and what goes wrong on the way.

Bytes of one direction arrive in the order in which they were written, as TCP promises: a cut or a storm delays them,
and loses them only with their connection. What is on the way is bounded, so a receiver that does not read is felt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

WINDOW_BYTES = 256 << 10
"""On the way in one direction of a connection; what is written beyond waits at the sender."""
_PIECE_BYTES = 64 << 10
_HIGH_WATER = 64 << 10

Way = tuple[str, str]
"""From a host to another one."""


@dataclass(slots=True)
class Weather:
    """Of every way: a piece takes `latency_seconds`, up to `jitter_seconds` more, and its bytes' time on the wire."""

    latency_seconds: float = 0.0005
    jitter_seconds: float = 0.0005
    bytes_per_second: float = 200e6


@dataclass(slots=True, eq=False)
class SimulatedServer:
    """What `loop.create_server` returns, as far as a node asks it."""

    network: SimulatedNetwork
    address: tuple[str, int]
    make_protocol: Callable[[], asyncio.BaseProtocol]
    context: Context

    @property
    def sockets(self) -> tuple[SimulatedServer, ...]:
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        self.network.servers.pop(self.address, None)


@dataclass(eq=False)
class SimulatedNetwork:
    """All hosts. `cuts` are ways on which nothing arrives until they heal; `damaged` those whose next piece is changed
    on its way. `bytes_moved` counts what arrived."""

    loop: asyncio.AbstractEventLoop
    chance: Random
    weather: Weather = field(default_factory=Weather)
    cuts: set[Way] = field(default_factory=set)
    damaged: set[Way] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    servers: dict[tuple[str, int], SimulatedServer] = field(default_factory=dict)
    bytes_moved: int = 0
    damages: int = 0
    _transports: list[SimulatedTransport] = field(default_factory=list)
    _ports: int = 0
    _healed: asyncio.Event = field(default_factory=asyncio.Event)

    def serve(self, make_protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> SimulatedServer:
        if not port:
            self._ports += 1
            port = self._ports
        if (host, port) in self.servers:
            raise OSError(f"the address is in use: {host}:{port}")
        server = self.servers[host, port] = SimulatedServer(self, (host, port), make_protocol, copy_context())
        return server

    async def connect(
        self, source: str, make_protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As `loop.create_connection`. Raises OSError where nobody listens; a way that is cut keeps it waiting."""
        await asyncio.sleep(2 * self.delay(0))
        while self.is_cut(source, host) or self.is_cut(host, source):
            await self._healed.wait()
        server = self.servers.get((host, port))
        if server is None or source in self.dead or host in self.dead:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        near, far = SimulatedTransport(self, source, copy_context()), SimulatedTransport(self, host, server.context)
        near.other, far.other = far, near
        self._transports = [each for each in self._transports if not each.is_gone]
        self._transports += (near, far)
        protocol = make_protocol()
        far.begin(server.context.run(server.make_protocol))
        near.begin(protocol)
        await asyncio.sleep(0)  # the protocol is told of it first
        return near, protocol

    def is_cut(self, source: str, destination: str) -> bool:
        return (source, destination) in self.cuts

    def cut(self, ways: Iterable[Way]) -> None:
        self.cuts.update(ways)

    def heal(self, ways: Iterable[Way]) -> None:
        """What was held up arrives."""
        self.cuts.difference_update(ways)
        self._healed.set()
        self._healed = asyncio.Event()
        for transport in tuple(self._transports):
            transport.go_on()

    def reset(self, one: str, other: str) -> None:
        """Every connection between the two ends at both ends as one does whose peer is gone."""
        for transport in self._between(one, other):
            transport.reset()

    def kill(self, host: str) -> None:
        """The host's process is gone: the kernel closes what it had open, and nobody answers there any more."""
        self.dead.add(host)
        for address in [address for address in self.servers if address[0] == host]:
            del self.servers[address]
        for transport in tuple(self._transports):
            if transport.host == host:
                transport.abort()

    def revive(self, host: str) -> None:
        self.dead.discard(host)

    def delay(self, nbytes: int) -> float:
        weather = self.weather
        jitter = self.chance.random() * weather.jitter_seconds
        return weather.latency_seconds + jitter + nbytes / weather.bytes_per_second

    def _between(self, one: str, other: str) -> list[SimulatedTransport]:
        return [each for each in self._transports if each.host == one and each.other.host == other]


class SimulatedTransport(asyncio.Transport):
    """One end of a connection; `other` is the opposite one. The protocol's callbacks run in the context of its host."""

    other: SimulatedTransport

    def __init__(self, network: SimulatedNetwork, host: str, context: Context) -> None:
        super().__init__()
        self.host = host
        self.is_gone = False
        self._network = network
        self._context = context
        self._protocol: asyncio.BaseProtocol | None = None
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._is_full = False
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._under_way = 0
        self._on_the_way: deque[bytes | None] = deque()
        """In the order in which they were sent; None is the end of the stream."""
        self._last_arrival = 0.0
        self._arrived: deque[bytes | None] = deque()
        """What came and is not given to the protocol yet."""
        self._is_held = False
        self._is_closing = False
        self._has_begun = False

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._soon(self._made)

    def _made(self) -> None:
        if self._protocol is not None and not self.is_gone:
            self._protocol.connection_made(self)
            self._has_begun = True
            self._deliver()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.other.host, 0) if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "it has begun"
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low
        self._weigh()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    # Sending.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not len(data):
            return
        content = bytes(data)
        self._unsent.extend(content[at : at + _PIECE_BYTES] for at in range(0, len(content), _PIECE_BYTES))
        self._unsent_bytes += len(content)
        self._pump()
        self._weigh()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _pump(self) -> None:
        while self._unsent and self._under_way < WINDOW_BYTES and not self.is_gone:
            piece = self._unsent.popleft()
            self._unsent_bytes -= len(piece)
            self._under_way += len(piece)
            self._send(piece)
        if self._is_closing and not self._unsent and not self.is_gone:
            self._send(None)
            self._end(None)

    def _send(self, piece: bytes | None) -> None:
        network, way = self._network, (self.host, self.other.host)
        if piece and way in network.damaged:
            network.damaged.discard(way)
            network.damages += 1
            spoilt = bytearray(piece)
            spoilt[network.chance.randrange(len(spoilt))] ^= 1 << network.chance.randrange(8)
            piece = bytes(spoilt)
        arrival = max(self._last_arrival, network.loop.time() + network.delay(len(piece or b"")))
        self._last_arrival = arrival
        # Timers of one time ring in any order, bytes arrive in theirs.
        self._on_the_way.append(piece)
        network.loop.call_at(arrival, self._arrive)

    def _arrive(self) -> None:
        self.other._take(self._on_the_way.popleft())

    def _acknowledge(self, nbytes: int) -> None:
        self._under_way -= nbytes
        self._pump()
        self._weigh()

    def _weigh(self) -> None:
        """Tell the protocol when it has written enough, and when it may go on."""
        if self.is_gone or self._protocol is None:
            return
        if not self._is_full and self._unsent_bytes > self._high:
            self._is_full = True
            self._soon(self._tell_full)
        elif self._is_full and self._unsent_bytes <= self._low:
            self._is_full = False
            self._soon(self._tell_room)

    def _tell_full(self) -> None:
        cast(asyncio.Protocol, self._protocol).pause_writing()

    def _tell_room(self) -> None:
        cast(asyncio.Protocol, self._protocol).resume_writing()

    # Receiving.

    def pause_reading(self) -> None:
        self._is_held = True

    def resume_reading(self) -> None:
        self._is_held = False
        self._soon(self._deliver)

    def go_on(self) -> None:
        self._soon(self._deliver)

    def _take(self, piece: bytes | None) -> None:
        if not self.is_gone:
            self._arrived.append(piece)
            self._context.run(self._deliver)

    def _deliver(self) -> None:
        network = self._network
        while self._arrived and self._has_begun and not (self._is_held or self.is_gone):
            if network.is_cut(self.other.host, self.host):
                return
            piece = self._arrived.popleft()
            if piece is None:
                cast(asyncio.Protocol, self._protocol).eof_received()
                self._is_closing = True
                self._end(None)
                return
            network.bytes_moved += len(piece)
            self._give(piece)
            self.other._acknowledge(len(piece))

    def _give(self, piece: bytes) -> None:
        """Bytes to whichever protocol there is; it may change in between."""
        rest = memoryview(piece)
        while len(rest) and not self.is_gone:
            protocol = self._protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                room = memoryview(protocol.get_buffer(-1))
                count = min(len(room), len(rest))
                room[:count] = rest[:count]
                protocol.buffer_updated(count)
                rest = rest[count:]
            else:
                cast(asyncio.Protocol, protocol).data_received(bytes(rest))
                return

    # The end.

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._pump()

    def abort(self) -> None:
        """What was not sent is lost, and the other end finds the connection reset."""
        if not self.is_gone:
            self.lose(None)
            self._network.loop.call_later(self._network.delay(0), self._reset_other)

    def reset(self) -> None:
        """As if somebody on the way had ended it."""
        if not self.is_gone:
            self.lose(ConnectionResetError("the connection was reset"))
            self._network.loop.call_later(self._network.delay(0), self._reset_other)

    def _reset_other(self) -> None:
        network = self._network
        if network.is_cut(self.host, self.other.host):
            network.loop.call_later(0.1, self._reset_other)
        else:
            self.other.lose(ConnectionResetError("the connection was reset"))

    def lose(self, error: Exception | None) -> None:
        self._is_closing = True
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self.is_gone:
            return
        self.is_gone = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._arrived.clear()
        self._network.loop.call_soon(self._tell_lost, error, context=self._context)

    def _tell_lost(self, error: Exception | None) -> None:
        if self._protocol is not None and self._has_begun:
            self._protocol.connection_lost(error)

    def _soon(self, callback: Callable[[], None]) -> None:
        self._network.loop.call_soon(self._unless_gone, callback, context=self._context)

    def _unless_gone(self, callback: Callable[[], None]) -> None:
        if not self.is_gone:
            callback()
