"""The control plane and the central service on the real network: three nodes in one process, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from pystachio.errors import PystachioError
from pystachio.io_scheduler.core.request import Lease, PriorityClass
from pystachio.io_scheduler.ledger import Ledger
from pystachio.io_scheduler.network.frames import Carrier
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.network.transports import TransportChoice
from pystachio.runtime.actors import Children, Directive
from pystachio.runtime.central import NodeLeases
from pystachio.runtime.clock import SystemClock
from pystachio.runtime.membership.discovery import StaticDiscovery
from pystachio.runtime.membership.views import Address
from pystachio.server.central_link import ClusterCentre
from pystachio.server.control_plane import ControlPlane
from pystachio.server.long_messages import traffic_plan
from pystachio.server.messages import DrainOrdered, encode
from tests.io_scheduler.network.two_nodes import SECRET, running_service

pytestmark = pytest.mark.timeout(60)


@dataclass
class RealNode:
    control: ControlPlane
    network: Network
    leases: NodeLeases
    address: Address
    granted: list[Lease] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def members(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.control.view.members)

    async def wait_until(self, holds: Callable[[], bool], seconds: float = 20.0) -> None:
        """Looked at with each view, arrival, loss and lease."""
        async with asyncio.timeout(seconds):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


def decide(name: str, error: BaseException) -> Directive:
    raise AssertionError(f"{name} crashed") from error


async def start(stack: AsyncExitStack, name: str, *seeds: Address) -> RealNode:
    service = await stack.enter_async_context(running_service())
    for priority in PriorityClass:
        service.client(traffic_plan(priority), priority)
    control = ControlPlane(name, instance=name, discovery=StaticDiscovery(*seeds), clock=SystemClock())
    network = Network(
        node=name,
        service=service,
        secret=SECRET.encode(),
        transport=TransportChoice(Carrier.TCP, "asked for"),
        joined=control.note_connected,
        lost=control.note_lost,
        heard=control.note_heard,
    )
    await stack.enter_async_context(network)
    host, port = await network.listen()
    children = await stack.enter_async_context(Children(decide))
    centre = ClusterCentre(control, children, SystemClock())
    stack.callback(centre.close)

    def grant(lease: Lease) -> None:
        node.granted.append(lease)
        node.changed.set()

    def note_lost(peer: str, error: PystachioError) -> None:
        node.lost.append(peer)
        node.changed.set()

    leases = NodeLeases(
        name, clock=SystemClock(), ledger=Ledger(), centre=centre, grant=grant, rerank=lambda reranking: None
    )
    stack.callback(leases.close)
    centre.attach(leases)
    node = RealNode(control, network, leases, Address("", host, port))
    control.when_view_changes(lambda view: node.changed.set())
    control.when_node_reached(lambda name: node.changed.set())
    control.when_node_lost(note_lost)
    await stack.enter_async_context(control.open(network, host, port))
    return node


async def start_three(
    stack: AsyncExitStack, of_leader: AsyncExitStack | None = None
) -> tuple[RealNode, RealNode, RealNode]:
    """b and c know the place of a only."""
    a = await start(of_leader if of_leader is not None else stack, "a")
    b, c = await start(stack, "b", a.address), await start(stack, "c", a.address)
    for node in (a, b, c):
        await node.wait_until(lambda node=node: node.members() == ("a", "b", "c"))
        await node.wait_until(lambda node=node: len(node.control.available()) == 3)
    return a, b, c


async def test_nodes_join_by_a_seed_and_the_next_leader_takes_over() -> None:
    async with AsyncExitStack() as stack, AsyncExitStack() as of_leader:
        a, b, c = await start_three(stack, of_leader)
        assert a.control.view == b.control.view == c.control.view
        for node in (b, c):
            node.leases.plan_started("plan", PriorityClass.BATCH)
            await node.wait_until(lambda node=node: bool(node.granted))
        loop = asyncio.get_running_loop()
        left_at = loop.time()
        epoch = c.granted[-1].epoch
        await of_leader.aclose()
        await c.wait_until(lambda: c.granted[-1].epoch > epoch)
        assert loop.time() - left_at < 2.0
        assert c.members() == ("b", "c")
        assert b.control.view.leader == "b"
        assert (b.lost, c.lost) == (["a"], ["a"])


async def test_a_peer_that_tells_nonsense_is_disconnected() -> None:
    async with AsyncExitStack() as stack:
        _, b, c = await start_three(stack)
        b.network.tell("c", b"nonsense")
        await c.wait_until(lambda: c.lost == ["b"])
        assert c.control.statistics().malformed == 1


async def test_drain_orders_arrive() -> None:
    async with AsyncExitStack() as stack:
        a, b, _ = await start_three(stack)
        b.network.tell("c", encode(DrainOrdered(True)))
        await a.wait_until(lambda: [member.draining for member in a.control.view.members] == [False, False, True])
