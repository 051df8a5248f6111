"""Strangers, and insiders who know the secret, that say what the test says; and the node that they talk to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from xxhash import xxh3_64_intdigest

from pystachio.io_scheduler.network.frames import (
    DATA_BYTES,
    Carrier,
    Data,
    Frame,
    FrameReader,
    Heartbeat,
    Role,
    decode_data,
    encode,
    encode_data,
)
from pystachio.io_scheduler.network.handshake import Established, Identity, Initiator
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.network.reception import Address
from pystachio.io_scheduler.network.seal import MAC_BYTES, Seal, Seals, make_seals
from pystachio.io_scheduler.network.transports import TransportChoice
from tests.io_scheduler.network.two_nodes import SECRET, first_node, running_service

KEY = MessageKey("normal", "exchange", 0)


class Stranger:
    """A connection whose frames are what the test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seal: Seal | None = None
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader()
        self._arrived: list[Frame] = []

    def say(self, *frames: Frame) -> None:
        self.writer.write(b"".join(encode(frame, self.seal) for frame in frames))

    async def hear(self, kind: type[Any]) -> Any:
        """The next frame of this kind; others are dropped. EOFError when there will be none."""
        while True:
            while self._arrived:
                frame = self._arrived.pop(0)
                if isinstance(frame, kind):
                    return frame
            # One by one: what comes after the handshake is sealed.
            frame = self._frames.next()
            if frame is not None:
                self._arrived.append(frame)
                continue
            received = await self.reader.read(1 << 16)
            if not received:
                raise EOFError
            self._frames.add(received)

    def secure(self, seals: Seals) -> None:
        self.seal = seals.outgoing
        self._frames.unseal(seals.incoming)

    async def is_sent_away(self) -> bool:
        with suppress(ConnectionError):
            await self.reader.read()
        return True

    def leave(self) -> None:
        self.writer.transport.abort()


async def stranger(address: Address) -> Stranger:
    return Stranger(*await asyncio.open_connection(*address))


def identity(name: str = "second") -> Identity:
    return Identity(node=name, instance=os.urandom(16), epoch=1, carrier=Carrier.TCP, secret=SECRET.encode())


async def introduced(
    address: Address, who: Identity, role: Role, session: int = 0, credential: str = ""
) -> tuple[Stranger, Established]:
    """Raises what the handshake ends with."""
    connection = await stranger(address)
    initiator = Initiator(who, peer="first", role=role, session=session, nonce=os.urandom(32), credential=credential)
    try:
        connection.say(initiator.hello())
        connection.say(initiator.proof(await connection.hear(object)))
        established = initiator.established(await connection.hear(object))
    except BaseException:
        connection.leave()
        raise
    connection.secure(make_seals(established.key, b"frames", is_initiator=True))
    return connection, established


class Insider:
    """A node that has proved itself, with both connections, and does as the test says."""

    def __init__(self, control: Stranger, data: Stranger, established: Established) -> None:
        self.control = control
        self.data = data
        self.session = established.session
        self.seals = make_seals(established.key, b"data", is_initiator=True)

    def header(self, content: bytes, grant: int, **changes: Any) -> bytes:
        """The next one: each has its own place in the order."""
        data = Data(len(content), 0, True, grant, self.session, 1, xxh3_64_intdigest(content))
        block = encode_data(data._replace(**changes))
        return block + self.seals.outgoing.mac(block)

    async def hear_header(self) -> Data:
        block = await self.data.reader.readexactly(DATA_BYTES)
        self.seals.incoming.check(block, await self.data.reader.readexactly(MAC_BYTES))
        return decode_data(block)

    def answer(self, content: bytes, grant: int, **changes: Any) -> None:
        self.data.writer.write(self.header(content, grant, **changes) + content)

    async def beat(self) -> None:
        while True:
            self.control.say(Heartbeat())
            await asyncio.sleep(0.05)


@asynccontextmanager
async def victim(**limits: Any) -> AsyncIterator[tuple[Network, Address]]:
    """A node that listens; whatever was done to it, it still talks to an honest one at the end."""
    joined = asyncio.Event()

    def note(name: str) -> None:
        if name == "third":
            joined.set()

    async with running_service() as service, first_node(service, "TCP", joined=note, **limits) as network:
        address = await network.listen()
        yield network, address
        async with running_service() as other_service:
            honest = Network(
                node="third",
                service=other_service,
                secret=SECRET.encode(),
                transport=TransportChoice(Carrier.TCP, "asked for"),
                epoch=1,
            )
            async with honest:
                await honest.connect("first", *address)
                sending = asyncio.create_task(honest.send("first", KEY, memoryview(b"still there?")))
                await asyncio.wait_for(joined.wait(), 5)
                assert bytes(await network.receive("third", KEY)) == b"still there?"  # type: ignore[arg-type]
                await sending


@asynccontextmanager
async def intruder(address: Address, name: str) -> AsyncIterator[Insider]:
    who = identity(name)
    control, established = await introduced(address, who, Role.CONTROL)
    data, _ = await introduced(address, who, Role.DATA, established.session)
    evil = Insider(control, data, established)
    beat = asyncio.create_task(evil.beat())
    await control.hear(Heartbeat)
    try:
        yield evil
    finally:
        beat.cancel()
        control.leave()
        data.leave()


@asynccontextmanager
async def insider(**limits: Any) -> AsyncIterator[tuple[Network, Insider]]:
    limits = {"heartbeat_seconds": 0.1, "suspect_seconds": 0.5, "dead_seconds": 2.0, **limits}
    async with victim(**limits) as (network, address), intruder(address, "second") as evil:
        yield network, evil
