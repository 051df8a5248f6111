"""Messages between two real processes, over both transports."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from xxhash import xxh3_64_hexdigest

from pystachio.errors import Cancelled, DataError, InvalidRequest, NodeLost, ResourceExhausted, Unauthorized
from pystachio.io_scheduler.core.request import PathTaken
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.service import IoSchedulerService
from tests.io_scheduler.network.other_node import content
from tests.io_scheduler.network.two_nodes import first_node, other_node, running_service, two_nodes

pytestmark = pytest.mark.timeout(60)

CARRIERS = ("TCP", "UCX")
SIZES = (0, 1, 4097, 1 << 20, (1 << 20) + 1, 64 << 20)


def key(sequence: int, operator: str = "exchange", plan: str = "normal") -> MessageKey:
    return MessageKey(plan, operator, sequence)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_messages_of_all_sizes_arrive_exactly_both_ways(carrier: str) -> None:
    async with two_nodes(carrier) as (network, other):
        for sequence, length in enumerate(SIZES):
            sent = content(sequence, length)
            echo = other.do("echo", sequence=sequence)
            answer, _, received = await asyncio.gather(
                echo,
                network.send("second", key(sequence), memoryview(sent)),
                network.receive("second", key(sequence, "exchange back")),
            )
            assert answer == "sent"
            assert bytes(received) == sent  # type: ignore[arg-type]


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_many_messages_at_once_in_any_order(carrier: str) -> None:
    async with two_nodes(carrier) as (network, other):
        count, length = 200, 100_003
        sends = [network.send("second", key(n), memoryview(content(n, length))) for n in range(count)]
        receives = [network.receive("second", key(n, "other")) for n in reversed(range(count))]
        orders = [other.do("receive", sequence=n) for n in reversed(range(count))]
        orders += [other.do("send", operator="other", sequence=n, length=length) for n in range(count)]
        _, received, answers = await asyncio.gather(
            asyncio.gather(*sends), asyncio.gather(*receives), asyncio.gather(*orders)
        )
        digests = [xxh3_64_hexdigest(content(n, length)) for n in reversed(range(count))]
        assert [xxh3_64_hexdigest(buffer) for buffer in received] == digests
        assert answers[:count] == digests


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_receiver_may_bring_its_own_buffer_and_ask_for_the_length(carrier: str) -> None:
    async with two_nodes(carrier) as (network, other):
        answer = other.order("send", length=3_000_000)[1]
        into = memoryview(bytearray(await network.offered("second", key(0))))
        assert await network.receive("second", key(0), into) is into
        assert bytes(into) == content(0, 3_000_000)
        assert await answer == "sent"
        # One that does not fit is refused, at both ends, and nothing else is harmed.
        answer = other.order("send", sequence=1, length=5)[1]
        with pytest.raises(DataError):
            await network.receive("second", key(1), memoryview(bytearray(4)))
        assert await answer == "data_error"
        assert network.peers == ("second",)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_the_ledger_knows_the_path_and_both_links(carrier: str) -> None:
    async with other_node(carrier) as other, running_service() as service:
        address = await other.address()
        async with first_node(service, carrier) as network:
            await network.connect("second", *address)
            order = other.order("echo")[1]
            await network.send("second", key(0), memoryview(content(0, 5_000_000)))
            await network.receive("second", key(0, "exchange back"))
            assert await order == "sent"
            moved = {str(entry.link): entry.totals for entry in service.ledger.entries()}
            assert moved.keys() == {"network first write", "network first read"}
            for totals in moved.values():
                assert totals.useful_bytes == totals.transferred_bytes == 5_000_000
                assert dict(totals.paths) == {PathTaken[carrier]: 5_000_000}


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_an_interactive_message_passes_a_flood(carrier: str) -> None:
    async with two_nodes(carrier) as (network, other):
        flood = [
            asyncio.create_task(network.send("second", key(n, plan="batch"), memoryview(bytes(16 << 20))))
            for n in range(8)
        ]
        sinks = [other.order("receive", plan="batch", sequence=n)[1] for n in range(8)]
        # The flood is under way as soon as its first message is.
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        urgent = other.order("receive", plan="interactive")[1]
        await network.send("second", key(0, plan="interactive"), memoryview(content(0, 1 << 20)))
        assert await urgent == xxh3_64_hexdigest(content(0, 1 << 20))
        assert sum(task.done() for task in flood) <= 3, "six eighths of the flood are still to come"
        await asyncio.gather(*flood, *sinks)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_killed_peer_ends_everything(carrier: str) -> None:
    async with two_nodes(carrier) as (network, other):
        waiting = [
            asyncio.create_task(network.send("second", key(0), memoryview(bytes(64 << 20)))),
            asyncio.create_task(network.send("second", key(1, "nobody asks"), memoryview(bytes(100)))),
            asyncio.create_task(network.receive("second", key(2, "nobody offers"))),
            asyncio.create_task(network.receive("second", key(3))),
        ]
        other.order("receive", sequence=0)
        other.order("send", sequence=3, length=64 << 20)
        await moving(network)
        os.kill(other.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, NodeLost) for end in ends), ends
        assert time.monotonic() - killed_at < 3.0
        assert network.peers == ()
        with pytest.raises(NodeLost):
            await network.send("second", key(5), memoryview(b"x"))


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_frozen_peer_is_lost_in_time(carrier: str) -> None:
    beats = {"heartbeat_seconds": 0.1, "suspect_seconds": 0.3, "dead_seconds": 2.0}
    lost: list[str] = []
    async with other_node(carrier, **beats) as other, running_service() as service:
        address = await other.address()
        async with first_node(service, carrier, lost=lambda name, error: lost.append(name), **beats) as network:
            await network.connect("second", *address)
            into = memoryview(bytearray(24 << 20))
            waiting = [
                asyncio.create_task(network.send("second", key(0), memoryview(bytes(64 << 20)))),
                asyncio.create_task(network.receive("second", key(1), into)),
            ]
            answers = [
                other.order("receive", sequence=0)[1],
                other.order("send", sequence=1, length=len(into))[1],
            ]
            await moving(network)
            os.kill(other.pid, signal.SIGSTOP)
            frozen_at = time.monotonic()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(end, NodeLost) for end in ends), ends
            assert time.monotonic() - frozen_at < 4.0
            assert lost == ["second"]
            # The buffers are ours: when the other wakes up, nothing of what it sends arrives.
            into[:] = bytes(len(into))
            os.kill(other.pid, signal.SIGCONT)
            assert await asyncio.gather(*answers) == ["node_lost", "node_lost"]
            assert not any(into[:: 1 << 10])


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("side", ["sender", "receiver", "other sender", "other receiver"])
async def test_cancelling_in_mid_transfer_frees_both_ends(carrier: str, side: str) -> None:
    async with two_nodes(carrier) as (network, other):
        length = 24 << 20
        for number in range(20):
            into = memoryview(bytearray(length))
            if ("sender" in side.split() and side.startswith("other")) or side == "receiver":
                order, answer = other.order("send", sequence=number, length=length)
                task: asyncio.Task[object] = asyncio.create_task(network.receive("second", key(number), into))
            else:
                order, answer = other.order("receive", sequence=number)
                task = asyncio.create_task(network.send("second", key(number), memoryview(bytes(length))))
            await moving(network)
            for _ in range(number):
                await asyncio.sleep(0)
            if side.startswith("other"):
                assert await other.do("cancel", which=order) == "cancelled"
                assert await answer in ("cancelled", "sent", xxh3_64_hexdigest(bytes(length)))
                end = (await asyncio.gather(task, return_exceptions=True))[0]
                assert isinstance(end, Cancelled) or end is None or end is into, end
            else:
                task.cancel()
                end = (await asyncio.gather(task, return_exceptions=True))[0]
                # It may have come meanwhile.
                assert isinstance(end, asyncio.CancelledError) or end is None or end is into, end
                into[:] = bytes(length)
                assert await answer in ("cancelled", "sent", xxh3_64_hexdigest(bytes(length)))
                assert not any(into[:: 1 << 12]), "nothing is written after the end"
        # And the connection is as good as new.
        answer = other.order("receive", sequence=99)[1]
        await network.send("second", key(99), memoryview(content(99, length)))
        assert await answer == xxh3_64_hexdigest(content(99, length))
        assert network.statistics().peers[0].outgoing == network.statistics().peers[0].incoming == 0


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_messages_that_nobody_asks_for_or_offers_end_in_time(carrier: str) -> None:
    async with two_nodes(carrier, wait_seconds=0.3, heartbeat_seconds=0.1) as (network, _):
        ends = await asyncio.gather(
            network.send("second", key(0), memoryview(bytes(100))),
            network.receive("second", key(1)),
            return_exceptions=True,
        )
        assert all(isinstance(end, ResourceExhausted) and end.setting == "memory" for end in ends)
        assert network.peers == ("second",)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_closed_plan_refuses_what_comes_late(carrier: str) -> None:
    async with two_nodes(carrier) as (network, other):
        waiting = asyncio.create_task(network.receive("second", key(0)))
        early = other.order("send", sequence=1, length=10)[1]
        await network.offered("second", key(1))
        network.close_plan("normal")
        with pytest.raises(Cancelled):
            await waiting
        assert await early == "cancelled"
        assert await other.do("send", sequence=2, length=10) == "cancelled"


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_who_does_not_know_the_secret_is_refused(carrier: str) -> None:
    async with other_node(carrier) as other, running_service() as service:
        address = await other.address()
        async with first_node(service, carrier, secret="another secret than theirs") as network:
            with pytest.raises(Unauthorized):
                await network.connect("second", *address)
            assert network.peers == ()


async def test_who_lives_in_another_epoch_or_is_another_node_or_uses_another_transport_is_refused() -> None:
    async with other_node("TCP") as other, running_service() as service:
        address = await other.address()
        async with first_node(service, "TCP", epoch=2) as network:
            with pytest.raises(NodeLost, match="epochs"):
                await network.connect("second", *address)
            network.epoch = 1
            with pytest.raises(Unauthorized, match="another node"):
                await network.connect("third", *address)
            await network.connect("second", *address)
            assert network.peers == ("second",)
    async with other_node("TCP") as other, running_service() as service:
        address = await other.address()
        async with first_node(service, "UCX") as network:
            with pytest.raises(InvalidRequest, match="transports"):
                await network.connect("second", *address)


async def moving(network: Network) -> None:
    """Return when bytes are on their way, here; some may have arrived already."""
    service: IoSchedulerService = network._service  # type: ignore[assignment]
    before = service.ledger.total().transferred_bytes
    while service.ledger.total().transferred_bytes == before:
        assert network.peers
        if any(link.outstanding_bytes for link in service.statistics().core.links):
            return
        await asyncio.sleep(0)
