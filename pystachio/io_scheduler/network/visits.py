"""Clients at a node: who has a token is let in, tells and is told bodies, and is no node.

def visited(visit: Visit) -> None:           # Network(visited=visited)
    visit.on_heard(lambda body: visit.tell(answer(visit.credential.role, body)))

async with await visit(host, port, token) as connection:
    connection.tell(b"question")
    answer = await connection.receive()
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from types import TracebackType

from pystachio.errors import InvalidRequest, NodeLost, PystachioError, ResourceExhausted, Unsupported
from pystachio.io_scheduler.network.bodies import BODY_BYTES
from pystachio.io_scheduler.network.conversation import Conversation
from pystachio.io_scheduler.network.frame_connection import FrameConnection
from pystachio.io_scheduler.network.frames import INSTANCE_BYTES, Role
from pystachio.io_scheduler.network.handshake import client_identity
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.links import Timers
from pystachio.io_scheduler.network.refusals import CLIENTS_SETTING, copy_of
from pystachio.io_scheduler.network.rendezvous import connect_frames, introduce, no_answer
from pystachio.io_scheduler.network.tls import TlsFiles, load
from pystachio.io_scheduler.network.tokens import Credential, Token, TokenRole, parse_token

HELD_BYTES = BODY_BYTES
"""A client that has so much to receive is not read to any more until it has received it."""


class Visit:
    """A client at this node. Everything is called on the loop."""

    def __init__(
        self,
        connection: FrameConnection,
        credential: Credential,
        *,
        limits: NetworkLimits,
        timers: Timers,
        clock: Callable[[], float],
        ended: Callable[[Visit], None],
    ) -> None:
        self.credential = credential
        self.address = connection.address
        self._clock = clock
        self._ended = ended
        self._on_heard: Callable[[bytes], None] | None = None
        self._on_closed: Callable[[PystachioError], None] | None = None
        self._conversation = Conversation(
            connection,
            limits=limits,
            timers=timers,
            longest=limits.visitor_body_bytes,
            heard=self._hear,
            ended=self._end,
            check=self._check,
        )

    def on_heard(self, callback: Callable[[bytes], None]) -> None:
        """For each body of the client. To be called before `visited` returns; a PystachioError ends the visit."""
        self._on_heard = callback

    def on_closed(self, callback: Callable[[PystachioError], None]) -> None:
        """Once, however the visit ends; at once, when it has ended."""
        self._on_closed = callback
        if self._conversation.error is not None:
            callback(self._conversation.error)

    def start(self) -> None:
        self._conversation.start()

    def tell(self, body: bytes) -> None:
        """In order, never waiting. Raises NodeLost when the client is gone, InvalidRequest for a body over 16 MiB.

        A client with more than 16 MiB waiting when it is told more is gone: who tells much waits until it is `drained`.
        """
        self._conversation.tell(body)

    async def drained(self) -> None:
        """Wait until the client has taken what it was told, but for a buffer's. Raises NodeLost when it is gone."""
        await self._conversation.drained()

    def close(self, reason: str) -> None:
        """The client is told the reason, but no body that is not `drained`. Idempotent."""
        self._conversation.close(reason)

    def _hear(self, body: bytes) -> None:
        if self._on_heard is None:
            raise InvalidRequest("nobody here listens to clients")
        self._on_heard(body)

    def _end(self, error: PystachioError) -> None:
        self._ended(self)
        if self._on_closed is not None:
            self._on_closed(error)

    def _check(self) -> None:
        self.credential.check(self._clock())


class Visits:
    """All clients of a node. `visited` is told of each; None refuses them."""

    def __init__(
        self,
        visited: Callable[[Visit], None] | None,
        *,
        limits: NetworkLimits,
        timers: Timers,
        clock: Callable[[], float],
    ) -> None:
        self._visited = visited
        self._limits = limits
        self._timers = timers
        self._clock = clock
        self._visits: set[Visit] = set()

    def __len__(self) -> int:
        return len(self._visits)

    def check(self, credential: Credential) -> None:
        """Whether this one may come in too: raises what to refuse it with.

        Nobody takes the whole room: neither who holds one token, nor those who only look.
        """
        if self._visited is None:
            raise Unsupported("clients at this node", hint="visit a node that serves")
        here = [visit.credential for visit in self._visits]
        room = self._limits.visitors
        _require_room(len(here), room, room, "too many clients at once")
        part = max(1, room // 2)
        _require_room(here.count(credential), part, room, "too many clients at once with the same token")
        if credential.role is TokenRole.OBSERVER:
            observers = sum(each.role is TokenRole.OBSERVER for each in here)
            _require_room(observers, part, room, "too many clients at once with observers' tokens")

    def admit(self, connection: FrameConnection, credential: Credential) -> None:
        """`check` was asked in the same turn of the loop."""
        assert self._visited is not None, "clients are served"
        visit = Visit(
            connection,
            credential,
            limits=self._limits,
            timers=self._timers,
            clock=self._clock,
            ended=self._visits.discard,
        )
        self._visits.add(visit)
        try:
            self._visited(visit)
        except PystachioError as error:
            visit.close(str(error))
        visit.start()

    def close(self, reason: str) -> None:
        for visit in tuple(self._visits):
            visit.close(reason)


def _require_room(taken: int, most: int, setting: int, message: str) -> None:
    if taken >= most:
        raise ResourceExhausted(
            f"{message}: {taken}", setting=CLIENTS_SETTING, value=setting, hint="close connections that are not used"
        )


class Visitor:
    """The client's end of a visit: `visit` makes it."""

    def __init__(self, connection: FrameConnection, *, limits: NetworkLimits, timers: Timers) -> None:
        self._received: deque[bytes] = deque()
        self._received_bytes = 0
        self._came = asyncio.Event()
        self._conversation = Conversation(
            connection,
            limits=limits,
            timers=timers,
            longest=BODY_BYTES,
            heard=self._hear,
            ended=self._end,
            check=_accept,
        )
        self._conversation.start()

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("the client leaves")
        await self._conversation.gone()

    def tell(self, body: bytes) -> None:
        """In order, never waiting. Raises NodeLost when the node is gone, InvalidRequest for a body over 16 MiB."""
        self._conversation.tell(body)

    async def drained(self) -> None:
        """Wait until the node has taken what it was told, but for a buffer's. Raises NodeLost when it is gone."""
        await self._conversation.drained()

    async def receive(self) -> bytes:
        """The next body. Raises NodeLost when there will be none: the node is gone, or has closed the connection."""
        while not self._received:
            if self._conversation.error is not None:
                raise copy_of(self._conversation.error)
            self._came.clear()
            await self._came.wait()
        body = self._received.popleft()
        self._received_bytes -= len(body)
        if self._received_bytes <= HELD_BYTES // 2:
            self._conversation.hold(False)
        return body

    def close(self, reason: str = "the client leaves") -> None:
        """Idempotent. What was told and not `drained` may not arrive."""
        self._conversation.close(reason)

    def _hear(self, body: bytes) -> None:
        self._received.append(body)
        self._received_bytes += len(body)
        self._came.set()
        if self._received_bytes > HELD_BYTES:
            self._conversation.hold(True)

    def _end(self, error: PystachioError) -> None:
        self._came.set()


async def visit(
    host: str,
    port: int,
    token: str | Token,
    *,
    tls: TlsFiles | None = None,
    limits: NetworkLimits | None = None,
) -> Visitor:
    """Be a client of the node that listens there.

    Raises NodeLost (nobody answers), Unauthorized (the token is malformed, expired, or of another cluster; whoever
    answers does not know it), ResourceExhausted (too many clients), InvalidRequest (TLS files, no clients there).
    """
    known = parse_token(token) if isinstance(token, str) else token
    limits = limits if limits is not None else NetworkLimits()
    context = None if tls is None else load(tls).connecting
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limits.handshake_seconds):
            connection = await connect_frames(host, port, "", context)
            try:
                await introduce(
                    connection,
                    client_identity(known, os.urandom(INSTANCE_BYTES)),
                    peer="",
                    role=Role.CLIENT,
                    credential=str(known.credential),
                )
            except BaseException:
                connection.fail(NodeLost("the connection was given up"))
                raise
    except TimeoutError as error:
        raise no_answer(host, port) from error
    return Visitor(connection, limits=limits, timers=loop)


def _accept() -> None:
    """A node needs no token."""
