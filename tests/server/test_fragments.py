"""Parts of other nodes' plans: every one that is started is told the end of, once."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from pystachio.errors import Cancelled, NodeLost, NotFound, PystachioError
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.kernels.partition import hashing
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.table import FileVersion
from pystachio.planner.distribution.distribution import Preference, distribute
from pystachio.runtime.clock import SystemClock
from pystachio.runtime.metrics import PlanMetrics
from pystachio.runtime.node import Node
from pystachio.runtime.peers import Messages
from pystachio.runtime.plan import PlanHandle
from pystachio.server import coordinator as coordinator_module
from pystachio.server import fragments as fragments_module
from pystachio.server.coordinator import Coordinator
from pystachio.server.file_looks import FileLooks
from pystachio.server.fragments import Fragments
from pystachio.server.plan_messages import CancelFragment, FilesAsked, FilesSeen, FragmentEnded, SameFile, StartFragment
from tests.server.plain_plane import PlainPlane


class NoMessages:
    def __init__(self) -> None:
        self.closed: list[str] = []

    def close_plan(self, plan_id: str) -> None:
        self.closed.append(plan_id)


def start(plan_id: str = "p", nodes: tuple[str, ...] = ("a", "b"), epoch: int = 1) -> StartFragment:
    return StartFragment(plan_id, epoch, nodes, 1, b"no plan", {}, (), 1, None, "", hashing())


def fragments(plane: PlainPlane, messages: NoMessages, node: object = None) -> Fragments:
    looks = FileLooks(seconds=5)
    return Fragments(plane, cast(Node, node), IoSchedulerService(), cast(Messages, messages), looks)


def spreading(plane: PlainPlane) -> Coordinator:
    """Also plans that read nothing, which otherwise run on one node."""
    return Coordinator(plane, cast(Messages, NoMessages()), FileLooks(seconds=5), alone_bytes=-1)


async def ended(plane: PlainPlane) -> list[tuple[str, str | None]]:
    """What was told of ends: to whom, with which error. At least one end is told."""
    await plane.until_told(1)
    found: list[tuple[str, str | None]] = []
    for node, message in plane.told:
        assert isinstance(message, FragmentEnded)
        found.append((node, None if message.failure is None else message.failure.code))
    return found


async def test_a_part_that_is_cancelled_in_the_turn_that_started_it_is_told_of() -> None:
    plane, messages = PlainPlane("b", "a"), NoMessages()
    async with fragments(plane, messages) as parts:
        plane.hear("a", start())
        plane.hear("a", CancelFragment("p"))
        assert await ended(plane) == [("a", "cancelled")]
        assert (parts.running, messages.closed) == (0, ["p"])


async def test_a_part_whose_coordinator_is_lost_in_the_turn_that_started_it_is_not_left() -> None:
    plane = PlainPlane("b", "a")
    async with fragments(plane, NoMessages()) as parts:
        plane.hear("a", start())
        plane.lose("a")
        assert await ended(plane) == [("a", "node_lost")]
        assert parts.running == 0


@pytest.mark.parametrize(("own", "told"), [(NodeLost("a way is gone"), "node_lost"), (Cancelled("it is"), "cancelled")])
async def test_a_part_that_is_cancelled_while_it_fails_tells_why_it_failed(
    monkeypatch: pytest.MonkeyPatch, own: PystachioError, told: str
) -> None:
    """Its coordinator may know of the failure by its consequences alone, and then cancels it."""

    class Failing:
        """Ends, with an error of its own, once it is told to stop."""

        def __init__(self) -> None:
            self.started = asyncio.Event()

        def start_plan(self, *_: object, plan_id: str, **__: object) -> PlanHandle:
            self.handle = PlanHandle(plan_id, PlanMetrics(plan_id, SystemClock()), cast(Any, self))
            self.started.set()
            return self.handle

        def tell(self, _: object) -> None:
            self.handle.mark_ended(own)

    monkeypatch.setattr(fragments_module, "tables_of", lambda plan: ())
    monkeypatch.setattr(fragments_module, "_decoded_part", lambda message, tables: None)
    plane, node = PlainPlane("b", "a"), Failing()
    async with fragments(plane, NoMessages(), node) as parts:
        plane.hear("a", start())
        await node.started.wait()
        plane.hear("a", CancelFragment("p"))
        assert await ended(plane) == [("a", told)]
        assert parts.running == 0


async def test_a_node_that_leaves_does_not_leave_parts() -> None:
    plane = PlainPlane("b", "a")
    async with fragments(plane, NoMessages()) as parts:
        plane.hear("a", start())
    assert parts.running == 0
    assert await ended(plane) == [("a", "node_lost")]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (start(), "data_error"),
        (start(nodes=("a", "b", "stranger")), "node_lost"),
        (start(nodes=("c", "b")), "node_lost"),
    ],
)
async def test_a_part_that_cannot_be_run_is_told_of(message: StartFragment, code: str) -> None:
    plane = PlainPlane("b", "a", "c")
    async with fragments(plane, NoMessages()):
        plane.hear("a", message)
        assert await ended(plane) == [("a", code)]


async def test_a_part_waits_for_the_view_that_its_plan_is_from() -> None:
    plane = PlainPlane("b", "a")
    async with fragments(plane, NoMessages()) as parts:
        plane.hear("a", start(nodes=("a", "b", "new"), epoch=2))
        await asyncio.sleep(0)
        assert parts.running == 1
        plane.adopt(2, "a", "new")
        assert await ended(plane) == [("a", "data_error")]  # it has got as far as to read the plan


async def test_a_part_does_not_wait_for_ever_for_its_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments_module, "VIEW_SECONDS", 0.01)
    plane = PlainPlane("b", "a")
    async with fragments(plane, NoMessages()):
        plane.hear("a", start(nodes=("a", "b", "new"), epoch=2))
        assert await ended(plane) == [("a", "node_lost")]
        assert plane.told[0][1].refused_at is None


async def test_a_part_of_an_older_view_is_refused_as_nobodys_failure() -> None:
    plane = PlainPlane("b", "a")
    async with fragments(plane, NoMessages()):
        plane.adopt(7, "a")
        plane.hear("a", start(nodes=("a", "b", "left"), epoch=6))
        assert await ended(plane) == [("a", "node_lost")]
        assert plane.told[0][1].refused_at == 7


async def test_a_part_of_an_older_view_whose_nodes_are_all_there_is_run() -> None:
    plane = PlainPlane("b", "a")
    async with fragments(plane, NoMessages()):
        plane.adopt(7, "a", "new")
        plane.hear("a", start(epoch=6))
        assert await ended(plane) == [("a", "data_error")]


async def test_a_part_that_is_cancelled_before_it_has_come_starts_nothing() -> None:
    """A long message comes behind a short one that was told later."""
    plane = PlainPlane("b", "a")
    async with fragments(plane, NoMessages()) as parts:
        plane.hear("a", CancelFragment("p"))
        assert await ended(plane) == [("a", "cancelled")]
        plane.hear("a", start())
        assert parts.running == 0
        plane.hear("a", start())
        assert parts.running == 1  # the order was for one part


async def test_a_part_that_comes_while_the_node_leaves_is_refused() -> None:
    plane = PlainPlane("b", "a")
    async with fragments(plane, NoMessages()) as parts:
        pass
    plane.hear("a", start())
    assert parts.running == 0
    assert await ended(plane) == [("a", "node_lost")]
    assert plane.told[0][1].refused_at == 2


async def test_a_file_system_that_hangs_is_waited_for_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, looks, hangs = PlainPlane("b", "a"), FileLooks(seconds=0.05), threading.Event()
    monkeypatch.setattr(fragments_module, "has_file", lambda file: hangs.wait(30) or True)
    async with Fragments(plane, cast(Node, None), IoSchedulerService(), cast(Messages, NoMessages()), looks):
        plane.hear("a", FilesAsked(1, (SameFile("/dead/file", 1, 1),)))
        await plane.until_told(1)
        assert plane.told == [("a", FilesSeen(1, (0,)))]
    hangs.set()


async def test_files_that_cannot_be_looked_at_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: SameFile) -> bool:
        raise ValueError("a defect")

    monkeypatch.setattr(fragments_module, "has_file", fail)
    plane = PlainPlane("b", "a")
    async with fragments(plane, NoMessages()):
        plane.hear("a", FilesAsked(1, (SameFile("/f", 1, 1), SameFile("/g", 1, 1))))
        await plane.until_told(1)
    assert plane.told == [("a", FilesSeen(1, (0, 1)))]


async def test_a_plan_is_prepared_for_those_who_are_there_at_its_end() -> None:
    """A node that is lost while another one is asked for its files would never be reported to the attempt."""
    plane = PlainPlane("a", "b", "c")
    coordinator = Coordinator(plane, cast(Messages, NoMessages()), FileLooks(seconds=5), alone_bytes=-1)
    lost = []

    async def reachable(versions: Any, nodes: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        if not lost:
            lost.append(nodes)
            plane.lose("b")
        return {}

    coordinator._files.reachable = reachable  # type: ignore[assignment,method-assign]
    nodes, _ = await coordinator.prepare(plane.plan())
    assert (lost, nodes) == ([("a", "b", "c")], ("a", "c"))
    nodes, _ = await coordinator.prepare(plane.plan(), {"c"})
    assert nodes == ("a",)


async def test_a_node_may_be_lost_while_a_plan_is_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = PlainPlane("a", "b", "c")
    coordinator = spreading(plane)
    preparing = asyncio.create_task(coordinator.prepare(plane.plan()))
    to_thread = asyncio.to_thread

    async def lose_meanwhile(*work: Any) -> Any:
        plane.lose("c")
        return await to_thread(*work)

    monkeypatch.setattr(asyncio, "to_thread", lose_meanwhile)
    nodes, _ = await preparing
    assert nodes == ("a", "b")


async def test_a_plan_of_a_file_that_no_node_has_any_more_has_where_files_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missed: list[str] = []
    plane, looks = PlainPlane("a"), FileLooks(seconds=5)
    coordinator = Coordinator(
        plane, cast(Messages, NoMessages()), looks, alone_bytes=-1, missed=lambda: missed.append("once")
    )
    monkeypatch.setattr(coordinator_module, "files_of", lambda plan: {FileVersion(f"{tmp_path}/gone", 1, 1): None})
    with pytest.raises(NotFound, match="gone") as raised:
        await coordinator.prepare(plane.plan())
    assert raised.value.retryable
    assert missed == ["once"]
    looks.close()


async def test_what_is_made_of_a_plan_is_kept_as_long_as_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def watched(plan: PhysicalPlan, nodes: int, preference: Preference) -> PhysicalPlan:
        made.append(nodes)
        return distribute(plan, nodes, preference)

    monkeypatch.setattr(coordinator_module, "distribute", watched)
    plane = PlainPlane("a", "b", "c")
    coordinator = spreading(plane)
    plan, other = plane.plan(), plane.plan()
    for _ in range(2):
        await coordinator.prepare(plan)
        await coordinator.prepare(other)
        await coordinator.prepare(plan, {"c"})
        await coordinator.prepare(plan, {"b", "c"})  # this node alone
    assert made == [3, 3, 2]
    assert len(coordinator._distributed) == 2
    del plan
    gc.collect()
    assert list(coordinator._distributed) == [id(other)]


async def test_an_attempt_hears_of_the_loss_of_a_node_whoever_reports_it() -> None:
    plane = PlainPlane("a", "b")
    changes: list[str] = []
    coordinator = Coordinator(plane, cast(Messages, NoMessages()), FileLooks(seconds=5), alone_bytes=-1)
    nodes, prepared = await coordinator.prepare(plane.plan())
    attempt = coordinator.begin("p", nodes, lambda: changes.append("changed"))
    coordinator.start(attempt, prepared, plane.urgency(), "")
    plane.lose("b")
    assert changes == ["changed"]
    assert isinstance(attempt.failure, NodeLost)
    assert attempt.failure.node == "b"
    await asyncio.wait_for(coordinator.end(attempt, cancel=True), 1)


async def test_an_attempt_hears_of_a_loss_that_is_noticed_while_its_part_is_told() -> None:
    class BrokenPlane(PlainPlane):
        def tell(self, node: str, message: Any) -> None:
            super().tell(node, message)
            if isinstance(message, StartFragment) and node == "b":
                self.lose(node)

    plane = BrokenPlane("a", "b", "c")
    coordinator = spreading(plane)
    nodes, prepared = await coordinator.prepare(plane.plan())
    attempt = coordinator.begin("p", nodes, lambda: None)
    coordinator.start(attempt, prepared, plane.urgency(), "")
    assert isinstance(attempt.failure, NodeLost)
    assert not await attempt.settled(0.01)  # the other one is at work
    plane.hear("c", FragmentEnded("p"))
    await asyncio.wait_for(coordinator.end(attempt, cancel=False), 1)


async def test_nodes_are_asked_again_for_files_that_are_too_many_to_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seeing(PlainPlane):
        async def deliver(self, node: str, message: Any) -> None:
            await super().deliver(node, message)
            self.hear(node, FilesSeen(message.number, ()))

    monkeypatch.setattr(coordinator_module, "_KEPT_SEEN", 10)
    plane = Seeing("a", "b")
    files = spreading(plane)._files
    plans = [[FileVersion(f"/{plan}/{number}", 1, 1) for number in range(4)] for plan in range(4)]
    for versions in (*plans[:2], plans[0], *plans[2:], plans[3], plans[0]):
        assert await files._missing(versions, "b") == set()
    asked = [message.files[0].path for _, message in plane.told]
    assert asked == ["/0/0", "/1/0", "/2/0", "/3/0", "/0/0"]
    assert len(files._seen["b"]) <= 10
