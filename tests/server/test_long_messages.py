"""Messages that are too long for the control connection, between real networks: they arrive, and delay nothing."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.devices import Buffer
from pystachio.io_scheduler.network.messages import MessageKey
from pystachio.server import long_messages
from pystachio.server.control_plane import ControlPlane
from pystachio.server.long_messages import LongMessages
from pystachio.server.messages import LongMessageSent, encode
from pystachio.server.plan_messages import CancelFragment, FilesAsked, FootersTold, SameFile, StartFragment
from tests.server.test_on_the_network import start_three

pytestmark = pytest.mark.timeout(60)


def listen(control: ControlPlane, kind: type[Any]) -> asyncio.Queue[tuple[str, Any]]:
    heard: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    control.handle(kind, lambda node, message: heard.put_nowait((node, message)))
    return heard


def plan(number: int, length: int, priority: PriorityClass = PriorityClass.NORMAL) -> StartFragment:
    body = number.to_bytes(4) * (length // 4)
    return StartFragment(f"p{number}", 1, ("a", "b"), 1, body, {}, (), int(priority), None, "", "")


class Meetings:
    """Data messages between nodes of the test: one moves while its sender offers it and its receiver asks for it."""

    def __init__(self) -> None:
        self._sides: dict[tuple[str, str, MessageKey], tuple[asyncio.Event, asyncio.Event]] = {}

    def of(self, sender: str, receiver: str, key: MessageKey) -> tuple[asyncio.Event, asyncio.Event]:
        return self._sides.setdefault((sender, receiver, key), (asyncio.Event(), asyncio.Event()))


class MeetingNetwork:
    def __init__(self, name: str, meetings: Meetings) -> None:
        self._name = name
        self._meetings = meetings
        self.peers = frozenset("abxy") - {name}
        self.sent: list[tuple[str, str]] = []

    async def send(self, peer: str, key: MessageKey, buffer: Buffer, *, patience: float | None = None) -> None:
        assert patience is not None
        assert patience <= 60
        offered, asked = self._meetings.of(self._name, peer, key)
        offered.set()
        await asked.wait()
        self.sent.append((peer, key.plan_id))

    async def receive(
        self, peer: str, key: MessageKey, into: Buffer | None = None, *, patience: float | None = None
    ) -> Buffer:
        offered, asked = self._meetings.of(peer, self._name, key)
        await offered.wait()
        asked.set()
        assert into is not None
        return into

    def disconnect(self, peer: str, reason: str) -> None:
        raise AssertionError(f"{peer}: {reason}")


class MeetingNodes:
    """Nodes a, b, x and y; `delays` are the seconds that an announcement takes from one to another."""

    def __init__(self, group: asyncio.TaskGroup, delays: dict[tuple[str, str], float] | None = None) -> None:
        self.heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.nodes: dict[str, LongMessages] = {}
        meetings, loop = Meetings(), asyncio.get_running_loop()
        self.networks = {name: MeetingNetwork(name, meetings) for name in "abxy"}

        def start(name: str, body: Callable[[], Coroutine[object, object, None]]) -> asyncio.Task[None]:
            return group.create_task(_run(body))

        def announce(sender: str, receiver: str, message: LongMessageSent) -> bool:
            delay = (delays or {}).get((sender, receiver), 0.001)
            loop.call_later(delay, self.nodes[receiver].take, sender, message)
            return True

        def hear(receiver: str, sender: str, body: bytearray) -> None:
            self.heard.put_nowait((sender, receiver))

        for name, network in self.networks.items():
            self.nodes[name] = LongMessages(
                network, start=start, announce=partial(announce, name), heard=partial(hear, name)
            )


async def _run(body: Callable[[], Coroutine[object, object, None]]) -> None:
    await body()


@pytest.mark.parametrize("length", [10, 2 << 20])
async def test_nodes_do_not_wait_for_each_other_in_a_circle(length: int) -> None:
    """Two nodes tell two others, which hear of the first ones late: places for what is not sent yet would be all taken
    there, while those who send have theirs taken by what is not asked for."""
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        net = MeetingNodes(group, {("a", "x"): 0.05, ("b", "y"): 0.05})
        told = [("a", "x"), ("a", "y"), ("b", "y"), ("b", "x")] * 8
        for sender, receiver in sorted(told, key=lambda way: way not in (("a", "x"), ("b", "y"))):
            net.nodes[sender].tell(receiver, length, lambda: bytes(length))
        assert sorted([await net.heard.get() for _ in told]) == sorted(told)


async def test_what_is_short_or_urgent_does_not_wait_behind_bulk() -> None:
    """Node x asks for nothing of the class that fills its places."""
    long = 2 << 20
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        net = MeetingNodes(group, {("a", "x"): 3600.0})
        for _ in range(8):
            net.nodes["a"].tell("x", long, lambda: bytes(long), PriorityClass.BATCH)
        quick = [
            net.nodes["a"].tell("y", 10, lambda: bytes(10), PriorityClass.BATCH),
            net.nodes["a"].tell("y", long, lambda: bytes(long), PriorityClass.INTERACTIVE),
        ]
        await asyncio.wait([task for task in quick if task is not None])
        assert [await net.heard.get() for _ in range(2)] == [("a", "y")] * 2
        assert sorted(net.networks["a"].sent) == [("y", "control batch"), ("y", "control interactive")]
        net.nodes["a"].withdraw("x")


async def test_what_a_lost_node_was_told_is_not_kept_for_its_next_connection() -> None:
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        net = MeetingNodes(group, {("a", "x"): 3600.0})
        encoded: list[int] = []
        told = [net.nodes["a"].tell("x", 2 << 20, lambda: encoded.append(1) or bytes(2 << 20)) for _ in range(4)]
        await asyncio.sleep(0.01)
        net.nodes["a"].lose("x")
        for task in told:
            assert task is not None
            await asyncio.wait((task,))
        assert (len(encoded), net.networks["a"].sent) == (1, [])
        net.nodes["x"].take("a", LongMessageSent(99, 10, PriorityClass.NORMAL))
        await asyncio.sleep(0.01)
        net.nodes["x"].lose("a")  # or the group waits for it for ever


async def test_many_long_messages_at_once_arrive_and_short_ones_do_not_wait_behind_them() -> None:
    """Together they are many times what a control connection may hold."""
    async with AsyncExitStack() as stack:
        a, b, c = await start_three(stack)
        plans = {node.control.name: listen(node.control, StartFragment) for node in (b, c)}
        cancelled = listen(b.control, CancelFragment)
        sent = [plan(number, 5 << 20) for number in range(20)]
        for message in sent:
            for name in plans:
                a.control.tell(name, message)
        a.control.tell("b", CancelFragment("p19"))
        async with asyncio.timeout(40):
            assert await cancelled.get() == ("a", CancelFragment("p19"))
            assert plans["b"].qsize() < len(sent)
            for heard in plans.values():
                arrived = [await heard.get() for _ in sent]
                assert sorted(message.plan_id for _, message in arrived) == sorted(each.plan_id for each in sent)
                assert all(node == "a" and message in sent for node, message in arrived)
        assert (a.lost, b.lost, c.lost) == ([], [], [])


async def test_a_list_that_waits_for_its_turn_is_in_memory_once() -> None:
    files = tuple(SameFile(f"/data/{number:0100}.parquet", 1, 1) for number in range(5000))
    length = len(encode(FilesAsked(1, files)))
    async with AsyncExitStack() as stack:
        a, b, _ = await start_three(stack)
        heard = listen(b.control, FilesAsked)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(20):
                a.control.tell("b", FilesAsked(number, files))
            assert tracemalloc.get_traced_memory()[0] - before < length
        finally:
            tracemalloc.stop()
        async with asyncio.timeout(20):
            arrived = [(await heard.get())[1] for _ in range(20)]
    assert sorted(message.number for message in arrived) == list(range(20))
    assert all(message.files == files for message in arrived)


async def test_footers_of_more_than_a_control_message_arrive() -> None:
    async with AsyncExitStack() as stack:
        a, b, _ = await start_three(stack)
        heard = listen(b.control, FootersTold)
        told = FootersTold(1, (bytes(20 << 20), b"short", bytes(9 << 20)))
        a.control.tell("b", told)
        assert await asyncio.wait_for(heard.get(), 20) == ("a", told)


async def test_what_no_node_takes_is_refused_and_ends_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_messages, "LONGEST_BYTES", 1 << 20)
    async with AsyncExitStack() as stack:
        a, b, _ = await start_three(stack)
        heard = listen(b.control, StartFragment)
        with pytest.raises(InvalidRequest, match="too long for other nodes"):
            a.control.tell("b", plan(1, 2 << 20))
        a.control.tell("b", plan(2, 1 << 19))
        assert await asyncio.wait_for(heard.get(), 20) == ("a", plan(2, 1 << 19))
        assert b.lost == []


async def test_a_node_that_announces_what_cannot_be_is_disconnected() -> None:
    async with AsyncExitStack() as stack:
        _, b, c = await start_three(stack)
        b.network.tell("c", encode(LongMessageSent(1, 1 << 40, PriorityClass.BATCH)))
        await c.wait_until(lambda: c.lost == ["b"])
        assert c.control.statistics().malformed == 1


async def test_a_long_message_to_a_node_that_is_gone_is_dropped() -> None:
    async with AsyncExitStack() as stack:
        a, _, _ = await start_three(stack)
        before = a.control.statistics().undeliverable
        a.control.tell("nobody", plan(1, 1 << 20))
        assert a.control.statistics().undeliverable == before + 1


async def test_what_a_node_fences_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node b takes a for no member for a moment, and drops what a announces; c hears what it is told all the same."""
    async with AsyncExitStack() as stack:
        a, b, c = await start_three(stack)
        heard = {node: listen(node, StartFragment) for node in (b.control, c.control)}
        core = b.control._core
        assert core is not None
        monkeypatch.setattr(core, "admits", lambda name: False)
        refused = [asyncio.ensure_future(a.control.deliver("b", plan(number, 2 << 20))) for number in range(6)]
        await a.wait_until(lambda: "b" in a.lost)
        await asyncio.wait_for(asyncio.gather(*refused), 5)
        monkeypatch.undo()
        a.control.tell("c", plan(9, 2 << 20))
        assert await asyncio.wait_for(heard[c.control].get(), 5) == ("a", plan(9, 2 << 20))
        assert heard[b.control].empty()
        assert c.lost == []
