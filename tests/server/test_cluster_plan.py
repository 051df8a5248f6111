"""A plan as its client holds it, with a coordinator that does what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pystachio.errors import NodeLost
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.urgency import Urgency
from pystachio.server.cluster_plan import ClusterPlan
from pystachio.server.coordinator import Attempt, PreparedPlan
from tests.server.plain_plane import PlainPlane


class LosingNode:
    """Every attempt loses a node, after `meanwhile`, which is told how many there were."""

    retries = 1
    node = "a"

    def __init__(self, meanwhile: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        self.coordinator = self.host = self
        self.begun: list[Urgency] = []
        self._meanwhile = meanwhile

    def call_soon(self, work: Callable[[], None]) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        loop.call_soon(work)
        return loop

    def run(self, plan: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        return asyncio.create_task(plan, name=name)

    def holds(self, answer: object) -> None:
        """It has no rows."""

    async def prepare(self, plan: Any, without: Any) -> tuple[tuple[str, ...], PreparedPlan]:
        await self._meanwhile(len(self.begun))
        return ("a", "b"), PreparedPlan(plan, b"", {})

    def begin(self, plan_id: str, nodes: tuple[str, ...], changed: Callable[[], None]) -> Attempt:
        return Attempt(plan_id, nodes, set(), changed)

    def start(self, attempt: Attempt, prepared: PreparedPlan, urgency: Urgency, label: str) -> Any:
        self.begun.append(urgency)
        raise NodeLost("lost", node="b")

    async def end(self, attempt: Attempt, *, cancel: bool) -> None:
        """Nothing is left of it."""


@pytest.mark.parametrize("seconds", [None, 50.0])
async def test_a_deadline_counts_from_when_it_was_set(seconds: float | None) -> None:
    async def meanwhile(attempts: int) -> None:
        if attempts == 1:
            await asyncio.sleep(0.2)
            plan.set_urgency(Urgency(PriorityClass.INTERACTIVE, seconds))

    node = LosingNode(meanwhile)
    plan = ClusterPlan(node, PlainPlane("a").plan(), "")  # type: ignore[arg-type]
    plan.submit(Urgency(PriorityClass.NORMAL, 100.0))
    with pytest.raises(NodeLost):
        await plan.take()
    first, second = node.begun
    assert (first.priority, second.priority) == (PriorityClass.NORMAL, PriorityClass.INTERACTIVE)
    assert first.deadline == pytest.approx(100.0, abs=0.1)
    assert second.deadline == pytest.approx(99.8 if seconds is None else seconds, abs=0.1)
