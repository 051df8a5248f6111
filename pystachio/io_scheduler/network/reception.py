"""Where a node meets others: it listens, examines who comes, and goes to meet those it was told of."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import NamedTuple, cast

from pystachio.endpoint import Endpoint
from pystachio.errors import InternalError, InvalidRequest, NodeLost, PystachioError, Unauthorized
from pystachio.io_scheduler.devices.ucx import UcxWorker
from pystachio.io_scheduler.network.frame_connection import FrameConnection
from pystachio.io_scheduler.network.frames import Hello, Role
from pystachio.io_scheduler.network.handshake import Established, Identity
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.links import Timers
from pystachio.io_scheduler.network.rendezvous import (
    AlreadyConnected,
    MakePath,
    Meeting,
    connect_frames,
    examine,
    introduce,
    no_answer,
    tcp_path,
    ucx_path,
)
from pystachio.io_scheduler.network.tls import TlsArrival, TlsContexts, encrypt
from pystachio.io_scheduler.network.tokens import parse_credential
from pystachio.io_scheduler.network.visits import Visits


class Address(NamedTuple):
    host: str
    port: int


class Reception:
    """`admit` is called with each meeting of a node that came by itself; clients go to `visits`. `check` may refuse a
    node that has proved itself; `refuse` is told of whoever was refused, with its address. `knows` says whether a node,
    in this life of it, is connected already.

    `clock` is of Unix time. `worker` carries the data where UCX does.
    """

    def __init__(
        self,
        identity: Callable[[], Identity],
        *,
        limits: NetworkLimits,
        timers: Timers,
        check: Callable[[Hello], None],
        knows: Callable[[str, bytes], bool],
        admit: Callable[[Meeting], None],
        refuse: Callable[[str, PystachioError], None] | None = None,
        visits: Visits,
        clock: Callable[[], float],
        tls: TlsContexts | None,
    ) -> None:
        self.worker: UcxWorker | None = None
        self.refused = 0
        self._identity = identity
        self._limits = limits
        self._timers = timers
        self._check_node = check
        self._knows = knows
        self._admit = admit
        self._refuse = refuse
        self._visits = visits
        self._clock = clock
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._strangers: dict[asyncio.Task[None], str] = {}
        """The examinations of who has not proved himself yet, the oldest first, and his address."""
        self._guests: set[asyncio.Task[None]] = set()
        """All of them, and those of who has, or was sent away."""
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
        make = partial(FrameConnection, self._welcome)
        if self._tls is None:
            self._server = await loop.create_server(make, host, port)
        else:
            self._server = await loop.create_server(partial(TlsArrival, self._welcome_encrypted), host, port)
        address = self.address
        assert address is not None, "it listens"
        return address

    async def connect(self, peer: str, host: str, port: int) -> Meeting:
        """Raises NodeLost (nobody answers, another epoch), Unauthorized (another secret, another node), and
        AlreadyConnected where the node has come here meanwhile: a connection that is in use is not replaced.
        """
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                return await self._meet(peer, host, port)
        except TimeoutError as error:
            raise no_answer(host, port, peer) from error

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
            tls = None if self._tls is None else self._tls.connecting
            opened.append(control := await connect_frames(host, port, peer, tls))
            established = await introduce(control, identity, peer=peer, role=Role.CONTROL)
            check = partial(self._require_unknown, established)
            if self.worker is not None:
                check()
                make = await self._ucx_path(self.worker, control, established, identity.epoch, is_initiator=True)
                return Meeting(established, control, None, True, make)
            opened.append(data := await connect_frames(host, port, peer, tls))
            name, session = established.node, established.session
            await introduce(data, identity, peer=name, role=Role.DATA, session=session, check=check)
            make = self._tcp_path(control, data, established, identity.epoch, is_initiator=True)
            return Meeting(established, control, data, True, make)
        except BaseException:
            for connection in opened:
                connection.fail(NodeLost("the connection was given up"))
            raise

    def _require_unknown(self, established: Established) -> None:
        """Both have gone to meet the other at once, as after a partition, and one was there first."""
        if self._knows(established.node, established.instance):
            raise AlreadyConnected(established.node)

    def _welcome(self, connection: FrameConnection) -> None:
        """Somebody has connected."""
        give_up = partial(connection.fail, NodeLost("the connection was given up"))
        self._take_in(self._examine(connection), connection.address, give_up)

    def _welcome_encrypted(self, taken: socket.socket) -> None:
        """Somebody has connected, who counts from now on, and is to begin with TLS."""
        self._take_in(self._encrypt(taken), _address_of(taken), taken.close)

    def _take_in(self, examination: Coroutine[object, object, None], address: str, give_up: Callable[[], None]) -> None:
        """`give_up` ends the connection of an examination that is cancelled, perhaps before it has begun."""
        if len(self._strangers) >= self._limits.strangers:
            # Who means well has said who he is within milliseconds: a crowd that says nothing keeps nobody out.
            oldest = next(iter(self._strangers))
            crowding = Unauthorized("too many connections at once that do not say who they are")
            self._note_refused(self._strangers.pop(oldest), crowding)
            oldest.cancel()
        guest = asyncio.get_running_loop().create_task(examination)
        self._strangers[guest] = address
        self._guests.add(guest)
        guest.add_done_callback(partial(self._let_go, give_up))

    def _let_go(self, give_up: Callable[[], None], guest: asyncio.Task[None]) -> None:
        self._strangers.pop(guest, None)
        self._guests.discard(guest)
        if guest.cancelled():
            give_up()

    async def _encrypt(self, taken: socket.socket) -> None:
        assert self._tls is not None, "it listens so"
        connection, address = FrameConnection(), _address_of(taken)
        try:
            await encrypt(taken, connection, self._tls, self._limits.handshake_seconds)
        except OSError as error:  # what TLS raises, too
            self._note_refused(address, _refusal_under_tls(error))
            return
        await self._examine(connection)

    async def _examine(self, connection: FrameConnection) -> None:
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                await self._receive(connection)
        except (PystachioError, TimeoutError) as error:
            refusal = error if isinstance(error, PystachioError) else NodeLost("a node said too little")
            self._note_refused(connection.address, refusal)
            connection.fail(refusal)
        except BaseException:
            connection.fail(InternalError("the connection was given up"))
            raise

    def _note_refused(self, address: str, refusal: PystachioError) -> None:
        self.refused += 1
        if self._refuse is not None:
            self._refuse(address, refusal)

    async def _receive(self, connection: FrameConnection) -> None:
        identity = self._identity()
        hello, established = await examine(connection, identity, now=self._clock(), check=self._check)
        self._strangers.pop(cast("asyncio.Task[None]", asyncio.current_task()), None)
        if established.credential is not None:
            self._visits.admit(connection, established.credential)
        elif hello.role == Role.DATA:
            self._hand_over(connection, (established.node, hello.session))
        elif self.worker is not None:
            make = await self._ucx_path(self.worker, connection, established, identity.epoch, is_initiator=False)
            self._admit(Meeting(established, connection, None, False, make))
        else:
            data = await self._data_connection(established)
            make = self._tcp_path(connection, data, established, identity.epoch, is_initiator=False)
            self._admit(Meeting(established, connection, data, False, make))

    def _check(self, hello: Hello) -> None:
        if hello.role == Role.CLIENT:
            self._visits.check(parse_credential(hello.credential))
        elif hello.role == Role.CONTROL:
            self._check_node(hello)

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

    def _tcp_path(
        self,
        control: FrameConnection,
        data: FrameConnection,
        established: Established,
        epoch: int,
        *,
        is_initiator: bool,
    ) -> MakePath:
        return tcp_path(
            control,
            data,
            established,
            epoch,
            is_initiator=is_initiator,
            timers=self._timers,
            give_up_seconds=self._limits.give_up_seconds,
        )

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


def _address_of(taken: socket.socket) -> str:
    """The other end, for messages; empty when it has gone already."""
    try:
        return str(Endpoint(*taken.getpeername()[:2]))
    except OSError:
        return ""


def _refusal_under_tls(error: OSError) -> PystachioError:
    """Whether it speaks no TLS of ours, or has only gone."""
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return Unauthorized(f"it does not begin with TLS of our authority: {error.reason or error}")
    return NodeLost(f"it has not ended its TLS handshake: {error}")
