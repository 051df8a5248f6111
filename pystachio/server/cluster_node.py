"""A node that is a member of a cluster: what sessions stand on here, and what runs beside the node on its loop."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from random import Random
from typing import Protocol

from pystachio.config import ClusterSettings, EmulatedNetwork, Settings
from pystachio.embedded import EmbeddedNode, OpenBeside, SessionStatistics
from pystachio.endpoint import Endpoint, parse_endpoint
from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.core.request import Extent, Link, PriorityClass
from pystachio.io_scheduler.devices import Device
from pystachio.io_scheduler.devices.disks import disk_link
from pystachio.io_scheduler.devices.emulated import EmulatedDevice
from pystachio.io_scheduler.ledger import Totals
from pystachio.io_scheduler.links import Locate
from pystachio.io_scheduler.network.limits import NetworkLimits
from pystachio.io_scheduler.network.liveness import Health
from pystachio.io_scheduler.network.network import Network
from pystachio.io_scheduler.network.transports import choose_transport
from pystachio.io_scheduler.network.visits import Visit
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.chunks.samples import ChunkSamples
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.table import FileVersion, ParquetFile
from pystachio.planner.distribution.distribution import Preference
from pystachio.remote.door import tls_files
from pystachio.result import StartedPlan
from pystachio.running_plan import RunningPlan
from pystachio.runtime.actors import Children
from pystachio.runtime.central import Centre, OpenCentre
from pystachio.runtime.clock import Clock, SystemClock
from pystachio.runtime.host import NodeHost
from pystachio.runtime.membership.discovery import Discovery
from pystachio.runtime.memory import Tier
from pystachio.runtime.node import Node
from pystachio.runtime.urgency import Urgency
from pystachio.runtime.watchdog import Watchdog
from pystachio.server.central_link import ClusterCentre
from pystachio.server.cluster_plan import ClusterPlan
from pystachio.server.control_plane import ControlPlane, MemberStanding
from pystachio.server.coordinator import Coordinator
from pystachio.server.description import MemberDescription, NodeDescription
from pystachio.server.elsewhere import FilesElsewhere
from pystachio.server.file_looks import FileLooks
from pystachio.server.fragments import Fragments
from pystachio.server.listening import cannot_listen
from pystachio.server.long_messages import traffic_plan
from pystachio.server.own_tables import require_readable
from pystachio.server.refused_contacts import RefusedArrivals
from pystachio.trace.plan_trace import PlanTrace

_UCX_ON_LOOPBACK = {"NET_DEVICES": "lo", "POSIX_ERROR_HANDLING": "y", "SYSV_ERROR_HANDLING": "y"}
"""UCX's sockets on the loopback device alone; its TCP does not connect there, so that data goes by shared memory, which
without error handling it does not use between processes that may die."""

_HELD_SHARE = 8
"""Beside the memory budget, this part of it may be rows that wait for their clients."""


class Embed(Protocol):
    def __call__(
        self, settings: Settings, *, name: str, open_centre: OpenCentre, beside: OpenBeside, locate: Locate
    ) -> EmbeddedNode: ...


class ClusterNode:
    """`session.SessionNode`: plans that are submitted here run on all nodes of the cluster that can be given work.

    Usable from any thread. The node, its network and its control plane live on one loop, on a thread of its own.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterSettings,
        *,
        name: str,
        secret: bytes,
        discovery: Discovery,
        visited: Callable[[Visit], None] | None = None,
        door: AbstractAsyncContextManager[object] | None = None,
        emulate: Callable[[Device], Device] | None = None,
        preference: Preference = Preference.BYTES,
        embed: Embed = EmbeddedNode,
        instance: str | None = None,
        chance: Random | None = None,
    ) -> None:
        """`visited` is called on the loop with each client; `door` is entered there before the node is anybody's
        member, and left when it is none any more. `emulate` is that of `Network`, in place of the settings'.
        `embed` makes what the node stands on; `instance` and `chance` are those of `ControlPlane`.

        Raises InvalidRequest (TLS files, a folder of `data` that is missing, a host that nobody knows), Unsupported
        (the transport that was asked for), DataError (a file in a folder of `data`), ResourceExhausted (no thread, no
        files, an address that cannot be had), and what entering `door` raises.
        """
        self.name = name
        self.settings = settings
        self.cluster = cluster
        self._secret = secret
        self._visited = visited
        self._door = door if door is not None else nullcontext()
        self._emulate = emulate or _emulated(cluster.emulated)
        self._preference = preference
        self._transport = choose_transport(cluster.transport, with_tls=cluster.has_tls)
        self._clock: Clock = SystemClock()
        self.plane = ControlPlane(
            name, instance=instance or secrets.token_hex(8), discovery=discovery, clock=self._clock, chance=chance
        )
        self.looks = FileLooks(seconds=cluster.file_seconds)
        self.address = ("", 0)
        self._embedded = embed(
            settings, name=name, open_centre=self._open_centre, beside=self._beside, locate=self._locate
        )

    @property
    def advertised(self) -> Endpoint:
        """Where others find this node, once it listens."""
        if self.cluster.advertise is None:
            return Endpoint(*self.address)
        host, port = parse_endpoint(self.cluster.advertise)
        return Endpoint(host, port or self.address[1])

    @property
    def host(self) -> NodeHost:
        return self._embedded.host

    @property
    def keeps_traces(self) -> bool:
        return self._embedded.keeps_traces

    @property
    def samples(self) -> ChunkSamples | None:
        return self._embedded.samples

    @property
    def plans(self) -> None:
        """A plan that was kept has no estimates, by which a plan of several nodes is made."""
        return None

    def close(self) -> None:
        """Cancel what runs, leave the cluster, and end the node's thread. May be called twice."""
        self._embedded.close()
        self.looks.close()

    def find_files(self, paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]:
        """What the paths stand for on any node of the cluster; not on the loop."""
        return self.host.call(self._elsewhere.find(paths, known)).result()

    def find_client_files(self, paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]:
        """As `find_files`, of what clients may name. Raises Unauthorized for other files."""
        return self.host.call(self._elsewhere.find(paths, known, for_client=True)).result()

    def read_footers(self, versions: Sequence[FileVersion]) -> list[ParquetFile]:
        return self.host.call(self._elsewhere.read_footers(versions)).result()

    def fetch(self, path: str, extents: Sequence[Extent]) -> list[HostBuffer]:
        return self._embedded.fetch(path, extents)

    def expect(self, urgency: Urgency) -> None:
        self._embedded.expect(urgency)

    def statistics(self) -> SessionStatistics:
        return self._embedded.statistics()

    def plan_trace(self, plan: RunningPlan, submitted: float) -> PlanTrace:
        return self._embedded.plan_trace(plan, submitted)

    def totals(self, plan_id: str) -> Totals:
        return self._embedded.totals(plan_id)

    def as_run(self, plan: PhysicalPlan) -> PhysicalPlan:
        """The plan for the nodes that can be given work now; not on the loop."""

        async def ask() -> PhysicalPlan:
            return (await self.coordinator.prepare(plan))[1].plan

        return self.host.call(ask()).result()

    def submit(self, plan: PhysicalPlan, urgency: Urgency, label: str) -> StartedPlan:
        """Start the plan on the cluster."""
        submitted = ClusterPlan(self, plan, label)
        submitted.submit(urgency)
        return submitted

    def drain(self, draining: bool = True) -> None:
        """Get no more parts of plans; what runs is finished. From any thread."""

        async def tell() -> None:
            self.plane.drain(self.name, draining)

        self.host.call(tell()).result()

    def describe(self) -> NodeDescription:
        """From any thread."""

        async def ask() -> NodeDescription:
            return self.describe_nowait()

        return self.host.call(ask()).result()

    def describe_nowait(self) -> NodeDescription:
        """On the loop."""
        view, node = self.plane.view, self.host.node.statistics()
        me = view.member(self.name)
        host_memory = node.memory[Tier.HOST]
        return NodeDescription(
            name=self.name,
            address=str(Endpoint(*self.address)),
            epoch=view.epoch,
            leader=view.leader,
            members=tuple(_described(standing) for standing in self.plane.standings()),
            plans=node.plans_running - self.fragments.running,
            fragments=self.fragments.running,
            memory_used=host_memory.used,
            memory_budget=host_memory.budget,
            transports=(self._transport.carrier.name.lower(),),
            draining=me is not None and me.draining,
        )

    async def _locate(self, path: str) -> Link:
        """`links.Locate`, on threads that no other file system and nothing else on the node waits for."""
        return await self.looks.look_at(disk_link, path)

    def _open_centre(self, children: Children, clock: Clock, name: str) -> Centre:
        return ClusterCentre(self.plane, children, clock)

    @asynccontextmanager
    async def _beside(self, node: Node, transfers: IoSchedulerService) -> AsyncIterator[None]:
        """The network, the control plane, and what plans of other nodes need, for as long as the node lives."""
        endpoint = self.cluster.endpoint
        async with AsyncExitStack() as resources:
            self.network = Network(
                node=self.name,
                service=transfers,
                secret=self._secret,
                transport=self._transport,
                joined=self.plane.note_connected,
                lost=self.plane.note_lost,
                refused=RefusedArrivals(self._clock).note,
                heard=self.plane.note_heard,
                visited=self._visited,
                limits=NetworkLimits(visitors=self.cluster.clients),
                tls=tls_files(self.cluster),
                emulate=self._emulate,
                ucx_options=_UCX_ON_LOOPBACK if endpoint.is_loopback else None,
            )
            await resources.enter_async_context(self.network)
            for priority in PriorityClass:
                transfers.client(traffic_plan(priority), priority)
            looks = self.looks
            self.coordinator = Coordinator(
                self.plane,
                self.network,
                looks,
                preference=self._preference,
                retries=self.cluster.retries,
                alone_bytes=self.cluster.alone_bytes,
                held_bytes=self.settings.memory // _HELD_SHARE,
                missed=lambda: self._elsewhere.forget(),
            )
            self.fragments = Fragments(self.plane, node, transfers, self.network, looks)
            self._elsewhere = FilesElsewhere(self.plane, transfers, looks, client_folders=self.cluster.client_folders)
            # A node that cannot serve is nobody's member meanwhile.
            await require_readable(self.cluster.data, looks, transfers)
            await resources.enter_async_context(self._door)
            try:
                listening = await self.network.listen(endpoint.host, endpoint.port)
            except OSError as error:
                message = f"the node cannot listen at {self.cluster.listen}"
                raise cannot_listen(message, "cluster_listen", error) from error
            self.address = (listening.host, listening.port)
            await resources.enter_async_context(self.fragments)
            await resources.enter_async_context(self._elsewhere)
            await resources.enter_async_context(self.plane.open(self.network, *self.advertised))
            resources.push_async_callback(self.coordinator.close)
            if self.cluster.watchdog_seconds:
                resources.enter_context(Watchdog(seconds=self.cluster.watchdog_seconds))
            yield


def _emulated(network: EmulatedNetwork | None) -> Callable[[Device], Device] | None:
    if network is None:
        return None
    return partial(EmulatedDevice, bytes_per_second=network.rate, latency_seconds=network.latency)


def _described(standing: MemberStanding) -> MemberDescription:
    member = standing.member
    state = "draining" if member.draining and standing.health is Health.ALIVE else standing.health.value
    return MemberDescription(name=member.name, address=str(Endpoint(member.host, member.port)), state=state)


async def until_members(node: ClusterNode, count: int) -> None:
    """Wait, on the node's loop, until so many members can be given work by this one."""
    await _until(node, lambda: len(node.plane.available()) >= count)


async def until_joined(node: ClusterNode) -> None:
    """Wait, on the node's loop, until it is a member beside another one that is reached, though that may drain."""
    plane = node.plane
    await _until(node, lambda: any(plane.reaches(each.name) for each in plane.view.members if each.name != node.name))


async def _until(node: ClusterNode, condition: Callable[[], bool]) -> None:
    changed = asyncio.Event()
    node.plane.when_view_changes(lambda _: changed.set())
    node.plane.when_node_reached(lambda _: changed.set())
    while not condition():
        changed.clear()
        await changed.wait()
