"""A control plane without a network: what is told is kept, and what is heard is said by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pystachio.errors import NodeLost, PystachioError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.values import Values
from pystachio.runtime.membership.views import Member, View
from pystachio.runtime.urgency import Urgency


class PlainPlane:
    """`server.plane.Plane` of the node `name`, in one view with `others`."""

    def __init__(self, name: str, *others: str) -> None:
        self.name = name
        self.told: list[tuple[str, Any]] = []
        members = tuple(Member(each, "host", port, "1") for port, each in enumerate(sorted((name, *others)), start=1))
        self.view = View(1, min(name, *others), members)
        self._handlers: dict[type[Any], Callable[[str, Any], None]] = {}
        self._lost: list[Callable[[str, PystachioError], None]] = []
        self._gone: set[str] = set()
        self._was_told = asyncio.Event()
        self._changed: list[Callable[[View], None]] = []
        self._reached: list[Callable[[str], None]] = []

    def available(self) -> tuple[Member, ...]:
        return tuple(member for member in self.view.members if member.name not in self._gone)

    def reaches(self, node: str) -> bool:
        return self.view.member(node) is not None and node not in self._gone

    def handle(self, kind: type[Any], handler: Callable[[str, Any], None]) -> None:
        self._handlers[kind] = handler

    def tell(self, node: str, message: Any) -> None:
        self.told.append((node, message))
        self._was_told.set()

    async def deliver(self, node: str, message: Any) -> None:
        self.tell(node, message)

    async def until_told(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.told) < count:
                self._was_told.clear()
                await self._was_told.wait()

    def when_node_lost(self, callback: Callable[[str, PystachioError], None]) -> None:
        self._lost.append(callback)

    def when_view_changes(self, callback: Callable[[View], None]) -> None:
        self._changed.append(callback)

    def when_node_reached(self, callback: Callable[[str], None]) -> None:
        self._reached.append(callback)

    def adopt(self, epoch: int, *others: str) -> None:
        """A view of this node and the others."""
        members = tuple(Member(each, "host", 1, "1") for each in sorted((self.name, *others)))
        self.view = View(epoch, members[0].name, members)
        for callback in self._changed:
            callback(self.view)

    def hear(self, sender: str, message: Any) -> None:
        self._handlers[type(message)](sender, message)

    def lose(self, node: str) -> None:
        self._gone.add(node)
        for callback in self._lost:
            callback(node, NodeLost("the node is lost", node=node))

    def come_back(self, node: str) -> None:
        self._gone.discard(node)
        for callback in self._reached:
            callback(node)

    def plan(self) -> PhysicalPlan:
        """One that reads nothing."""
        return PhysicalPlan(Values((), ()), (), ())

    def urgency(self) -> Urgency:
        return Urgency(PriorityClass.NORMAL, None)
