"""Plans found and steered from any node: planes that hand messages to each other in one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pystachio.errors import NodeLost, NotFound, PystachioError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.urgency import Urgency
from pystachio.server import steering as steering_module
from pystachio.server.messages import decode, encode
from pystachio.server.steering import Steering


class FakePlane:
    def __init__(self, name: str, planes: dict[str, FakePlane]) -> None:
        self.name = name
        self.planes = planes
        self.handlers: dict[type[Any], Callable[[str, Any], None]] = {}
        self.lost: list[Callable[[str, PystachioError], None]] = []
        self.told: list[str] = []
        self.is_mute = False
        planes[name] = self

    def handle(self, kind: type[Any], handler: Callable[[str, Any], None]) -> None:
        self.handlers[kind] = handler

    def reaches(self, node: str) -> bool:
        return node in self.planes

    def tell(self, node: str, message: Any) -> None:
        self.told.append(node)
        receiver = self.planes[node]
        if not receiver.is_mute:
            arrived = decode(encode(message))
            asyncio.get_running_loop().call_soon(lambda: receiver.handlers[type(arrived)](self.name, arrived))

    async def deliver(self, node: str, message: Any) -> None:
        self.tell(node, message)

    def when_node_lost(self, callback: Callable[[str, PystachioError], None]) -> None:
        self.lost.append(callback)


class FakePlans:
    def __init__(self, *plan_ids: str) -> None:
        self.ids = plan_ids
        self.done: list[tuple[Any, ...]] = []

    def plan_ids(self) -> tuple[str, ...]:
        return self.ids

    def cancel(self, plan_id: str) -> None:
        self.done.append((plan_id,))

    def set_urgency(self, plan_id: str, priority: str, deadline: float | None) -> None:
        self.done.append((plan_id, priority, deadline))


class FakeCluster:
    def __init__(self, *plans: FakePlans) -> None:
        self.planes: dict[str, FakePlane] = {}
        self.nodes = [
            Steering(FakePlane(f"n{number}", self.planes), own, nodes=lambda: tuple(self.planes))  # type: ignore[arg-type]
            for number, own in enumerate(plans)
        ]


async def test_a_plan_is_found_by_the_beginning_of_its_id() -> None:
    cluster = FakeCluster(FakePlans("abc1"), FakePlans("abc2", "xyz"), FakePlans())
    assert await cluster.nodes[2].find("xy") == ("xyz",)
    assert await cluster.nodes[0].find("abc") == ("abc1", "abc2")
    assert await cluster.nodes[2].find("abc2") == ("abc2",)
    assert await cluster.nodes[2].find("no") == ()


async def test_a_plan_that_is_run_again_is_found_by_what_nodes_call_it() -> None:
    cluster = FakeCluster(FakePlans("abc1"), FakePlans())
    assert await cluster.nodes[1].find("abc1-2") == ("abc1",)


async def test_orders_reach_the_coordinator_and_nobody_else() -> None:
    plans = [FakePlans("a"), FakePlans("b"), FakePlans("c")]
    cluster = FakeCluster(*plans)
    await cluster.nodes[0].cancel("b")
    await cluster.nodes[1].set_urgency("b", Urgency(PriorityClass.BATCH))
    await cluster.nodes[2].set_urgency("a", Urgency(PriorityClass.INTERACTIVE, 2.0))
    assert plans[0].done == [("a", "interactive", 2.0)]
    assert plans[1].done == [("b",), ("b", "batch", None)]
    assert plans[2].done == []


async def test_a_plan_that_is_nowhere() -> None:
    cluster = FakeCluster(FakePlans("a"), FakePlans("b"))
    with pytest.raises(NotFound):
        await cluster.nodes[0].cancel("c")


async def test_a_node_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering_module, "ANSWER_SECONDS", 0.01)
    cluster = FakeCluster(FakePlans("a"), FakePlans("b"), FakePlans("c"))
    cluster.planes["n2"].is_mute = True
    assert await cluster.nodes[0].find("b") == ("b",)
    with pytest.raises(NodeLost, match="n2"):
        await cluster.nodes[0].find("c")
    with pytest.raises(NodeLost, match="n2"):
        await cluster.nodes[0].cancel("c")


async def test_a_node_that_is_lost_is_not_waited_for() -> None:
    cluster = FakeCluster(FakePlans("a"), FakePlans("b"))
    cluster.planes["n1"].is_mute = True
    search = asyncio.ensure_future(cluster.nodes[0].find("c"))
    for _ in range(2):
        await asyncio.sleep(0)
    assert cluster.planes["n0"].told == ["n1"]
    del cluster.planes["n0"].planes["n1"]
    for callback in cluster.planes["n0"].lost:
        callback("n1", NodeLost("gone"))
    assert await search == ()


async def test_answers_to_no_question_are_left_alone() -> None:
    cluster = FakeCluster(FakePlans("a"), FakePlans())
    from pystachio.server.plan_messages import PlansFound

    cluster.planes["n1"].tell("n0", PlansFound(99, ("z",)))
    await asyncio.sleep(0)
    assert await cluster.nodes[0].find("z") == ()
