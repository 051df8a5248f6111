"""The steps in which two nodes come together: connections, handshakes, the making of their data path."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from pystachio.endpoint import Endpoint
from pystachio.errors import NodeLost, PystachioError, Unauthorized
from pystachio.io_scheduler.devices.ucx import UcxWorker
from pystachio.io_scheduler.network.data_path import DataPath
from pystachio.io_scheduler.network.frame_connection import FrameConnection
from pystachio.io_scheduler.network.frames import NONCE_BYTES, DataAddress, Frame, Hello, Refusal, Role
from pystachio.io_scheduler.network.handshake import Established, Identity, Initiator, Listener
from pystachio.io_scheduler.network.links import Timers
from pystachio.io_scheduler.network.refusals import code_of
from pystachio.io_scheduler.network.seal import make_seals
from pystachio.io_scheduler.network.tcp_path import TcpPath
from pystachio.io_scheduler.network.ucx_path import UcxPath

_CLOSED_UNDER_TLS = (
    "perhaps it does not take this end's certificate, or has too many connections at once: its log says which"
)
_CLOSED_WITHOUT_TLS = (
    "perhaps it uses TLS and this end does not (tls_certificate, tls_key and tls_authority under [cluster]), or it has "
    "too many connections at once: its log says which"
)

MakePath = Callable[[Callable[[PystachioError], None]], DataPath]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two nodes know each other and can exchange data: what a `peer.Peer` is made of. `data` is there for TCP only."""

    established: Established
    control: FrameConnection
    data: FrameConnection | None
    is_initiator: bool
    make_path: MakePath

    def close(self, reason: str) -> None:
        """Nothing comes of it."""
        self.control.close(reason)
        if self.data is not None:
            self.data.close(reason)


async def connect_frames(host: str, port: int, node: str, tls: ssl.SSLContext | None = None) -> FrameConnection:
    """Raises NodeLost when nobody listens there, Unauthorized for a certificate of another authority."""
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(FrameConnection, host, port, ssl=tls)
    except ssl.SSLCertVerificationError as error:
        raise Unauthorized(
            f"a node's certificate is not of our authority ({error.verify_message}): {Endpoint(host, port)}",
            hint="every certificate of a cluster is signed by the authority in its TLS settings",
            node=node,
        ) from error
    except (ssl.SSLError, ConnectionResetError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else "it closed the connection"
        raise NodeLost(
            f"whoever listens there does not speak TLS as this end does ({reason}): {Endpoint(host, port)}",
            hint="see that the address is a node's, and that both ends use TLS or neither does",
            node=node,
        ) from error
    except OSError as error:
        raise NodeLost(
            f"a node cannot be reached ({error}): {Endpoint(host, port)}",
            hint="see that the address is right, that a node runs there, and that no firewall is between",
            node=node,
        ) from error
    return connection


def no_answer(host: str, port: int, node: str = "") -> NodeLost:
    """For a handshake that has taken too long."""
    return NodeLost(
        f"a node does not answer: {Endpoint(host, port)}",
        hint="it may be stopped or very busy, or whoever listens there is no node",
        node=node,
    )


class AlreadyConnected(NodeLost):
    """The node that was to be met has come here meanwhile."""

    def __init__(self, node: str) -> None:
        super().__init__("the nodes are connected already", node=node)
        self.name = node


async def introduce(
    connection: FrameConnection,
    identity: Identity,
    *,
    peer: str,
    role: Role,
    session: int = 0,
    credential: str = "",
    check: Callable[[], None] | None = None,
) -> Established:
    """The initiator's side of the handshake. The connection is closed when it fails. `check` is called before the
    listener can believe that it has succeeded, and may raise.
    """
    nonce = os.urandom(NONCE_BYTES)
    initiator = Initiator(identity, peer=peer, role=role, session=session, nonce=nonce, credential=credential)
    try:
        connection.send(initiator.hello())
        proof = initiator.proof(await _first_answer(connection))
        if check is not None:
            check()
        connection.send(proof)
        established = initiator.established(await connection.receive())
    except PystachioError as error:
        connection.fail(error)
        raise
    connection.secure(make_seals(established.key, b"frames", is_initiator=True))
    return established


async def _first_answer(connection: FrameConnection) -> Frame:
    """Raises NodeLost; who has not even begun to speak cannot say what is wrong."""
    try:
        return await connection.receive()
    except NodeLost as error:
        if error.hint is None:
            error.hint = _CLOSED_UNDER_TLS if connection.is_encrypted else _CLOSED_WITHOUT_TLS
        raise


async def examine(
    connection: FrameConnection, identity: Identity, *, now: float, check: Callable[[Hello], None]
) -> tuple[Hello, Established]:
    """The listener's side; whoever fails is told why and disconnected. `check` may refuse who has proved himself.

    `now` is the Unix time. There is no other turn of the loop between the `check` and the return.
    """
    listener = Listener(identity, nonce=os.urandom(NONCE_BYTES), now=now)
    try:
        connection.send(listener.challenge(await connection.receive()))
        hello, welcome, established = listener.established(await connection.receive())
        check(hello)
    except PystachioError as error:
        connection.send(Refusal(code_of(error), str(error)))
        connection.close("refused")
        raise
    connection.send(welcome)
    connection.secure(make_seals(established.key, b"frames", is_initiator=False))
    return hello, established


def tcp_path(
    control: FrameConnection,
    data: FrameConnection,
    established: Established,
    epoch: int,
    *,
    is_initiator: bool,
    timers: Timers,
    give_up_seconds: float,
) -> MakePath:
    """The data connection's handshake is over; from here on it carries data. `established` is of the control's."""

    def make(lost: Callable[[PystachioError], None]) -> DataPath:
        path = TcpPath(
            session=established.session,
            epoch=epoch,
            seals=make_seals(established.key, b"data", is_initiator=is_initiator),
            node=established.node,
            timers=timers,
            give_up_seconds=give_up_seconds,
            flush=control.flush,
            lost=lost,
        )
        path.run(data.detach())
        return path

    return make


async def ucx_path(
    control: FrameConnection,
    established: Established,
    epoch: int,
    *,
    worker: UcxWorker,
    is_initiator: bool,
    timers: Timers,
    give_up_seconds: float,
) -> MakePath:
    """Exchange UCX's addresses over the control connection."""
    control.send(DataAddress(worker.address))
    answer = await control.receive()
    if not isinstance(answer, DataAddress):
        raise NodeLost("a node did not say where its UCX is", node=established.node)

    def make(lost: Callable[[PystachioError], None]) -> DataPath:
        return UcxPath(
            worker=worker,
            address=answer.address,
            session=established.session,
            epoch=epoch,
            key=established.key,
            is_initiator=is_initiator,
            node=established.node,
            timers=timers,
            give_up_seconds=give_up_seconds,
            send_frame=control.send,
            lost=lost,
        )

    return make
