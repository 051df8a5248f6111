"""The central service in a cluster: on the leader, from every node, and after the leader's end. In virtual time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from pystachio.io_scheduler.central.events import LeasePublished
from pystachio.io_scheduler.central.lease_holder import Reranking
from pystachio.io_scheduler.core.request import Lease, Link, PathTaken, PriorityClass
from pystachio.io_scheduler.ledger import Ledger
from pystachio.runtime.actors import Children, Directive
from pystachio.runtime.central import NodeLeases
from pystachio.runtime.executor import TaskSpec
from pystachio.runtime.memory import Tier
from pystachio.runtime.node import Node
from pystachio.runtime.settings import ExecutionSettings
from pystachio.server.central_link import EPOCHS_PER_VIEW, ClusterCentre
from pystachio.server.central_messages import to_node
from pystachio.server.control_plane import ControlPlane
from tests import virtual_time
from tests.runtime.nodes import NoTransfers
from tests.server.hub import Hub, HubNetwork, addresses, make_control, opened

INTERACTIVE, NORMAL, BATCH = PriorityClass
DISK = Link("disk", "1:0")
MIB = 1 << 20


@dataclass
class End:
    """One node: its control plane, its way to the centre, and the leases that reached its scheduler, with times."""

    control: ControlPlane
    network: HubNetwork
    centre: ClusterCentre
    leases: NodeLeases
    ledger: Ledger
    granted: list[tuple[float, Lease]]
    reranked: list[Reranking]

    def run(self, plan_id: str, priority: PriorityClass = BATCH) -> None:
        self.leases.plan_started(plan_id, priority)


def decide(name: str, error: BaseException) -> Directive:
    raise AssertionError(f"{name} crashed") from error


async def start_end(stack: AsyncExitStack, hub: Hub, name: str, port: int, *listed: str) -> End:
    control = make_control(name, *addresses(*listed))
    children = await stack.enter_async_context(Children(decide))
    clock = virtual_time.clock()
    centre = ClusterCentre(control, children, clock)
    stack.callback(centre.close)
    ledger = Ledger()
    granted: list[tuple[float, Lease]] = []
    reranked: list[Reranking] = []
    leases = NodeLeases(
        name,
        clock=clock,
        ledger=ledger,
        centre=centre,
        grant=lambda lease: granted.append((clock.now(), lease)),
        rerank=reranked.append,
    )
    stack.callback(leases.close)
    centre.attach(leases)
    network = await stack.enter_async_context(opened(hub, control, port))
    return End(control, network, centre, leases, ledger, granted, reranked)


async def start(stack: AsyncExitStack, *names: str) -> tuple[Hub, list[End]]:
    hub = Hub()
    ends = [await start_end(stack, hub, name, port, *names) for port, name in enumerate(names, 1)]
    await asyncio.sleep(5.0)
    return hub, ends


def test_the_leader_alone_runs_the_centre_and_every_node_is_leased() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            _, ends = await start(stack, "a", "b", "c")
            for end in ends:
                end.run("plan")
            await asyncio.sleep(3.0)
            statistics = [end.centre.statistics() for end in ends]
            assert statistics[0] is not None
            assert statistics[1:] == [None, None]
            assert (statistics[0].nodes, statistics[0].plans) == (3, 1)
            assert statistics[0].epoch == ends[0].control.view.epoch * EPOCHS_PER_VIEW
            for end in ends:
                assert [order.plan_id for order in end.granted[-1][1].plans] == ["plan"]

    virtual_time.run(main())


def test_a_change_of_class_reaches_every_node() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            _, ends = await start(stack, "a", "b", "c")
            for end in ends:
                end.run("plan")
            await asyncio.sleep(3.0)
            ends[2].leases.plan_reranked("plan", INTERACTIVE)
            await asyncio.sleep(0.5)
            for end in ends[:2]:
                assert [order.priority for order in end.reranked] == [INTERACTIVE]

    virtual_time.run(main())


def ratio(lease: Lease) -> float:
    weights = {order.plan_id: order.weight for order in lease.plans}
    return weights["narrow"] / weights["wide"]


async def keep_unfair(ends: list[End]) -> None:
    """`wide` waits for the disks of all nodes, `narrow` for that of the last: its weight there is corrected."""
    while True:
        for end in ends:
            end.ledger.account("wide", BATCH, DISK).record_chunk(64 * MIB, PathTaken.DIRECT, False, 2.0, 0.1)
        ends[-1].ledger.account("narrow", BATCH, DISK).record_chunk(64 * MIB, PathTaken.DIRECT, False, 2.0, 0.1)
        await asyncio.sleep(1.0)


def test_the_next_leader_goes_on_from_the_weights_held_within_two_seconds() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            _, ends = await start(stack, "a", "b", "c")
            for end in ends:
                end.run("wide")
            ends[-1].run("narrow")
            load = asyncio.create_task(keep_unfair(ends))
            await asyncio.sleep(20.0)
            last = ends[-1]
            held = ratio(last.granted[-1][1])
            assert held > 1.5, "the centre sees what no node sees"
            killed_at = asyncio.get_running_loop().time()
            epoch = last.granted[-1][1].epoch
            ends[0].network.kill()
            await asyncio.sleep(2.0)
            for end in ends[1:]:
                leases = [lease for at, lease in end.granted if lease.epoch > epoch and at <= killed_at + 2.0]
                assert leases, "there is a lease of the new centre"
            assert ends[1].centre.statistics() is not None
            assert ratio(leases[0]) == pytest.approx(held, rel=0.01)
            holes = [one for (one, lease), (other, _) in pairwise(last.granted) if other > one + lease.seconds]
            assert holes == [], "no lease ended before the next one came"
            load.cancel()

    virtual_time.run(main())


def test_a_node_that_is_lost_is_lost_to_the_centre() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            _, ends = await start(stack, "a", "b", "c")
            for end in ends:
                end.run(f"plan {end.control.name}")
            await asyncio.sleep(3.0)
            ends[2].network.kill()
            await asyncio.sleep(1.0)
            statistics = ends[0].centre.statistics()
            assert statistics is not None
            assert (statistics.nodes, statistics.plans) == (2, 2)

    virtual_time.run(main())


def test_centres_of_two_sides_become_one_that_is_heard() -> None:
    """Whoever led a side alone has published higher epochs there: the one centre's are higher still."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            hub, ends = await start(stack, "a", "b", "c")
            for end in ends:
                end.run("plan")
            await asyncio.sleep(3.0)
            a, b, c = (end.network for end in ends)
            hub.cut(a, b)
            hub.cut(a, c)
            await asyncio.sleep(5.0)
            assert [end.centre.statistics() is not None for end in ends] == [True, True, False]
            hub.heal()
            await asyncio.sleep(10.0)
            statistics = [end.centre.statistics() for end in ends]
            assert statistics[0] is not None
            assert statistics[1:] == [None, None]
            assert (statistics[0].nodes, statistics[0].superseded) == (3, False)
            for end in ends:
                assert end.granted[-1][1].epoch == statistics[0].epoch

    virtual_time.run(main())


def test_leases_of_who_does_not_lead_are_not_taken() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            _, ends = await start(stack, "a", "b", "c")
            ends[2].run("plan")
            await asyncio.sleep(3.0)
            count = len(ends[2].granted)
            lease = Lease(1 << 40, 1, 3.0, ())
            ends[1].control.tell("c", to_node(LeasePublished(lease, 0)))
            await asyncio.sleep(0.1)
            assert len(ends[2].granted) == count

    virtual_time.run(main())


def test_a_node_is_given_its_name_and_the_way_to_the_centre() -> None:
    """Two real nodes; the second's plan is in the books of the first one's centre."""

    def make(control: ControlPlane) -> Node:
        return Node(
            transfers=NoTransfers(),
            settings=ExecutionSettings(workers=1),
            memory={Tier.HOST: MIB},
            device=torch.device("cpu"),
            clock=virtual_time.clock(),
            name=control.name,
            open_centre=lambda children, clock, name: ClusterCentre(control, children, clock),
        )

    async def main() -> None:
        hub = Hub()
        controls = [make_control(name, *addresses("a", "b")) for name in ("a", "b")]
        async with AsyncExitStack() as stack:
            nodes = []
            for port, control in enumerate(controls, 1):
                await stack.enter_async_context(opened(hub, control, port))
                nodes.append(await stack.enter_async_context(make(control)))
            await asyncio.sleep(5.0)
            released = asyncio.Event()

            async def work() -> None:
                await released.wait()

            handle = await nodes[1].submit(lambda scope: [TaskSpec("work", work)], plan_id="plan", priority=BATCH)
            await asyncio.sleep(3.0)
            statistics = nodes[0].statistics().central
            assert statistics is not None
            assert statistics.plans == 1
            assert nodes[1].name == "b"
            assert nodes[1].statistics().central is None
            assert nodes[1].statistics().leases.granted > 0
            released.set()
            await handle.wait()

    virtual_time.run(main(), threads=True)
