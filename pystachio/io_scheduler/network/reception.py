"""Where a node meets others: it listens, examines who comes, and goes to meet those it was told of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from pystachio.errors import InternalError, InvalidRequest, NodeLost, PystachioError, Unauthorized
from pystachio.io_scheduler.devices.ucx import UcxWorker
from pystachio.io_scheduler.network.frame_connection import FrameConnection
from pystachio.io_scheduler.network.frames import Role
from pystachio.io_scheduler.network.handshake import Established, Identity
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.links import Timers
from pystachio.io_scheduler.network.rendezvous import (
    MakePath,
    Meeting,
    connect_frames,
    examine,
    introduce,
    tcp_path,
    ucx_path,
)


class Address(NamedTuple):
    host: str
    port: int


class Reception:
    """`admit` is called with each meeting of a node that came by itself. `worker` carries the data where UCX does."""

    def __init__(
        self,
        identity: Callable[[], Identity],
        *,
        limits: NetworkLimits,
        timers: Timers,
        admit: Callable[[Meeting], None],
    ) -> None:
        self.worker: UcxWorker | None = None
        self.refused = 0
        self._identity = identity
        self._limits = limits
        self._timers = timers
        self._admit = admit
        self._server: asyncio.Server | None = None
        self._guests: set[asyncio.Task[None]] = set()
        self._data_awaited: dict[tuple[str, int], asyncio.Future[FrameConnection]] = {}

    @property
    def address(self) -> Address | None:
        """Where it listens."""
        if self._server is None:
            return None
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def listen(self, host: str, port: int) -> Address:
        if not host:
            raise InvalidRequest("a node listens on an address that is given, not on all interfaces")
        if self._server is not None:
            raise InternalError("a node listens once")
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: FrameConnection(self._welcome), host, port)
        address = self.address
        assert address is not None, "it listens"
        return address

    async def connect(self, peer: str, host: str, port: int) -> Meeting:
        """Raises NodeLost (nobody answers, another epoch), Unauthorized (another secret, another node)."""
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                return await self._meet(peer, host, port)
        except TimeoutError as error:
            raise NodeLost(f"a node does not answer: {host}:{port}", node=peer) from error

    async def close(self) -> None:
        """Nobody comes any more; who is being examined is sent away."""
        if self._server is not None:
            self._server.close()
        guests = tuple(self._guests)
        for guest in guests:
            guest.cancel()
        await asyncio.gather(*guests, return_exceptions=True)

    async def _meet(self, peer: str, host: str, port: int) -> Meeting:
        identity = self._identity()
        opened: list[FrameConnection] = []
        try:
            opened.append(control := await connect_frames(host, port, peer))
            established = await introduce(control, identity, peer=peer, role=Role.CONTROL)
            if self.worker is not None:
                make = await self._ucx_path(self.worker, control, established, identity.epoch, is_initiator=True)
                return Meeting(established, control, None, True, make)
            opened.append(data := await connect_frames(host, port, peer))
            await introduce(data, identity, peer=peer, role=Role.DATA, session=established.session)
            return Meeting(established, control, data, True, self._tcp_path(data, established, identity.epoch))
        except BaseException:
            for connection in opened:
                connection.fail(NodeLost("the connection was given up"))
            raise

    def _welcome(self, connection: FrameConnection) -> None:
        """Somebody has connected."""
        if len(self._guests) >= self._limits.strangers:
            self.refused += 1
            connection.fail(NodeLost("too many connections at once"))
            return
        guest = asyncio.get_running_loop().create_task(self._examine(connection))
        self._guests.add(guest)
        guest.add_done_callback(self._guests.discard)

    async def _examine(self, connection: FrameConnection) -> None:
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                await self._receive(connection)
        except (PystachioError, TimeoutError) as error:
            self.refused += 1
            connection.fail(error if isinstance(error, PystachioError) else NodeLost("a node said too little"))
        except BaseException:
            connection.fail(InternalError("the connection was given up"))
            raise

    async def _receive(self, connection: FrameConnection) -> None:
        identity = self._identity()
        hello, established = await examine(connection, identity)
        if hello.role == Role.DATA:
            self._hand_over(connection, (established.node, hello.session))
        elif self.worker is not None:
            make = await self._ucx_path(self.worker, connection, established, identity.epoch, is_initiator=False)
            self._admit(Meeting(established, connection, None, False, make))
        else:
            data = await self._data_connection(established)
            make = self._tcp_path(data, established, identity.epoch)
            self._admit(Meeting(established, connection, data, False, make))

    def _hand_over(self, connection: FrameConnection, name: tuple[str, int]) -> None:
        """To the control connection of the same session, which waits for it."""
        awaited = self._data_awaited.get(name)
        if awaited is None or awaited.done():
            raise Unauthorized("a data connection of no known session")
        awaited.set_result(connection)

    async def _data_connection(self, established: Established) -> FrameConnection:
        name = (established.node, established.session)
        awaited: asyncio.Future[FrameConnection] = asyncio.get_running_loop().create_future()
        self._data_awaited[name] = awaited
        try:
            return await awaited
        finally:
            del self._data_awaited[name]

    def _tcp_path(self, data: FrameConnection, established: Established, epoch: int) -> MakePath:
        patience = self._limits.give_up_seconds
        return tcp_path(data, established, epoch, timers=self._timers, give_up_seconds=patience)

    async def _ucx_path(
        self, worker: UcxWorker, control: FrameConnection, established: Established, epoch: int, *, is_initiator: bool
    ) -> MakePath:
        return await ucx_path(
            control,
            established,
            epoch,
            worker=worker,
            is_initiator=is_initiator,
            timers=self._timers,
            give_up_seconds=self._limits.give_up_seconds,
        )
