"""The plans of other nodes: this node's part of each, from the message that starts it to the one that tells its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from types import TracebackType

from pystachio.errors import Cancelled, DataError, InternalError, NodeLost, PystachioError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.batch import Batch
from pystachio.operators.exchanges.fragment import part_of
from pystachio.operators.kernels.partition import hashing
from pystachio.operators.parquet.footer import file_version
from pystachio.operators.pipeline import PhysicalPlan, build_graph
from pystachio.operators.plan_codec.codec import TableReference, decode_plan, tables_of
from pystachio.operators.table import Table
from pystachio.runtime.channels import Receiver
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.failure_message import Failure
from pystachio.runtime.logging import get_logger
from pystachio.runtime.node import Node
from pystachio.runtime.peers import Messages, PlanPeers
from pystachio.runtime.plan import PlanHandle
from pystachio.runtime.slots import Slot
from pystachio.runtime.urgency import Urgency
from pystachio.server.file_looks import FileLooks
from pystachio.server.foreign_tables import ForeignTables
from pystachio.server.plan_messages import (
    CancelFragment,
    FilesAsked,
    FilesSeen,
    FragmentEnded,
    OperatorCounts,
    SameFile,
    StartFragment,
)
from pystachio.server.plane import Plane
from pystachio.server.questions import Answers

VIEW_SECONDS = 2.0
"""How long a part waits for the view that its plan's nodes are from."""
_KEPT_CANCELLED = 1024


@dataclass(slots=True, eq=False)
class _Fragment:
    """`handle` is there once the plan's part runs here; `error` is why it is to end, however far it has come."""

    coordinator: str
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    handle: PlanHandle | None = None
    error: PystachioError | None = None
    refused_at: int | None = None
    """As in `FragmentEnded`."""

    def end(self, error: PystachioError) -> None:
        if self.error is None:
            self.error = error
        if self.handle is not None:
            self.handle.cancel()
        elif self.task is not None and self.has_begun:
            # A task that is cancelled before its first step never runs, and nobody would be told of its end.
            self.task.cancel()


class Fragments:
    """`async with` on the node's loop: leaving ends all of them."""

    def __init__(
        self, plane: Plane, node: Node, transfers: IoSchedulerService, messages: Messages, looks: FileLooks
    ) -> None:
        self._plane = plane
        self._node = node
        self._messages = messages
        self._looks = looks
        self._tables = ForeignTables(transfers, looks)
        self._fragments: dict[str, _Fragment] = {}
        self._cancelled: dict[tuple[str, str], None] = {}
        """By coordinator and plan, what was cancelled and had not begun."""
        self._answers = Answers()
        self._is_closing = False
        self._view_changed = asyncio.Event()
        plane.handle(StartFragment, self._start)
        plane.handle(CancelFragment, self._cancel)
        plane.handle(FilesAsked, self._look)
        plane.when_node_lost(self._lose)
        plane.when_view_changes(lambda view: self._view_changed.set())
        plane.when_node_reached(lambda name: self._view_changed.set())

    @property
    def running(self) -> int:
        return len(self._fragments)

    async def settled(self) -> None:
        """Wait until no part of another node's plan runs here."""
        while tasks := [fragment.task for fragment in self._fragments.values() if fragment.task is not None]:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> Fragments:
        await self._answers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closing = True
        fragments = tuple(self._fragments.values())
        for fragment in fragments:
            fragment.end(NodeLost("the node leaves", node=self._plane.name))
        try:
            await asyncio.gather(*(each.task for each in fragments if each.task is not None), return_exceptions=True)
        finally:
            await self._answers.__aexit__(kind, error, traceback)

    def _start(self, sender: str, message: StartFragment) -> None:
        if message.plan_id in self._fragments:
            # Told of the fragment that runs, its coordinator would take this answer for that one's.
            get_logger().error("a plan was started twice on this node", plan_id=message.plan_id, by=sender)
            return
        if (sender, message.plan_id) in self._cancelled:
            del self._cancelled[sender, message.plan_id]
            return
        if self._is_closing:
            error = NodeLost("the node leaves", node=self._plane.name)
            failure = Failure.of(error, self._plane.name)
            # The view without it is the next one.
            self._plane.tell(sender, FragmentEnded(message.plan_id, failure, self._plane.view.epoch + 1))
            return
        fragment = self._fragments[message.plan_id] = _Fragment(sender)
        fragment.task = asyncio.get_running_loop().create_task(self._run(fragment, message))

    async def _run(self, fragment: _Fragment, message: StartFragment) -> None:
        error: PystachioError | None
        try:
            error = await self._run_part(fragment, message)
        except asyncio.CancelledError:
            error = fragment.error or Cancelled("the plan was cancelled")
        except PystachioError as failure:
            error = failure
        except Exception as unexpected:
            get_logger().error("a part of a plan did not start", plan_id=message.plan_id, exc_info=unexpected)
            error = InternalError(f"a part of a plan did not start: {type(unexpected).__name__}: {unexpected}")
        del self._fragments[message.plan_id]
        self._messages.close_plan(message.plan_id)
        failure_ = None if error is None else Failure.of(error, self._plane.name)
        moved = self._tables.moved_bytes(message.plan_id)
        done = () if fragment.handle is None else fragment.handle.metrics.snapshot().operators
        counts = tuple(OperatorCounts.of(operator) for operator in done)
        self._plane.tell(
            fragment.coordinator, FragmentEnded(message.plan_id, failure_, fragment.refused_at, moved, counts)
        )

    async def _run_part(self, fragment: _Fragment, message: StartFragment) -> PystachioError | None:
        fragment.has_begun = True
        if fragment.error is not None:
            return fragment.error
        await self._until_known(message)
        self._check(fragment, message)
        tables = await self._tables.open(await asyncio.to_thread(tables_of, message.plan), message.footers)
        part = await asyncio.to_thread(_decoded_part, message, tables)
        results: Slot[Receiver[Batch] | None] = Slot()

        def build(scope: PlanScope) -> list[TaskSpec]:
            graph = build_graph(part, scope)
            results.set(graph.results)
            return graph.tasks

        peers = PlanPeers(message.plan_id, message.nodes, message.here, self._messages)
        urgency = Urgency(PriorityClass(message.priority), message.deadline)
        fragment.handle = self._node.start_plan(
            build, plan_id=message.plan_id, urgency=urgency, label=message.label, peers=peers
        )
        error = await _ended(fragment.handle, results)
        # Cancelled while it ended for a reason of its own, it says that reason: all others may be its consequences.
        return fragment.error or error if isinstance(error, Cancelled) else error

    async def _until_known(self, message: StartFragment) -> None:
        """Wait for the view that the coordinator has, and for the ways to the plan's nodes: for `VIEW_SECONDS`."""

        def is_known() -> bool:
            view = self._plane.view
            unreached = (name for name in message.nodes if view.member(name) and not self._plane.reaches(name))
            return view.epoch >= message.epoch and not any(unreached)

        with suppress(TimeoutError):
            async with asyncio.timeout(VIEW_SECONDS):
                while not is_known():
                    self._view_changed.clear()
                    await self._view_changed.wait()

    def _check(self, fragment: _Fragment, message: StartFragment) -> None:
        if message.hashing != hashing():
            raise NodeLost(
                "the nodes send rows to different places: their builds differ",
                hint="run the same version on all nodes; pystachio-node doctor says where the C kernels are missing",
                node=self._plane.name,
            )
        count = len(message.nodes)
        able = {number for numbers in message.reachable.values() for number in numbers}
        if not (0 < message.here < count == len(set(message.nodes)) and able <= set(range(count))):
            raise DataError("a part of a plan names its nodes wrongly", node=self._plane.name)
        if message.nodes[message.here] != self._plane.name or message.priority not in tuple(PriorityClass):
            raise DataError("a part of a plan is another node's, or of no known class", node=self._plane.name)
        view = self._plane.view
        strangers = [name for name in message.nodes if view.member(name) is None]
        if strangers or fragment.coordinator != message.nodes[0]:
            fragment.refused_at = view.epoch if view.epoch > message.epoch else None
            raise NodeLost(
                f"the plan's nodes are not those of epoch {view.epoch} here: "
                f"{', '.join(strangers) or fragment.coordinator}",
                node=self._plane.name,
            )

    def _cancel(self, sender: str, message: CancelFragment) -> None:
        fragment = self._fragments.get(message.plan_id)
        cancelled = Cancelled("the plan was cancelled")
        if fragment is None:
            self._cancelled[sender, message.plan_id] = None
            if len(self._cancelled) > _KEPT_CANCELLED:
                del self._cancelled[next(iter(self._cancelled))]
            self._plane.tell(sender, FragmentEnded(message.plan_id, Failure.of(cancelled, self._plane.name)))
        elif fragment.coordinator == sender:
            fragment.end(cancelled)

    def _lose(self, node: str, error: PystachioError) -> None:
        for fragment in tuple(self._fragments.values()):
            if fragment.coordinator == node:
                fragment.end(error)

    def _look(self, sender: str, message: FilesAsked) -> None:
        async def answer() -> None:
            absent = set().union(*await self._looks.look(_missing, message.files, attrgetter("path")))
            missing = tuple(position for position, file in enumerate(message.files) if file in absent)
            self._plane.tell(sender, FilesSeen(message.number, missing))

        def refuse(error: PystachioError) -> None:
            get_logger().warning("files of a plan are not looked at", error=str(error))
            # What cannot be looked at cannot be read.
            self._plane.tell(sender, FilesSeen(message.number, tuple(range(len(message.files)))))

        self._answers.begin(answer, refuse)


async def _ended(handle: PlanHandle, results: Slot[Receiver[Batch] | None]) -> PystachioError | None:
    """The plan's end. Its root puts nothing out, but somebody must have waited for that."""

    def let_go(_: PystachioError | None) -> None:
        if not results.is_set:  # it ended before it began
            results.set(None)

    handle.when_ended(let_go)
    receiver = await results.wait()
    if receiver is not None:
        async for _ in receiver:
            pass
        receiver.close()
    return await handle.wait_ended()


def _decoded_part(message: StartFragment, tables: Mapping[TableReference, Table]) -> PhysicalPlan:
    """What this node runs; a plan may have a million constants."""
    plan = decode_plan(message.plan, tables)
    return part_of(plan, message.here, len(message.nodes), dict(message.reachable))


def _missing(files: Sequence[SameFile]) -> set[SameFile]:
    """Those that are not here. Looks at disks, which may hang: not on the loop."""
    return {file for file in files if not has_file(file)}


def has_file(file: SameFile) -> bool:
    """Whether this node reads the same version of the file under the same path."""
    try:
        found = file_version(file.path)
    except PystachioError:
        return False
    return (found.size, found.mtime_ns) == (file.size, file.mtime_ns)
