"""Clients at a node: let in by their token, told and heard in order, noticed when they are gone."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from pystachio.errors import DataError, InvalidRequest, NodeLost, PystachioError, ResourceExhausted, Unauthorized
from pystachio.io_scheduler.network.bodies import BODY_BYTES
from pystachio.io_scheduler.network.frames import Role
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.network.reception import Address
from pystachio.io_scheduler.network.tokens import Token, TokenRole, issue
from pystachio.io_scheduler.network.visits import Visit, visit
from tests.io_scheduler.network.insiders import identity, introduced
from tests.io_scheduler.network.two_nodes import SECRET, first_node, running_service

pytestmark = pytest.mark.timeout(30)

FAST = {"heartbeat_seconds": 0.05, "suspect_seconds": 0.2, "dead_seconds": 0.5}


def token(role: TokenRole = TokenRole.CLIENT, id: str = "alice", **options: Any) -> Token:
    return issue(SECRET.encode(), role, id, **options)


class Server:
    """A node whose visits the test holds; it says back what it hears."""

    def __init__(self, network: Network, address: Address, visits: asyncio.Queue[Visit]) -> None:
        self.network = network
        self.address = address
        self.visits = visits
        self.ends: asyncio.Queue[PystachioError] = asyncio.Queue()


@asynccontextmanager
async def server(echo: bool = True, **options: Any) -> AsyncIterator[Server]:
    visits: asyncio.Queue[Visit] = asyncio.Queue()

    def visited(visit: Visit) -> None:
        if echo:
            visit.on_heard(visit.tell)
        visit.on_closed(made.ends.put_nowait)
        visits.put_nowait(visit)

    async with running_service() as service, first_node(service, "TCP", visited=visited, **options) as network:
        made = Server(network, await network.listen(), visits)
        yield made
        async with asyncio.timeout(5):
            while network.statistics().visits:
                await made.ends.get()


@pytest.mark.parametrize("role", list(TokenRole))
async def test_a_client_tells_and_is_told_in_order(role: TokenRole) -> None:
    async with server() as node:
        async with await visit(*node.address, str(token(role, expires_at=4_000_000_000))) as client:
            guest = await node.visits.get()
            assert (guest.credential.role, guest.credential.id) == (role, "alice")
            assert node.network.statistics().visits == 1
            assert node.network.peers == ()
            for length in (0, 1, 100_000, 4 << 20):
                client.tell(bytes(length))
                await client.drained()
                assert await client.receive() == bytes(length)
            guest.tell(b"by the way")
            assert await client.receive() == b"by the way"
        assert "client leaves" in str(await node.ends.get())
        with pytest.raises(NodeLost):
            guest.tell(b"are you there?")
        with pytest.raises(NodeLost):
            await client.receive()
        assert node.network.statistics().visits == 0


async def test_a_client_hears_why_it_is_closed() -> None:
    async with server() as node, await visit(*node.address, token()) as client:
        guest = await node.visits.get()
        guest.tell(b"last words")
        await guest.drained()
        guest.close("the node is drained")
        guest.close("again")
        assert await client.receive() == b"last words"
        with pytest.raises(NodeLost, match="the node is drained"):
            await client.receive()
        with pytest.raises(NodeLost, match="the node is drained"):
            client.tell(b"hello?")
        late: list[PystachioError] = []
        guest.on_closed(late.append)
        assert len(late) == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (issue(b"another secret than theirs", TokenRole.CLIENT, "alice"), "does not know the token's key"),
        (token(expires_at=999), "expired"),
        (Token(token().credential, b"?" * 32), "does not know the token's key"),
        (Token(token(TokenRole.CLIENT).credential, token(TokenRole.OBSERVER).key), "does not know"),
        (Token(token().credential, token(expires_at=999).key), "does not know"),
        ("pst1.client.never.alice", "malformed"),
    ],
    ids=["other secret", "expired", "no key", "other role", "other time", "cut"],
)
async def test_a_wrong_token_is_refused(wrong: Token | str, words: str) -> None:
    async with server(clock=lambda: 1000.0) as node:
        with pytest.raises(Unauthorized, match=words):
            await visit(*node.address, wrong)
        assert node.visits.empty()
        async with await visit(*node.address, token(expires_at=1001)):
            await node.visits.get()


async def test_a_token_that_expires_ends_its_visit() -> None:
    now = [1000.0]
    async with (
        server(clock=lambda: now[0], **FAST) as node,
        await visit(*node.address, token(expires_at=1010)) as client,
    ):
        client.tell(b"hello")
        assert await client.receive() == b"hello"
        now[0] = 1010.0
        with pytest.raises(NodeLost, match="expired"):
            await client.receive()


async def test_a_client_is_no_node() -> None:
    """Its key opens no node's connection, whatever it claims."""
    async with server() as node:
        mine = token()
        fake = replace(identity("alice"), secret=mine.key)
        for role in (Role.CONTROL, Role.DATA):
            with pytest.raises(Unauthorized, match="opens no connection of a node"):
                await introduced(node.address, fake, role, credential=str(mine.credential))
            with pytest.raises(Unauthorized, match="secret"):
                await introduced(node.address, fake, role)
        with pytest.raises(Unauthorized, match="no token"):
            await introduced(node.address, identity(), Role.CLIENT)
        assert node.visits.empty()
        assert node.network.peers == ()


async def test_an_impostor_does_not_get_a_client() -> None:
    """Whoever listens must know the secret too."""
    async with (
        running_service() as service,
        first_node(service, "TCP", secret="another secret than theirs", visited=lambda _: None) as thief,
    ):
        with pytest.raises(Unauthorized):
            await visit(*await thief.listen(), token())


async def test_there_is_room_for_so_many() -> None:
    async with (
        server(visitors=2) as node,
        await visit(*node.address, token()),
        await visit(*node.address, token(id="bob")) as second,
    ):
        with pytest.raises(ResourceExhausted, match="too many clients"):
            await visit(*node.address, token())
        second.close()
        while node.network.statistics().visits == 2:
            await node.ends.get()
        async with await visit(*node.address, token(id="carol")) as third:
            third.tell(b"hello")
            assert await third.receive() == b"hello"


async def test_nobody_takes_the_room_of_others() -> None:
    async with server(visitors=4) as node, AsyncExitStack() as stack:

        async def come(role: TokenRole, id: str) -> None:
            await stack.enter_async_context(await visit(*node.address, token(role, id)))

        await come(TokenRole.OBSERVER, "eve")
        await come(TokenRole.OBSERVER, "mallory")
        with pytest.raises(ResourceExhausted, match="observers") as raised:
            await come(TokenRole.OBSERVER, "trent")
        assert raised.value.setting == "cluster_clients"
        await come(TokenRole.CLIENT, "alice")
        await come(TokenRole.CLIENT, "alice")
        assert node.network.statistics().visits == 4
    async with server(visitors=4) as node, AsyncExitStack() as stack:
        await come(TokenRole.CLIENT, "alice")
        await come(TokenRole.CLIENT, "alice")
        with pytest.raises(ResourceExhausted, match="same token"):
            await come(TokenRole.CLIENT, "alice")
        await come(TokenRole.CLIENT, "bob")


async def test_a_node_that_serves_nobody_says_so() -> None:
    async with running_service() as service, first_node(service, "TCP") as network:
        with pytest.raises(InvalidRequest, match="not supported: clients"):
            await visit(*await network.listen(), token())
    with pytest.raises(NodeLost, match="reached"):
        await visit("127.0.0.1", 1, token())


async def test_a_client_that_says_too_much_or_nonsense_is_told_so() -> None:
    async with server(visitor_body_bytes=1000) as node:
        async with await visit(*node.address, token()) as client:
            with pytest.raises(InvalidRequest, match="too long"):
                client.tell(bytes(BODY_BYTES + 1))
            client.tell(bytes(1001))
            with pytest.raises(NodeLost, match="1,001 of 1,000"):
                await client.receive()
        async with await visit(*node.address, token()) as client:
            (await node.visits.get(), guest := await node.visits.get())

            def refuse(body: bytes) -> None:
                raise DataError("no such word")

            guest.on_heard(refuse)
            client.tell(b"gibberish")
            with pytest.raises(NodeLost, match="no such word"):
                await client.receive()
    async with server(echo=False) as node, await visit(*node.address, token()) as client:
        client.tell(b"hello?")
        with pytest.raises(NodeLost, match="nobody here listens"):
            await client.receive()


async def test_results_stream_no_faster_than_they_are_received() -> None:
    async with server() as node, await visit(*node.address, token()) as client:
        guest = await node.visits.get()
        told = 0

        async def stream() -> None:
            nonlocal told
            for number in range(100):
                guest.tell(bytes([number]) * (1 << 20))
                await guest.drained()
                told += 1

        streaming = asyncio.create_task(stream())
        before = -1
        while told != before:
            before = told
            for _ in range(20):
                await asyncio.sleep(0.01)
        assert 0 < told < 60, "it waits for the client"
        assert [(await client.receive())[0] for _ in range(100)] == list(range(100))
        await streaming


async def test_a_client_that_does_not_read_is_closed_when_too_much_waits() -> None:
    async with server() as node, await visit(*node.address, token()) as client:
        client._conversation.hold(True)
        guest = await node.visits.get()
        for _ in range(6):
            guest.tell(bytes(BODY_BYTES))
        assert "does not read" in str(await node.ends.get())
        with pytest.raises(NodeLost):
            guest.tell(b"hello?")
        with pytest.raises(NodeLost):
            await guest.drained()


async def test_a_client_that_receives_late_is_not_taken_for_dead_nor_takes_the_node_for_dead() -> None:
    async with server(**FAST) as node, await visit(*node.address, token(), limits=NetworkLimits(**FAST)) as client:
        guest = await node.visits.get()
        for number in range(3):
            guest.tell(bytes([number]) * BODY_BYTES)
            await asyncio.wait([asyncio.create_task(guest.drained())], timeout=0.2)
        await asyncio.sleep(1.0)
        assert [(await client.receive())[0] for _ in range(3)] == [0, 1, 2]


SERVER = """
import asyncio
from pystachio.io_scheduler.network.frames import Role
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.tokens import TokenRole, issue
from pystachio.io_scheduler.network.visits import visit
from tests.io_scheduler.network.test_visits import FAST, server, token
import sys

async def main():
    if sys.argv[1] == "server":
        async with server(**FAST) as node:
            print(*node.address, flush=True)
            await asyncio.sleep(20)
    else:
        async with await visit("127.0.0.1", int(sys.argv[1]), token(), limits=NetworkLimits(**FAST)):
            await asyncio.sleep(20)

asyncio.run(main())
"""


@asynccontextmanager
async def process(argument: str) -> AsyncIterator[asyncio.subprocess.Process]:
    code = textwrap.dedent(SERVER)
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, argument, stdout=asyncio.subprocess.PIPE)
    try:
        yield other
    finally:
        other.kill()
        await other.wait()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_dead_node_is_noticed_by_its_client(how: signal.Signals) -> None:
    async with process("server") as other:
        assert other.stdout is not None
        host, port = (await other.stdout.readline()).decode().split()
        client = await visit(host, int(port), token(), limits=NetworkLimits(**FAST))
        client.tell(b"hello")
        assert await client.receive() == b"hello"
        other.send_signal(how)
        async with asyncio.timeout(3):
            with pytest.raises(NodeLost):
                await client.receive()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_dead_client_is_noticed_by_its_node(how: signal.Signals) -> None:
    async with server(**FAST) as node, process(str(node.address.port)) as other:
        await node.visits.get()
        other.send_signal(how)
        async with asyncio.timeout(3):
            assert isinstance(await node.ends.get(), NodeLost)
