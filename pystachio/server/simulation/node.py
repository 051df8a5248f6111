"""A whole node of a cluster on a loop that it shares: `ClusterNode` without a thread, a socket or a disk of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from random import Random
from typing import TypeVar

import torch

from pystachio.config import ClusterSettings, Settings
from pystachio.embedded import EmbeddedNode, OpenBeside, execution_settings
from pystachio.errors import InvalidRequest
from pystachio.io_scheduler.buffers import BufferPool
from pystachio.io_scheduler.core.request import Link
from pystachio.io_scheduler.history import History
from pystachio.io_scheduler.links import Locate
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.planner.distribution.distribution import Preference
from pystachio.runtime.central import OpenCentre
from pystachio.runtime.host import NodeHost
from pystachio.runtime.membership.discovery import StaticDiscovery
from pystachio.runtime.membership.views import Address
from pystachio.runtime.memory import Tier
from pystachio.runtime.node import Node
from pystachio.server.cluster_node import ClusterNode
from pystachio.server.simulation.machine import HOST, SimulatedDisk, SimulatedLooks, SimulatedWorkers

R = TypeVar("R")

PORT = 7000
_SECRET = b"the secret of simulated clusters"
_IDLE_BUFFER_BYTES = 4 << 20


class SimulatedHost(NodeHost):
    """`NodeHost` on the loop that calls it."""

    def __init__(self) -> None:
        super().__init__(lambda: _never())
        self._context = Context()

    def begin(self, node: Node) -> None:
        self._node, self._context = node, copy_context()

    def end(self) -> None:
        self._node = None

    def call(self, coroutine: Coroutine[object, object, R]) -> Future[R]:
        coroutine.close()
        raise InvalidRequest("a simulated node has no thread that could wait")

    def call_soon(self, callback: Callable[[], None]) -> asyncio.AbstractEventLoop:
        if self._node is None:
            raise InvalidRequest("the node is not running")
        loop = asyncio.get_running_loop()
        loop.call_soon(callback, context=self._context)
        return loop


class SimulatedHome(EmbeddedNode):
    """What `ClusterNode` stands on."""

    def __init__(self, settings: Settings, *, name: str, open_centre: OpenCentre, beside: OpenBeside) -> None:
        self.disk = SimulatedDisk()
        self._settings = settings
        self._name = name
        self._open_centre = open_centre
        self._beside = beside
        self._host = self._simulated = SimulatedHost()
        self._workers = settings.threads

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        self._transfers = IoSchedulerService(
            open_device=lambda link: self.disk,
            locate=_locate,
            buffers=BufferPool(idle_bytes=_IDLE_BUFFER_BYTES),
            clock=loop.time,
            history=History(enabled=False),
        )
        node = Node(
            transfers=self._transfers,
            settings=execution_settings(self._settings),
            memory={Tier.HOST: self._settings.memory},
            device=torch.device("cpu"),
            name=self._name,
            open_centre=self._open_centre,
            open_workers=SimulatedWorkers,
        )
        async with node, self._beside(node, self._transfers):
            self._simulated.begin(node)
            try:
                yield
            finally:
                self._simulated.end()

    @property
    def transfers(self) -> IoSchedulerService:
        return self._transfers


class SimulatedNode:
    """One start of a node: `async with`-free, because its end may come from a fault. `ended` is set when it is gone."""

    def __init__(
        self,
        host: str,
        name: str,
        seeds: tuple[Address, ...],
        settings: Settings,
        *,
        preference: Preference,
        instance: str,
        chance: Random,
        short_bytes: int,
    ) -> None:
        self.host = host
        self.name = name
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self.is_killed = False
        self._homes: list[SimulatedHome] = []
        cluster = ClusterSettings.model_validate(
            {"listen": f"{host}:{PORT}", "transport": "tcp", "watchdog_seconds": 0, "alone_bytes": 0}
        )
        self.member = ClusterNode(
            settings,
            cluster,
            name=name,
            secret=_SECRET,
            discovery=StaticDiscovery(*seeds),
            preference=preference,
            embed=self._embed,
            instance=instance,
            chance=chance,
        )
        self.member.plane.short_bytes = short_bytes
        self.member.looks = SimulatedLooks(seconds=cluster.file_seconds)
        self.task = asyncio.get_running_loop().create_task(self._live(), name=f"{name} ({instance})")

    @property
    def home(self) -> SimulatedHome:
        return self._homes[0]

    @property
    def is_running(self) -> bool:
        return self.ready.is_set() and not self.stopped.is_set()

    def _embed(
        self, settings: Settings, *, name: str, open_centre: OpenCentre, beside: OpenBeside, locate: Locate
    ) -> SimulatedHome:
        """It has one disk, whatever the production's function says."""
        self._homes.append(SimulatedHome(settings, name=name, open_centre=open_centre, beside=beside))
        return self._homes[0]

    async def _live(self) -> None:
        HOST.set(self.host)
        async with self.home.opened():
            self.ready.set()
            await self.stopped.wait()


async def _locate(path: str) -> Link:
    return Link("disk", "0")


def _never() -> Node:
    raise InvalidRequest("a simulated host starts no thread")
