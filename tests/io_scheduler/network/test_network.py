"""Several nodes in one process: who is connected to whom, and what the scheduler makes of messages."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from pystachio.errors import Cancelled, InternalError, InvalidRequest, NodeLost, ResourceExhausted
from pystachio.io_scheduler.core.request import CreditPool, PathTaken
from pystachio.io_scheduler.devices import Device
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.network import reception
from pystachio.io_scheduler.network.frame_connection import FrameConnection
from pystachio.io_scheduler.network.frames import Carrier, Role
from pystachio.io_scheduler.network.handshake import Established, Identity
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.network.reception import Address
from pystachio.io_scheduler.network.transports import TransportChoice
from pystachio.io_scheduler.service import IoSchedulerService
from tests.clock_by_hand import by_hand, pass_time
from tests.io_scheduler.network.two_nodes import SECRET, running_service

pytestmark = pytest.mark.timeout(30)


class Node:
    """A node that listens, with the names of those who joined it and left it."""

    def __init__(self, name: str, service: IoSchedulerService, carrier: Carrier = Carrier.TCP, **options: Any) -> None:
        self.service = service
        self.joined: asyncio.Queue[str] = asyncio.Queue()
        self.lost: asyncio.Queue[str] = asyncio.Queue()
        self.network = Network(
            node=name,
            service=service,
            secret=SECRET.encode(),
            transport=TransportChoice(carrier, "asked for"),
            ucx_options={"TLS": "tcp"},
            joined=self.joined.put_nowait,
            lost=lambda peer, error: self.lost.put_nowait(peer),
            **options,
        )
        self.address = Address("", 0)


@asynccontextmanager
async def nodes(*names: str, **options: Any) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        made = []
        for name in names:
            node = Node(name, await stack.enter_async_context(running_service()), **options)
            await stack.enter_async_context(node.network)
            node.address = await node.network.listen()
            made.append(node)
        yield made


class StoppedTimers:
    """Of a node whose loop turns no more, but that has said that it is there."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(3600, callback, *arguments)


def key(sequence: int = 0, plan: str = "normal") -> MessageKey:
    return MessageKey(plan, "exchange", sequence)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def talk(one: Node, other: Node, sequence: int = 0, plan: str = "normal") -> None:
    """A message each way, after everything that was sent before."""
    for sender, receiver in ((one, other), (other, one)):
        _, received = await asyncio.gather(
            sender.network.send(receiver.network.node, key(sequence, plan), memoryview(b"hello")),
            receiver.network.receive(sender.network.node, key(sequence, plan)),
        )
        assert bytes(received) == b"hello"  # type: ignore[arg-type]


async def test_both_ends_know_of_a_connection_and_of_its_end() -> None:
    async with nodes("a", "b") as (a, b):
        await a.network.connect("b", *b.address)
        await a.network.connect("b", *b.address)
        assert (await a.joined.get(), await b.joined.get()) == ("b", "a")
        await talk(a, b)
        waiting = asyncio.create_task(b.network.receive("a", key(1)))
        await asyncio.sleep(0)
        a.network.disconnect("b", "removed from the cluster")
        a.network.disconnect("b", "again")
        assert (await a.lost.get(), await b.lost.get()) == ("b", "a")
        with pytest.raises(NodeLost, match="removed from the cluster"):
            await waiting
        assert a.network.peers == b.network.peers == ()
        await b.network.connect("a", *a.address)
        await a.joined.get()
        await talk(a, b)


@pytest.mark.parametrize(("slow", "quick"), [("a", "b"), ("b", "a")])
@pytest.mark.parametrize(("is_named", "carrier"), [(True, Carrier.TCP), (False, Carrier.TCP), (False, Carrier.UCX)])
async def test_a_connection_that_is_in_use_is_not_replaced_by_one_that_was_begun_before(
    is_named: bool, carrier: Carrier, slow: str, quick: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when two nodes come to each other after a partition: what is under way between them would be lost."""
    is_introduced, may_go_on = asyncio.Event(), asyncio.Event()
    real = reception.introduce

    async def introduce(connection: FrameConnection, identity: Identity, **more: Any) -> Established:
        established = await real(connection, identity, **more)
        if identity.node == slow and more["role"] == Role.CONTROL:
            is_introduced.set()
            await may_go_on.wait()
        return established

    async with nodes(slow, quick, carrier=carrier) as (one, two):
        monkeypatch.setattr(reception, "introduce", introduce)
        going = one.network.connect(quick, *two.address) if is_named else one.network.meet(*two.address)
        connecting = asyncio.create_task(going)
        await is_introduced.wait()
        await two.network.connect(slow, *one.address)
        assert await one.joined.get() == quick
        connected = one.network._peers[quick], two.network._peers[slow]
        may_go_on.set()
        assert await connecting == (None if is_named else quick)
        await talk(one, two, 2)
        assert (one.network._peers[quick], two.network._peers[slow]) == connected
        assert one.lost.empty()
        assert two.lost.empty()


@pytest.mark.parametrize("first", ["a", "b"])
async def test_nodes_that_connect_to_each_other_at_once_end_up_with_one_connection(first: str) -> None:
    async with nodes("a", "b") as (a, b):
        connects = [a.network.connect("b", *b.address), b.network.connect("a", *a.address)]
        await asyncio.gather(*(connects if first == "a" else reversed(connects)))
        # What was one too many has said goodbye by the time that messages pass both ways.
        async with asyncio.timeout(5):
            while True:
                try:
                    await talk(a, b)
                    break
                except NodeLost:
                    await asyncio.sleep(0)
        assert a.network.peers == ("b",)
        assert b.network.peers == ("a",)
        for node in (a, b):
            statistics = node.network.statistics().peers
            assert [(peer.incoming, peer.outgoing, peer.offered) for peer in statistics] == [(0, 0, 0)]


async def test_a_node_that_was_started_again_takes_the_place_of_its_old_self() -> None:
    async with nodes("a") as (a,), nodes("b", timers=StoppedTimers()) as (b,):
        await b.network.connect("a", *a.address)
        await a.joined.get()
        waiting = asyncio.create_task(a.network.receive("b", key(9)))
        await asyncio.sleep(0)
        async with nodes("b") as (again,):
            with pytest.raises(InvalidRequest, match="name is taken"):
                await again.network.connect("a", *a.address)
            async with asyncio.timeout(5):
                while not again.network.peers:
                    with suppress(InvalidRequest):  # until the old self has been silent for two beats
                        await again.network.connect("a", *a.address)
                    await asyncio.sleep(0.05)
            with pytest.raises(NodeLost, match="connected again"):
                await waiting
            assert await b.lost.get() == "a"
            # What was told on the old connection may not have arrived: whoever waits for an answer must hear of it.
            assert await a.lost.get() == "b"
            assert await asyncio.wait_for(a.joined.get(), 5) == "b"
            await talk(a, again)


async def test_a_name_that_another_node_has_is_refused() -> None:
    async with nodes("a", "b") as (a, b):
        await b.network.connect("a", *a.address)
        await a.joined.get()
        async with nodes("b") as (other,):
            with pytest.raises(InvalidRequest, match="name is taken: 'b'"):
                await other.network.connect("a", *a.address)
        async with nodes("a") as (other,):
            with pytest.raises(InvalidRequest, match="name is taken: 'a'"):
                await other.network.meet(*a.address)
        with pytest.raises(NodeLost, match="itself"):
            await a.network.meet(*a.address)
        await talk(a, b)


async def test_nobody_is_there() -> None:
    async with nodes("a", "b") as (a, b):
        address = b.address
        with pytest.raises(NodeLost, match="not connected"):
            await a.network.send("b", key(), memoryview(b""))
        await b.network.__aexit__(None, None, None)
        with pytest.raises(NodeLost, match="reached"):
            await a.network.connect("b", *address)
        with pytest.raises(InvalidRequest, match="address"):
            await a.network.listen("")
        with pytest.raises(InternalError, match="once"):
            await a.network.listen()


async def test_a_node_listens_where_it_was_told_to() -> None:
    async with nodes("a") as (a,):
        assert a.address.host == "127.0.0.1"
        assert a.network.statistics().address == a.address


async def test_ranks_turn_round_the_ring() -> None:
    async with nodes("a", "b", "c", "d") as made:
        for one in made:
            for other in made:
                if one.network.node < other.network.node:
                    await one.network.connect(other.network.node, *other.address)
                    await other.joined.get()
        ranks = {node.network.node: [node.network._rank(peer) for peer in node.network.peers] for node in made}
        assert ranks == {"a": [1, 2, 3], "b": [3, 1, 2], "c": [2, 3, 1], "d": [1, 2, 3]}


async def test_one_name_is_awaited_once_and_offered_once() -> None:
    async with nodes("a", "b") as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        first = asyncio.create_task(b.network.receive("a", key()))
        await asyncio.sleep(0)
        with pytest.raises(InternalError, match="twice"):
            await b.network.receive("a", key())
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        one = asyncio.create_task(a.network.send("b", key(), memoryview(b"one")))
        assert await b.network.offered("a", key()) == 3
        with pytest.raises(InvalidRequest, match="already"):
            await a.network.send("b", key(), memoryview(b"two"))
        assert bytes(await b.network.receive("a", key())) == b"one"  # type: ignore[arg-type]
        await one


async def test_a_sender_hears_that_its_message_was_given_up_before_it_came() -> None:
    async with nodes("a", "b") as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        waiting = asyncio.create_task(b.network.receive("a", key()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        with pytest.raises(Cancelled, match="gave the message up"):
            await a.network.send("b", key(), memoryview(b"hello"))
        (peer,) = b.network.statistics().peers
        assert (peer.offered, peer.incoming) == (0, 0)


async def test_who_connects_again_is_refused_what_nobody_wants() -> None:
    """He may wait for ever otherwise: a part of a plan that has ended here goes on there."""
    async with nodes("a", "b") as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        b.network.decline("a", key(1, "normal"))
        b.network.close_plan("batch")
        a.network.disconnect("b", "a cable was pulled")
        assert await b.lost.get() == "a"
        b.network.decline("a", key(2, "normal"))
        await a.network.connect("b", *b.address)
        await b.joined.get()
        for name in (key(1, "normal"), key(2, "normal"), key(1, "batch")):
            async with asyncio.timeout(10):
                with pytest.raises(Cancelled):
                    await a.network.send("b", name, memoryview(b"rows"), patience=math.inf)


async def test_an_offer_that_was_withdrawn_is_not_kept_for_ever() -> None:
    """Its plan may never come to the receiver: the coordinator was lost before it told everybody."""
    limits = NetworkLimits(wait_seconds=0.2, heartbeat_seconds=0.05)
    async with nodes("a", "b", limits=limits) as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        sending = asyncio.create_task(a.network.send("b", key(), memoryview(b"hello"), patience=math.inf))
        await until(lambda: b.network.statistics().peers[0].offered == 1)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await until(lambda: b.network.statistics().peers[0].offered == 0)
        inbox = b.network._peers["a"]._inbox
        await until(lambda: not inbox._offers and not inbox._keys)


async def test_messages_wait_for_the_receivers_memory() -> None:
    pool = CreditPool("host", 1)
    async with nodes("a", "b") as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        b.service.open_pool(pool, 100_000)
        sends = [asyncio.create_task(a.network.send("b", key(n), memoryview(bytes(60_000)))) for n in range(3)]
        receives = [asyncio.create_task(b.network.receive("a", key(n), credit=pool)) for n in range(3)]
        for ended in range(1, 4):
            done, waiting = await asyncio.wait(receives, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == ended
            await talk(a, b, ended, "interactive")
            assert not any(each.done() for each in waiting)
            assert len(waiting) == 3 - ended, "there is memory for one at a time"
            b.service.release_credit(pool, 60_000)
            receives = [*done, *waiting]
            if waiting:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*sends, *receives)


def slow(device: Device) -> Device:
    return EmulatedDevice(device, bytes_per_second=50e6)


async def test_an_emulated_network_is_as_slow_as_it_says_and_urgent_messages_do_not_wait() -> None:
    async with nodes("a", "b", emulate=slow) as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        start = time.monotonic()
        names = [key(number, "batch") for number in range(4)]
        flood = [
            asyncio.gather(a.network.send("b", name, memoryview(bytes(4 << 20))), b.network.receive("a", name))
            for name in names
        ]
        await until(lambda: b.service.ledger.total().transferred_bytes > 1 << 20)
        asked_at = time.monotonic()
        await asyncio.gather(
            a.network.send("b", key(0, "interactive"), memoryview(bytes(1 << 18))),
            b.network.receive("a", key(0, "interactive")),
        )
        urgent_seconds = time.monotonic() - asked_at
        assert not all(each.done() for each in flood)
        await asyncio.gather(*flood)
        seconds = time.monotonic() - start
        assert seconds > (16 << 20) / 50e6, "not faster than the wire"
        assert urgent_seconds < seconds / 3
        assert set(b.service.ledger.total().paths) == {PathTaken.EMULATED}


async def test_cancelling_on_an_emulated_network() -> None:
    async with nodes("a", "b", emulate=slow) as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        for number in range(6):
            into = memoryview(bytearray(2 << 20))
            sending = asyncio.create_task(a.network.send("b", key(number), memoryview(b"x" * (2 << 20))))
            receiving = asyncio.create_task(b.network.receive("a", key(number), into))
            await until(partial(into.__getitem__, number * 300_000 + 1))
            (sending if number % 2 else receiving).cancel()
            ends = await asyncio.gather(sending, receiving, return_exceptions=True)
            assert all(isinstance(end, BaseException) for end in ends), ends
            into[:] = bytes(2 << 20)
            await talk(a, b, 99)
            assert not any(into[::4096])


@pytest.mark.parametrize("side", ["sender", "receiver"])
async def test_cancelling_the_plan_at_one_end_ends_it_at_the_other(side: str) -> None:
    async with nodes("a", "b", emulate=slow) as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        into = memoryview(bytearray(4 << 20))
        sending = asyncio.create_task(a.network.send("b", key(), memoryview(b"x" * (4 << 20))))
        receiving = asyncio.create_task(b.network.receive("a", key(), into))
        await until(partial(into.__getitem__, 1 << 20))
        (a if side == "sender" else b).service.cancel_plan("normal")
        ends = await asyncio.gather(sending, receiving, return_exceptions=True)
        assert all(isinstance(end, Cancelled) for end in ends), ends
        await talk(a, b, 1, "interactive")


async def test_connections_leave_no_descriptors_behind() -> None:
    async with nodes("a", "b") as (a, b):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            await a.network.connect("b", *b.address)
            await b.joined.get()
            b.network.disconnect("a", "enough")
            await a.lost.get()
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@by_hand
async def test_who_may_wait_for_ever_is_not_given_up() -> None:
    limits = NetworkLimits(wait_seconds=0.1, heartbeat_seconds=0.05)
    async with nodes("a", "b", limits=limits) as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        patient = [
            asyncio.create_task(a.network.send("b", key(1), memoryview(b"one"), patience=math.inf)),
            asyncio.create_task(a.network.receive("b", key(2), patience=math.inf)),
            asyncio.create_task(a.network.offered("b", key(3), patience=30.0)),
        ]
        hasty = asyncio.gather(
            a.network.send("b", key(4), memoryview(b"four")),
            a.network.receive("b", key(5)),
            a.network.offered("b", key(6), patience=0.2),
            return_exceptions=True,
        )
        await pass_time(0.1)
        assert not hasty.done(), "one has twice as much patience"
        await pass_time(0.2)
        assert all(isinstance(end, ResourceExhausted) for end in await hasty)
        assert not any(task.done() for task in patient)
        late = [
            asyncio.create_task(b.network.send("a", key(2), memoryview(b"two"))),
            asyncio.create_task(b.network.send("a", key(3), memoryview(b"three"))),
        ]
        assert bytes(await b.network.receive("a", key(1))) == b"one"  # type: ignore[arg-type]
        _, two, length = await asyncio.gather(*patient)
        assert (bytes(two), length) == (b"two", 5)  # type: ignore[arg-type]
        await a.network.receive("b", key(3))
        await asyncio.gather(*late)


@pytest.mark.parametrize("end", ["plan", "peer"])
async def test_who_may_wait_for_ever_ends_with_the_plan_or_the_peer(end: str) -> None:
    async with nodes("a", "b") as (a, b):
        await a.network.connect("b", *b.address)
        await b.joined.get()
        patient = [
            asyncio.create_task(a.network.send("b", key(1), memoryview(b"one"), patience=math.inf)),
            asyncio.create_task(a.network.receive("b", key(2), patience=math.inf)),
            asyncio.create_task(a.network.offered("b", key(3), patience=math.inf)),
        ]
        await asyncio.sleep(0)
        if end == "plan":
            a.network.close_plan("normal")
        else:
            b.network.disconnect("a", "enough")
        ends = await asyncio.gather(*patient, return_exceptions=True)
        assert [type(each) for each in ends] == [Cancelled if end == "plan" else NodeLost] * 3
