"""Grants say how much their receiver waits for; senders serve the longest backlog first, and liars starve nobody."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import NodeLost, PystachioError
from pystachio.io_scheduler.core.request import Direction, Link, PathTaken
from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.network.backlog import BACKLOGS, Backlog
from pystachio.io_scheduler.network.data_path import Arrived, Sent
from pystachio.io_scheduler.network.frames import Data, Frame, Grant, Offer
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.links import NetworkLink
from pystachio.io_scheduler.network.messages import MessageDevice, MessageKey
from pystachio.io_scheduler.network.outbox import Outbox
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.io_scheduler.simulation.hardware import Network as SimulatedNetworkSpec
from tests.io_scheduler.network.insiders import Insider, intruder, victim
from tests.io_scheduler.network.two_nodes import running_service

pytestmark = pytest.mark.timeout(30)

MIB = 1 << 20
LIMITS = NetworkLimits()


# What a receiver says


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.booleans()), max_size=30), st.randoms())
def test_a_backlog_is_what_the_messages_of_the_plan_still_lack(
    messages: list[tuple[str, int, bool]], chance: random.Random
) -> None:
    """Each message in chunks of 10 bytes, which are asked for in any order; some messages end early."""
    backlog = Backlog(10)
    lacking = [[plan_id, 10 * chunks] for plan_id, chunks, _ in messages]
    for plan_id, nbytes in lacking:
        backlog.add(str(plan_id), int(nbytes))
    ends_early = [early for _, _, early in messages]
    left = list(range(len(messages)))
    while left:
        place = chance.choice(left)
        plan_id, nbytes = lacking[place]
        if ends_early[place]:
            backlog.drop(plan_id, nbytes)
            lacking[place][1] = 0
        else:
            assert backlog.grant(plan_id, 10) == sum(other[1] for other in lacking if other[0] == plan_id) // 10
            lacking[place][1] = nbytes - 10
        if not lacking[place][1]:
            left.remove(place)
    assert len(backlog) == 0


def test_the_longest_backlog_fits_a_grant() -> None:
    backlog = Backlog(10)
    backlog.add("plan", 1 << 60)
    assert backlog.grant("plan", 10) == BACKLOGS - 1


async def test_grants_tell_what_the_plan_lacks_from_all_peers() -> None:
    """Three, five and two MiB of one plan from two peers, one of another plan: chunks are one MiB or less."""
    quiet = {"heartbeat_seconds": 0.1, "suspect_seconds": 2.0, "dead_seconds": 5.0}
    async with (
        victim(**quiet) as (network, address),
        intruder(address, "second") as second,
        intruder(address, "fourth") as fourth,
    ):
        second.control.say(Offer(1, 3 * MIB, 0, "batch", "x"), Offer(2, MIB, 0, "normal", "x"))
        second.control.say(Offer(3, 5 * MIB, 1, "batch", "x"), Offer(4, 1 << 29, 2, "batch", "nobody wants it"))
        fourth.control.say(Offer(1, 2 * MIB, 0, "batch", "x"))
        wanted = [
            ("second", MessageKey("batch", "x", 0)),
            ("second", MessageKey("batch", "x", 1)),
            ("second", MessageKey("normal", "x", 0)),
            ("fourth", MessageKey("batch", "x", 0)),
        ]
        for peer, key in wanted:
            await network.offered(peer, key)
        receiving = asyncio.gather(*(network.receive(peer, key) for peer, key in wanted))
        granted: list[tuple[bool, Grant]] = []

        async def answer(peer: Insider) -> None:
            while True:
                grant = await peer.control.hear(Grant)
                granted.append((peer is second and grant.message == 2, grant))
                peer.answer(bytes(grant.length), grant.grant)

        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(answer(peer)) for peer in (second, fourth)]
            await receiving
            for task in answers:
                task.cancel()
        for is_other_plan, total in ((False, 10 * MIB), (True, MIB)):
            ours = sorted((grant for other, grant in granted if other is is_other_plan), key=lambda each: -each.backlog)
            assert sum(grant.length for grant in ours) == total
            for grant in ours:
                assert grant.backlog == total // MIB
                total -= grant.length
        assert len(network._backlog) == 0


async def test_what_is_given_up_is_not_waited_for() -> None:
    async with victim() as (network, address), intruder(address, "second") as second:
        second.control.say(*(Offer(number, 8 * MIB, number, "batch", "x") for number in (1, 2)))
        first = asyncio.create_task(network.receive("second", MessageKey("batch", "x", 1)))
        grant = await second.control.hear(Grant)
        assert grant.backlog == 8
        first.cancel()
        # What is inside the path ends as soon as nobody wants it.
        await asyncio.gather(first, return_exceptions=True)
        other = asyncio.create_task(network.receive("second", MessageKey("batch", "x", 2)))
        while (grant := await second.control.hear(Grant)).message == 1:
            pass
        assert grant.backlog == 8
        second.control.leave()
        with pytest.raises(NodeLost):
            await other
        assert len(network._backlog) == 0


# What a sender makes of it


def test_sender_and_receiver_keep_the_limits_that_are_simulated() -> None:
    simulated = SimulatedNetworkSpec(chunk_bytes=LIMITS.chunk_bytes)
    for ours, theirs in (
        (LIMITS.ingress(), simulated.ingress_limits()),
        (LIMITS.egress(), simulated.egress_limits()),
    ):
        assert ours.chunk_bytes == LIMITS.fast_chunks * theirs.chunk_bytes
        assert ours.window_bytes == theirs.window_bytes
        assert ours.urgent_bytes == theirs.urgent_bytes
    # While chunks are of the simulated length.
    assert LIMITS.ingress().smallest_chunk_bytes == simulated.ingress_limits().smallest_chunk_bytes
    assert LIMITS.ingress().peer_bytes == LIMITS.fast_chunks * (simulated.ingress_limits().peer_bytes or 0)
    assert LIMITS.egress().peer_bytes == simulated.egress_limits().peer_bytes
    assert not LIMITS.egress().calibrated


class Wire:
    """What the sender's scheduler has started, by peer and grant; it stays there until the test says that it is sent.

    At most `WINDOW` of it fits.
    """

    WINDOW = 2

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []
        self._inside: dict[tuple[str, int], Sent] = {}

    def put(self, peer: str, grant: int, sent: Sent) -> None:
        self.started.append((peer, grant))
        self._inside[peer, grant] = sent
        assert len(self._inside) <= self.WINDOW

    @property
    def inside(self) -> list[tuple[str, int]]:
        return list(self._inside)

    async def end(self, *part: Any) -> None:
        """This part, or the oldest one, is sent; the scheduler reacts."""
        self._inside.pop(part if part else next(iter(self._inside)))(None)
        await settled()


class WirePath:
    """`DataPath` of one peer, for sending only."""

    taken = PathTaken.TCP

    def __init__(self, peer: str, wire: Wire) -> None:
        self._peer = peer
        self._wire = wire

    def send(self, grant: int, buffer: Buffer, sent: Sent) -> None:
        self._wire.put(self._peer, grant, sent)

    def void(self, grant: int, code: int) -> None:
        pass

    def take_back(self, grant: int) -> None:
        pass

    def expect(self, grant: int, buffer: Buffer, arrived: Arrived) -> None:
        raise AssertionError("nothing is received")

    def give_up(self, grant: int) -> None:
        raise AssertionError("nothing is received")

    def take(self, data: Data) -> None:
        raise AssertionError("nothing is received")

    def close(self, error: PystachioError) -> None:
        pass


class Clock:
    now = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        raise AssertionError("the test calls check")


async def settled() -> None:
    """All that is due has happened: nothing here waits for time."""
    for _ in range(20):
        await asyncio.sleep(0)


class Sender:
    """A node with a message of a thousand chunks for each peer and plan that asks it for some."""

    def __init__(self, service: IoSchedulerService) -> None:
        self.wire = Wire()
        self.clock = Clock()
        self._service = service
        device = MessageDevice(LIMITS.egress())
        self._egress = NetworkLink(Link("network", "sender", Direction.WRITE), device)
        service.register_device(*self._egress)
        self._outboxes: dict[str, Outbox] = {}
        self._offers: dict[tuple[str, str, int], Offer] = {}
        self._granted: Counter[str] = Counter()
        self._sends: list[asyncio.Task[None]] = []
        self._buffer = memoryview(bytes(LIMITS.chunk_bytes * 1000))

    async def ask(self, peer: str, backlog: int, *, plan_id: str = "batch", criticality: int = 0) -> tuple[str, int]:
        """The peer grants one chunk, and claims to wait for so many."""
        name = (peer, plan_id, criticality)
        if name not in self._offers:
            outbox = self._outboxes.get(peer) or self._open(peer)
            key = MessageKey(plan_id, f"criticality {criticality}", 0)
            self._sends.append(asyncio.create_task(outbox.send(key, self._buffer, criticality)))
            await settled()
            self._offers[name] = self._offers.pop((peer, "", 0))
        self._granted[peer] += 1
        number, length = self._granted[peer], LIMITS.chunk_bytes
        self._outboxes[peer].take_grant(
            Grant(self._offers[name].message, number, (number - 1) * length, length, backlog)
        )
        await settled()
        return peer, number

    def check(self) -> None:
        for outbox in self._outboxes.values():
            outbox.check(self.clock.now)

    async def end(self) -> None:
        for outbox in self._outboxes.values():
            outbox.fail(NodeLost("the test is over"))
        await settled()
        while self.wire.inside:
            await self.wire.end()
        await asyncio.gather(*self._sends, return_exceptions=True)

    def _open(self, peer: str) -> Outbox:
        self._outboxes[peer] = Outbox(
            peer=peer,
            prefix=peer,
            service=self._service,
            egress=self._egress,
            data_path=WirePath(peer, self.wire),
            limits=LIMITS,
            timers=self.clock,
            rank=lambda: 0,
            send_frame=partial(self._hear, peer),
        )
        return self._outboxes[peer]

    def _hear(self, peer: str, frame: Frame) -> None:
        if isinstance(frame, Offer):
            self._offers[peer, "", 0] = frame


@asynccontextmanager
async def sender() -> AsyncIterator[Sender]:
    async with running_service() as service:
        node = Sender(service)
        try:
            yield node
        finally:
            await node.end()


@pytest.mark.parametrize("first", ["far", "near"])
async def test_the_receiver_with_the_longest_backlog_goes_first_whoever_asked_first(first: str) -> None:
    async with sender() as node:
        for peer in ("x", "y"):
            await node.ask(peer, 0)
        for peer in ("far", "near") if first == "far" else ("near", "far"):
            await node.ask(peer, {"far": 70, "near": 3}[peer])
        await node.wire.end()
        assert node.wire.inside == [("y", 1), ("far", 1)]
        await node.wire.end()
        assert node.wire.inside == [("far", 1), ("near", 1)]


async def test_plans_and_criticality_go_before_backlogs() -> None:
    async with sender() as node:
        for peer in ("x", "y"):
            await node.ask(peer, 0)
        await node.ask("far", BACKLOGS - 1)
        await node.ask("prefetch", BACKLOGS - 1, criticality=-1)
        await node.ask("critical", 0, criticality=1)
        await node.ask("normal", 0, plan_id="normal")
        for _ in range(4):
            await node.wire.end()
        assert [peer for peer, _ in node.wire.started[2:]] == ["normal", "critical", "far", "prefetch"]


@pytest.mark.parametrize("seed", range(5))
async def test_no_shorter_backlog_is_served_while_a_longer_one_could_be(seed: int) -> None:
    """Random grants of six receivers: what is started was the longest of those to peers with nothing on the wire."""
    chance = random.Random(seed)
    async with sender() as node:
        waiting: dict[tuple[str, int], int] = {}
        judged = 0
        for _ in range(150):
            busy = {peer for peer, _ in node.wire.inside}
            if node.wire.inside and chance.random() < 0.5:
                part = chance.choice(node.wire.inside)
                busy.discard(part[0])
                await node.wire.end(*part)
            else:
                backlog = chance.randrange(1000)
                waiting[await node.ask(f"peer{chance.randrange(6)}", backlog)] = backlog
            for part in node.wire.started[judged:]:
                possible = [backlog for (peer, _), backlog in waiting.items() if peer not in busy]
                assert waiting.pop(part) == max(possible)
                busy.add(part[0])
            judged = len(node.wire.started)
            assert len(node.wire.inside) == Wire.WINDOW or all(peer in busy for peer, _ in waiting)
        assert judged > 50


async def test_a_peer_that_lies_about_its_backlog_leaves_half_to_others() -> None:
    async with sender() as node:
        for _ in range(50):
            await node.ask("liar", BACKLOGS - 1)
        for _ in range(10):
            await node.ask("honest", 1)
        for _ in range(20):
            await node.wire.end()
        assert [peer for peer, _ in node.wire.started[:20]].count("honest") >= 9


async def test_a_peer_that_does_not_read_leaves_half_to_others() -> None:
    async with sender() as node:
        for _ in range(3):
            await node.ask("stuck", BACKLOGS - 1)
        for number in range(1, 5):
            await node.ask("honest", 0)
            assert ("honest", number) in node.wire.inside
            await node.wire.end("honest", number)
        assert node.wire.inside == [("stuck", 1)]


async def test_peers_that_lie_together_starve_nobody_for_ever() -> None:
    async with sender() as node:
        for peer in ("liar", "thief"):
            for _ in range(60):
                await node.ask(peer, BACKLOGS - 1)
        honest = await node.ask("honest", 0)
        for _ in range(20):
            await node.wire.end()
        node.check()
        assert honest not in node.wire.started
        node.clock.now += 6.0
        node.check()
        node.check()
        for _ in range(4):
            await node.wire.end()
        assert honest in node.wire.started
