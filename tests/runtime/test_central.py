"""The central service's actor and a node's end of it, in virtual time and on a real node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from pystachio.io_scheduler.central.events import (
    CentralMessage,
    LeasePublished,
    NodeFact,
    NodeJoined,
    NodeMessage,
    NodeReported,
    PlanAdmitted,
    PlanRank,
)
from pystachio.io_scheduler.central.fairness import LinkClass
from pystachio.io_scheduler.central.lease_holder import Reranking, Served
from pystachio.io_scheduler.core.request import Direction, Lease, Link, PathTaken, PriorityClass
from pystachio.io_scheduler.ledger import Ledger
from pystachio.runtime.actors import Children, Directive
from pystachio.runtime.central import Alarm, CentralService, LocalLink, NodeLeases, served
from pystachio.runtime.executor import TaskSpec
from pystachio.runtime.virtual_loop import Deadlock
from tests import virtual_time
from tests.runtime.nodes import NoTransfers, make_node

INTERACTIVE, NORMAL, BATCH = PriorityClass
DISK = Link("disk", "1:0")


@dataclass
class End:
    """A node's end of the service, the leases it granted and the changes it was told."""

    leases: NodeLeases
    ledger: Ledger
    granted: list[Lease] = field(default_factory=list)
    reranked: list[Reranking] = field(default_factory=list)


def make_end(node: str, centre: CentralService, *, connected: bool = True) -> End:
    ledger = Ledger()
    granted: list[Lease] = []
    reranked: list[Reranking] = []
    leases = NodeLeases(
        node,
        clock=virtual_time.clock(),
        ledger=ledger,
        centre=centre,
        grant=granted.append,
        rerank=reranked.append,
    )
    if connected:
        centre.connect(node, LocalLink(leases.take))
    return End(leases, ledger, granted, reranked)


def with_centre(
    body: Callable[[CentralService, Children], Coroutine[Any, Any, None]], decided: list[str] | None = None
) -> None:
    """Run `body` in virtual time; a crashed actor is restarted and noted in `decided`."""

    def decide(name: str, error: BaseException) -> Directive:
        assert decided is not None, f"{name} crashed: {error!r}"
        decided.append(name)
        return Directive.RESTART

    async def main() -> None:
        async with Children(decide) as children:
            centre = CentralService(children, virtual_time.clock())
            await body(centre, children)
            centre.close()

    virtual_time.run(main())


def test_a_plan_that_lasts_is_leased_until_it_ends() -> None:
    async def body(centre: CentralService, children: Children) -> None:
        end = make_end("n1", centre)
        end.leases.plan_started("a", BATCH)
        await asyncio.sleep(0.05)
        assert centre.statistics().plans == 0
        await asyncio.sleep(9.95)
        assert len(end.granted) in (10, 11), "a lease a second"
        assert [order.weight for order in end.granted[-1].plans] == [1.0]
        assert centre.statistics().leases <= 2, "the rest were renewals"
        end.leases.plan_ended("a")
        await asyncio.sleep(2.0)
        assert centre.statistics().plans == 0
        count = len(end.granted)
        await asyncio.sleep(100.0)
        assert len(end.granted) == count
        end.leases.close()

    with_centre(body)


def test_nothing_is_timed_while_no_plan_lasts() -> None:
    """A loop with nothing due is a deadlock in virtual time: that is the proof."""

    async def body(centre: CentralService, children: Children) -> None:
        end = make_end("n1", centre)
        for number in range(100):
            end.leases.plan_started(str(number), INTERACTIVE)
            end.leases.plan_ended(str(number))
        await asyncio.sleep(1.0)
        assert end.leases.statistics().reports == 0
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        with_centre(body)


def test_a_change_of_class_on_one_node_reaches_the_other() -> None:
    async def body(centre: CentralService, children: Children) -> None:
        ends = [make_end(node, centre) for node in ("n1", "n2")]
        for end in ends:
            end.leases.plan_started("a", BATCH)
        await asyncio.sleep(0.5)
        ends[0].leases.plan_reranked("a", INTERACTIVE, due_at=virtual_time.clock().now() + 30.0)
        await asyncio.sleep(0.2)
        assert ends[0].reranked == []
        (reranking,) = ends[1].reranked
        assert (reranking.plan_id, reranking.priority) == ("a", INTERACTIVE)
        assert reranking.due_at == pytest.approx(30.5, abs=0.01)
        for end in ends:
            assert end.granted[-1].plans[0].priority is INTERACTIVE
            end.leases.close()

    with_centre(body)


def test_a_centre_that_crashes_is_followed_by_the_next_one_without_a_hole() -> None:
    crashed: list[str] = []

    async def body(centre: CentralService, children: Children) -> None:
        end = make_end("n1", centre)
        end.leases.plan_started("a", BATCH)
        await asyncio.sleep(5.0)
        epoch = end.granted[-1].epoch
        centre.send("nonsense")  # type: ignore[arg-type]
        times: list[float] = []
        for _ in range(50):
            count = len(end.granted)
            await asyncio.sleep(0.1)
            if len(end.granted) > count:
                times.append(virtual_time.clock().now())
        assert end.granted[-1].epoch == epoch + 1
        assert centre.statistics().plans == 1
        assert max(later - earlier for earlier, later in zip([5.0, *times], times, strict=False)) < 3.0
        end.leases.close()

    with_centre(body, crashed)
    assert crashed == ["central"]


def test_nobody_hears_of_a_centre_that_has_ended() -> None:
    async def main() -> None:
        ends = []
        async with Children(lambda name, error: Directive.STOP) as children:
            centre = CentralService(children, virtual_time.clock())
            ends.append(make_end("n1", centre))
            ends[0].leases.plan_started("a", BATCH)
            await asyncio.sleep(1.5)
        await asyncio.sleep(10.0)
        ends[0].leases.plan_started("b", BATCH)
        ends[0].leases.plan_ended("a")
        await asyncio.sleep(10.0)
        ends[0].leases.close()
        centre.close()
        centre.lose("n1")

    virtual_time.run(main())


def test_a_node_that_cannot_be_reached_is_published_to_in_vain() -> None:
    async def body(centre: CentralService, children: Children) -> None:
        end = make_end("n1", centre, connected=False)
        end.leases.plan_started("a", BATCH)
        await asyncio.sleep(5.0)
        assert centre.statistics().plans == 1
        assert end.granted == []
        centre.connect("n1", LocalLink(end.leases.take))
        await asyncio.sleep(2.0)
        assert end.granted[-1].plans[0].plan_id == "a"
        centre.lose("n1")
        await asyncio.sleep(3.0)
        end.leases.close()

    with_centre(body)


def test_a_node_follows_another_centre_that_takes_over() -> None:
    async def main() -> None:
        async with Children(lambda name, error: Directive.STOP) as children:
            first = CentralService(children, virtual_time.clock())
            second = CentralService(children, virtual_time.clock(), epoch=7)
            end = make_end("n1", first)
            end.leases.plan_started("a", BATCH)
            await asyncio.sleep(3.0)
            second.connect("n1", LocalLink(end.leases.take))
            end.leases.centre_changed(second)
            await asyncio.sleep(0.1)
            assert end.granted[-1].epoch == 7
            await asyncio.sleep(5.0)
            assert {lease.epoch for lease in end.granted[-5:]} == {7}
            for part in (first, second, end.leases):
                part.close()

    virtual_time.run(main())


def test_an_alarm_rings_at_the_earliest_time() -> None:
    async def main() -> None:
        rung: list[float] = []
        clock = virtual_time.clock()
        alarm = Alarm(clock, lambda: rung.append(clock.now()))
        alarm.set(5.0)
        alarm.set(2.0)
        alarm.set(9.0)
        alarm.set(None)
        await asyncio.sleep(10.0)
        alarm.set(3.0)
        await asyncio.sleep(1.0)
        alarm.set(20.0)
        alarm.cancel()
        await asyncio.sleep(20.0)
        assert rung == pytest.approx([2.0, 10.0], abs=0.002)

    virtual_time.run(main())


def test_the_ledger_says_what_was_served_by_class_of_link() -> None:
    ledger = Ledger()
    network = Link("network", "eth0", Direction.WRITE)
    for link, priority, nbytes in (
        (DISK, BATCH, 5),
        (DISK, NORMAL, 7),
        (Link("disk", "2:0"), BATCH, 11),
        (network, BATCH, 13),
    ):
        ledger.account("a", priority, link).record_chunk(nbytes, PathTaken.DIRECT, False, 0.5, 0.1)
    assert list(served(ledger, ["a", "unknown"])) == [
        Served("a", LinkClass("disk", Direction.READ), 23, 1.5),
        Served("a", LinkClass("network", Direction.WRITE), 13, 0.5),
    ]


class Mailbox:
    """A centre's end that only takes notes."""

    def __init__(self) -> None:
        self.sent: list[NodeMessage] = []

    def send(self, message: NodeMessage) -> None:
        self.sent.append(message)


def test_a_report_tells_what_the_ledger_says() -> None:
    async def main() -> None:
        ledger, mailbox = Ledger(), Mailbox()
        granted: list[Lease] = []
        leases = NodeLeases(
            "n1",
            clock=virtual_time.clock(),
            ledger=ledger,
            centre=mailbox,
            grant=granted.append,
            rerank=lambda reranking: None,
        )
        leases.plan_started("a", BATCH)
        await asyncio.sleep(0.5)
        ledger.account("a", BATCH, DISK).record_chunk(1000, PathTaken.DIRECT, False, 2.0, 0.1)
        await asyncio.sleep(1.0)
        joined, reported = mailbox.sent
        assert isinstance(joined, NodeJoined)
        assert joined.facts == (PlanAdmitted(PlanRank("a", BATCH)),)
        assert isinstance(reported, NodeReported)
        (usage,) = reported.facts
        assert usage == ("a", LinkClass("disk", Direction.READ), 1000, True)
        leases.close()

    virtual_time.run(main())


class LeasedTransfers(NoTransfers):
    """Gives the leases to whoever awaits them."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: asyncio.Queue[Lease] = asyncio.Queue()

    def set_lease(self, lease: Lease) -> None:
        self.arrived.put_nowait(lease)


def test_a_node_runs_the_centre_and_follows_its_leases() -> None:
    async def main() -> None:
        transfers = LeasedTransfers()
        released = asyncio.Event()

        async def work() -> None:
            await released.wait()

        async with asyncio.timeout(20), make_node(transfers) as node:
            handle = await node.submit(lambda scope: [TaskSpec("work", work)], plan_id="a", priority=BATCH)
            assert [(order.plan_id, order.weight) for order in (await transfers.arrived.get()).plans] == [("a", 1.0)]
            statistics = node.statistics()
            assert (statistics.central.plans, statistics.leases.plans) == (1, 1)
            await node.set_priority("a", NORMAL)
            while (await transfers.arrived.get()).plans[0].priority is not NORMAL:
                pass
            assert transfers.priorities["a"] is NORMAL
            released.set()
            await handle.wait()
            assert node.statistics().leases.plans == 0

    asyncio.run(main())


def published(messages: list[CentralMessage]) -> list[Lease]:
    return [message.lease for message in messages if isinstance(message, LeasePublished)]


def test_facts_stay_in_order_on_the_way() -> None:
    """A mailbox is a queue: what a node says first is heard first."""

    async def body(centre: CentralService, children: Children) -> None:
        received: list[CentralMessage] = []
        centre.connect("n1", LocalLink(received.append))
        facts: tuple[NodeFact, ...] = (PlanAdmitted(PlanRank("a", BATCH)),)
        centre.send(NodeJoined("n1", 1, facts))
        centre.send(NodeReported("n1", 2, 1.0, (PlanAdmitted(PlanRank("b", BATCH)),)))
        await asyncio.sleep(1.5)
        assert [order.plan_id for order in published(received)[-1].plans] == ["a", "b"]

    with_centre(body)
