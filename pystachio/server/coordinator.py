"""A node's plans on the cluster: which nodes run them, what those answer, and what is left when one is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol
from weakref import WeakSet, finalize

from pystachio.errors import DataError, NodeLost, NotFound, PystachioError, Unauthorized
from pystachio.operators.exchanges.fragment import Reachable, part_of
from pystachio.operators.kernels.partition import hashing
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec.codec import encode_plan
from pystachio.operators.table import FileVersion, ParquetFile, Table
from pystachio.planner.distribution.distribution import Preference, distribute
from pystachio.runtime.metrics import OperatorSnapshot
from pystachio.runtime.peers import Messages, PlanPeers
from pystachio.runtime.urgency import Urgency
from pystachio.server.file_looks import FileLooks
from pystachio.server.fragments import VIEW_SECONDS, has_file
from pystachio.server.plan_messages import (
    CancelFragment,
    FilesAsked,
    FilesSeen,
    FragmentEnded,
    SameFile,
    StartFragment,
)
from pystachio.server.plane import Plane
from pystachio.server.questions import TRAVEL_SECONDS, Questions, together

ANSWER_SECONDS = 5.0
"""How long nodes may take to end their part of a plan that is cancelled."""
END_SECONDS = 0.1
"""How long nodes may take to end their part of a plan whose answer is there, before they are told to stop."""
_KEPT_SEEN = 1 << 17
"""Files of each node that it need not be asked for again, and those of the plan that asked last."""


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan for so many nodes: what all of them are sent, and where its files are."""

    plan: PhysicalPlan
    encoded: bytes
    reachable: Reachable
    remark: str = ""
    """For who asks how the plan is run."""

    def footers_for(self, node: int) -> tuple[tuple[SameFile, bytes], ...]:
        """Of the files that node number `node` cannot read, what it must know of them."""
        if not self.reachable:
            return ()
        missing = {path for path, able in self.reachable.items() if node not in able}
        files = files_of(self.plan)
        return tuple((_same(version), file.footer) for version, file in files.items() if version.path in missing)


class Answer(Protocol):
    """`cluster_plan.ClusterPlan`."""

    @property
    def held_bytes(self) -> int:
        """Of rows that wait for the client."""
        ...


@dataclass(slots=True, eq=False)
class Attempt:
    """One run of a plan. `pending` are the other nodes whose part has not ended; `changed` is told of each end."""

    plan_id: str
    nodes: tuple[str, ...]
    pending: set[str]
    changed: Callable[[], None]
    failure: PystachioError | None = None
    """Of another node: the first that is not the consequence of another one's."""
    refused_at: int | None = None
    """As in `FragmentEnded`, when that is why it failed."""
    moved_bytes: int = 0
    """By the I/O schedulers of the other nodes."""
    operators: list[OperatorSnapshot] = field(default_factory=list)
    """What operators did on the other nodes."""
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    def note_ended(self, node: str, error: PystachioError | None, refused_at: int | None = None) -> None:
        if node not in self.pending:
            return
        self.pending.discard(node)
        if error is not None and (self.failure is None or self.failure.code == "cancelled"):
            self.failure, self.refused_at = error, refused_at
        if not self.pending:
            self._settled.set()
        self.changed()

    async def settled(self, seconds: float) -> bool:
        """Wait until all other nodes have ended their part; False when they do not in time."""
        try:
            async with asyncio.timeout(seconds):
                while self.pending:  # more may have been told since there was none
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            return False
        return True


class Coordinator:
    """On the node's loop."""

    def __init__(
        self,
        plane: Plane,
        messages: Messages,
        looks: FileLooks,
        *,
        preference: Preference = Preference.BYTES,
        retries: int = 1,
        alone_bytes: int = 0,
        held_bytes: int = 1 << 30,
        missed: Callable[[], None] = lambda: None,
    ) -> None:
        """`retries` is how often a plan that lost a node is run again. One that reads files of no more than
        `alone_bytes` together runs on this node alone: to involve others takes longer. Answers of all plans together
        may have `held_bytes` of rows waiting for their clients, and each its next ones. `missed` is called when a plan
        names a file that no node has.
        """
        self.retries = retries
        self._held_bytes = held_bytes
        self._missed = missed
        self._answers: WeakSet[Answer] = WeakSet()
        self._alone_bytes = alone_bytes
        self._plane = plane
        self._messages = messages
        self._preference = preference
        self._attempts: dict[str, Attempt] = {}
        self._distributed: dict[int, dict[int, tuple[PhysicalPlan, bytes]]] = {}
        """By the `id` of a plan, as long as somebody has it, and the number of nodes."""
        self._looks = looks
        self._files = _Files(plane, looks)
        self._plans: set[asyncio.Task[None]] = set()
        self._view_changed = asyncio.Event()
        plane.handle(FragmentEnded, self._note_ended)
        plane.when_node_lost(self._lose)
        plane.when_view_changes(lambda view: self._view_changed.set())

    @property
    def node(self) -> str:
        return self._plane.name

    def run(self, plan: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """A plan's task, which `close` cancels."""
        task = asyncio.get_running_loop().create_task(plan, name=name)
        self._plans.add(task)
        task.add_done_callback(self._plans.discard)
        return task

    def holds(self, answer: Answer) -> None:
        """Count its rows as long as there is anybody who may take them."""
        self._answers.add(answer)

    def may_hold(self, nbytes: int) -> bool:
        """Whether there is room for more rows of some answer."""
        return sum(answer.held_bytes for answer in self._answers) + nbytes <= self._held_bytes

    async def close(self) -> None:
        """The node is about to leave: end the plans that were submitted to it."""
        running = tuple(self._plans)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def prepare(
        self, plan: PhysicalPlan, without: AbstractSet[str] = frozenset()
    ) -> tuple[tuple[str, ...], PreparedPlan]:
        """The nodes that can run the plan now, this one first and none of `without`, and the plan for them.

        Raises NotFound for a file that no node reads, NodeLost for a node that does not say which files it has.
        """
        versions = tuple(files_of(plan))
        read_bytes = sum(version.size for version in versions)
        if read_bytes <= self._alone_bytes and not await absent_here(self._looks, versions):
            remark = f"on {self.node} alone: the plan reads no more than {read_bytes:,} bytes"
            return (self.node,), PreparedPlan(plan, b"", {}, remark)
        while True:
            nodes = self._nodes(without)
            try:
                reachable = await self._files.reachable(versions, nodes)
            except NotFound:
                self._missed()
                raise
            spread, encoded = await self._distributed_over(plan, len(nodes))
            if set(nodes) <= set(self._nodes(without)):
                return nodes, PreparedPlan(spread, encoded, reachable)
            # One was lost meanwhile, of which nobody would tell an attempt that begins now.

    async def _distributed_over(self, plan: PhysicalPlan, nodes: int) -> tuple[PhysicalPlan, bytes]:
        if nodes == 1:
            return plan, b""
        known = self._distributed.get(id(plan))
        if known is None:
            known = self._distributed[id(plan)] = {}
            # The planner knows how long a plan is of use. What is made of it here does not hold it.
            finalize(plan, self._distributed.pop, id(plan), None).atexit = False
        if nodes not in known:
            # On a thread: estimates may read samples, which takes the loop.
            known[nodes] = await asyncio.to_thread(self._distribute, plan, nodes)
        return known[nodes]

    def _distribute(self, plan: PhysicalPlan, nodes: int) -> tuple[PhysicalPlan, bytes]:
        spread = distribute(plan, nodes, self._preference)
        return spread, encode_plan(spread)

    def _nodes(self, without: AbstractSet[str]) -> tuple[str, ...]:
        here = self._plane.name
        names = (member.name for member in self._plane.available())
        return (here, *(name for name in names if name != here and name not in without))

    async def knows(self, epoch: int) -> bool:
        """Wait until this node's view is of the epoch or later; False when it does not come in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(VIEW_SECONDS):
                while self._plane.view.epoch < epoch:
                    self._view_changed.clear()
                    await self._view_changed.wait()
        return self._plane.view.epoch >= epoch

    def begin(self, plan_id: str, nodes: tuple[str, ...], changed: Callable[[], None]) -> Attempt:
        """One run of a plan on `nodes`, to be started and, whatever happens, to be ended."""
        attempt = self._attempts[plan_id] = Attempt(plan_id, nodes, set(), changed)
        return attempt

    def start(
        self, attempt: Attempt, prepared: PreparedPlan, urgency: Urgency, label: str
    ) -> tuple[PhysicalPlan, PlanPeers | None]:
        """Have the other nodes start their parts; returns this node's part, which the caller starts.

        Raises InvalidRequest for a plan that no message holds.
        """
        nodes = attempt.nodes
        if len(nodes) == 1:
            return prepared.plan, None
        for here, name in enumerate(nodes[1:], start=1):
            start = StartFragment(
                attempt.plan_id,
                self._plane.view.epoch,
                nodes,
                here,
                prepared.encoded,
                prepared.reachable,
                prepared.footers_for(here),
                int(urgency.priority),
                urgency.deadline,
                label,
                hashing(),
            )
            attempt.pending.add(name)  # before it is told: that it is lost may turn out meanwhile
            self._plane.tell(name, start)
        part = part_of(prepared.plan, 0, len(nodes), prepared.reachable)
        return part, PlanPeers(attempt.plan_id, nodes, 0, self._messages)

    def cancel(self, attempt: Attempt) -> None:
        """Tell the nodes that still work on it to stop, and forget it."""
        for name in tuple(attempt.pending):
            self._plane.tell(name, CancelFragment(attempt.plan_id))
        self._attempts.pop(attempt.plan_id, None)

    async def end(self, attempt: Attempt, *, cancel: bool) -> None:
        """Wait until nothing of the attempt is left anywhere; `cancel` tells the nodes that still work on it to stop.
        Without it this node's part has ended rightly: theirs end at once, unless they look for rows that nobody wants.

        A node that does not answer in time is not waited for: it is silent, and soon found dead.
        """
        if cancel or not await attempt.settled(END_SECONDS):
            for name in tuple(attempt.pending):
                self._plane.tell(name, CancelFragment(attempt.plan_id))
            await attempt.settled(ANSWER_SECONDS)
        self._attempts.pop(attempt.plan_id, None)

    def _note_ended(self, sender: str, message: FragmentEnded) -> None:
        attempt = self._attempts.get(message.plan_id)
        if attempt is not None and sender in attempt.pending:
            error = None if message.failure is None else message.failure.error(message.plan_id)
            attempt.moved_bytes += message.moved_bytes
            attempt.operators += [counts.snapshot() for counts in message.operators]
            if isinstance(error, NotFound | DataError | Unauthorized):
                self._files.forget(sender)  # perhaps it has not the files any more that it had
            attempt.note_ended(sender, error, message.refused_at)

    def _lose(self, node: str, error: PystachioError) -> None:
        self._files.forget(node)
        for attempt in tuple(self._attempts.values()):
            lost = NodeLost(f"a node that held a part of the plan is gone: {node}: {error.message}", node=node)
            attempt.note_ended(node, lost)


class _Files:
    """Which node reads which files, asked once for each version of a file and each life of a node."""

    def __init__(self, plane: Plane, looks: FileLooks) -> None:
        self._plane = plane
        self._looks = looks
        self._seen: dict[str, set[FileVersion]] = {}
        self._questions = Questions(plane, FilesSeen, asked_for="which files it has")

    async def reachable(self, versions: Sequence[FileVersion], nodes: Sequence[str]) -> Reachable:
        """By path the numbers of the nodes that read the file, where not all do. Raises as `Coordinator.prepare`."""
        missing = await together([self._missing(versions, name) for name in nodes])
        found: Reachable = {}
        for version in versions:
            able = tuple(number for number, absent in enumerate(missing) if version not in absent)
            if not able:
                gone = NotFound(
                    f"no node of the cluster reads the file: {version.path}",
                    hint="it was replaced or removed a moment ago, or a node that has it drains or is gone: run the "
                    "statement again",
                )
                gone.retryable = True
                raise gone
            if len(able) < len(nodes):
                found[version.path] = able
        return found

    def forget(self, node: str) -> None:
        """What comes back under its name may have other disks."""
        self._seen.pop(node, None)

    async def _missing(self, versions: Sequence[FileVersion], node: str) -> set[FileVersion]:
        if node == self._plane.name:
            return await absent_here(self._looks, versions)
        seen = self._seen.setdefault(node, set())
        unknown = [version for version in versions if version not in seen]
        if not unknown:
            return set()
        files = tuple(map(_same, unknown))
        answer = await self._questions.ask(
            node, lambda number: FilesAsked(number, files), FilesSeen, seconds=self._looks.seconds + TRAVEL_SECONDS
        )
        positions = set(answer.missing)
        missing = {version for position, version in enumerate(unknown) if position in positions}
        if len(seen) + len(unknown) > _KEPT_SEEN:
            seen.intersection_update(versions)
        seen.update(version for version in unknown if version not in missing)
        return missing


def files_of(plan: PhysicalPlan) -> dict[FileVersion, ParquetFile]:
    """The files that the plan reads."""
    tables = [getattr(operator, "table", None) for operator in plan.operators]
    return {file.version: file for table in tables if isinstance(table, Table) for file in table.files}


async def absent_here(looks: FileLooks, versions: Sequence[FileVersion]) -> set[FileVersion]:
    """Those that this node does not have. Raises as `FileLooks.look`."""
    return set().union(*await looks.look(absent, versions, attrgetter("path")))


def absent(versions: Sequence[FileVersion]) -> set[FileVersion]:
    """Those that this node does not have. Looks at disks, which may hang: not on the loop."""
    return {version for version in versions if not has_file(_same(version))}


def _same(version: FileVersion) -> SameFile:
    return SameFile(version.path, version.size, version.mtime_ns)
