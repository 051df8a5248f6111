"""A plan on the cluster, as its client holds it: attempts, the rows of the one that succeeds, and one typed error."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from pystachio.errors import Cancelled, DataError, InternalError, InvalidRequest, NodeLost, NotFound, PystachioError
from pystachio.io_scheduler.ledger import Totals
from pystachio.operators.batch import Batch
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.planner.explain import render
from pystachio.running_plan import OperatorReport, PlanNode, RunningPlan, new_plan_id, reports, scanned_share
from pystachio.runtime.host import NodeStopped
from pystachio.runtime.metrics import OperatorSnapshot, together
from pystachio.runtime.urgency import Urgency
from pystachio.server.coordinator import Attempt, Coordinator, PreparedPlan
from pystachio.trace.plan_trace import PlanTrace
from pystachio.trace.verdict import Verdict

HELD_BYTES = 32 << 20
"""Rows wait for the plan's end up to here: while the client has seen none, a lost node costs it nothing but time."""
_QUEUED_BYTES = 16 << 20
"""Beyond that rows wait for the client where they come from."""
_SMALL_ROWS = 4096
_MOST_OUTDATED = 8
"""Attempts that the cluster's changes cost: they do not count as retries."""


class ClusterNodeOfPlan(PlanNode, Protocol):
    """The node that coordinates a plan."""

    @property
    def coordinator(self) -> Coordinator: ...


class ClusterPlan:
    """`result.StartedPlan` on several nodes."""

    def __init__(self, node: ClusterNodeOfPlan, plan: PhysicalPlan, label: str) -> None:
        self.plan_id = new_plan_id()
        self.plan = plan
        self.label = label
        self.rows = 0
        self.attempts = 0
        self._node = node
        self._submitted = time.monotonic()
        self._seconds: float | None = None
        self._running: RunningPlan | None = None
        self._urgency: Urgency | None = None
        self._due: float | None = None
        """By the monotonic clock."""
        self._task: asyncio.Task[None] | None = None
        self._is_preparing = False
        self._is_cancelled = False
        self._avoided: set[str] = set()
        """Nodes that an attempt has lost. Others may know of a loss before this node does, and of ways between two
        others it never knows."""
        self._lost: PystachioError | None = None
        """Why the last attempt failed."""
        self._attempted: Attempt | None = None
        self._spread = plan
        """As the nodes of the last attempt ran it."""
        self._remark = ""
        self._ready: deque[pa.RecordBatch] = deque()
        self._ready_bytes = 0
        self._is_flowing = False
        """Rows were given to the client: there is no other attempt."""
        self._error: PystachioError | None = None
        self._changed = asyncio.Condition()

    @property
    def schema(self) -> pa.Schema:
        return self.plan.arrow_schema

    def submit(self, urgency: Urgency) -> None:
        """From any thread."""
        self._loop = self._node.host.call_soon(lambda: self._start(urgency))

    def _start(self, urgency: Urgency) -> None:
        self._loop = asyncio.get_running_loop()
        if self._urgency is None:  # else it was changed before it began
            self._note_urgency(urgency, self._submitted)
        self._node.coordinator.holds(self)
        self._task = self._node.coordinator.run(self._run(), f"{self.plan_id}/cluster")

    async def _run(self) -> None:
        try:
            await self._run_attempts()
        except (asyncio.CancelledError, NodeStopped):
            self._error = self._stopped()
        except PystachioError as error:
            self._error = error
            error.plan_id = error.plan_id or self.plan_id
        except BaseException as unexpected:
            self._error = InternalError(f"a plan of the cluster failed: {type(unexpected).__name__}: {unexpected}")
            self._error.__cause__ = unexpected
        async with self._changed:
            self._seconds = time.monotonic() - self._submitted
            if self._error is not None:
                self._forget_rows()
            self._changed.notify_all()

    def _stopped(self) -> PystachioError:
        """To whoever did not cancel the plan the node is lost, as if it had died."""
        if self._is_cancelled:
            return Cancelled("the plan was cancelled: its node has stopped", plan_id=self.plan_id)
        node = self._node.coordinator.node
        return NodeLost("the node has stopped before the plan's end", node=node, plan_id=self.plan_id)

    async def _run_attempts(self) -> None:
        retries, outdated = self._node.coordinator.retries, 0
        while True:
            self.attempts += 1
            try:
                await self._attempt()
                return
            except (NodeLost, DataError, NotFound) as error:
                if self._is_flowing or self._is_cancelled or not self._may_succeed_elsewhere(error):
                    raise
                if outdated < _MOST_OUTDATED and await self._was_outdated(error):
                    outdated += 1
                elif self.attempts - outdated > retries:
                    raise
                else:
                    if error.node is not None:
                        self._avoided.add(error.node)
                    self._lost = error
                self._forget_rows()

    def _forget_rows(self) -> None:
        """Those that nobody has taken."""
        self._ready.clear()
        self._ready_bytes = 0

    def _may_succeed_elsewhere(self, error: PystachioError) -> bool:
        """Whether a node is gone, or the way to another node's disk, or a file that it had: this one takes part in
        every attempt."""
        is_elsewhere = error.node is not None and error.node != self._node.coordinator.node
        return isinstance(error, NodeLost) or (is_elsewhere and (error.retryable or isinstance(error, NotFound)))

    async def _was_outdated(self, error: PystachioError) -> bool:
        """Whether the attempt failed because somebody has joined or left while it began, and this node knows now: that
        is nobody's failure, and nothing was run."""
        attempt = self._attempted
        if attempt is None or attempt.refused_at is None or error is not attempt.failure:
            return False
        return await self._node.coordinator.knows(attempt.refused_at)

    async def _attempt(self) -> None:
        """Raises the first error that is not the consequence of another one."""
        self._check_cancelled()
        coordinator = self._node.coordinator
        nodes, prepared = await self._prepare()
        plan_id = self.plan_id if self.attempts == 1 else f"{self.plan_id}-{self.attempts}"
        urgency = self._urgency
        assert urgency is not None, "it is submitted"
        current = urgency._replace(deadline=None if self._due is None else self._due - time.monotonic())
        attempt = coordinator.begin(plan_id, nodes, self._note_change)
        self._attempted, self._spread, self._remark = attempt, prepared.plan, prepared.remark
        error: PystachioError | None = None
        try:
            part, peers = coordinator.start(attempt, prepared, current, self.label)
            running = self._running = RunningPlan(self._node, part, self.label, plan_id=plan_id, peers=peers)
            running.start(current)
            await self._take_all(running)
        except PystachioError as failure:
            error = failure
            self._cancel_part()
        except BaseException:
            self._cancel_part()
            coordinator.cancel(attempt)
            raise
        await coordinator.end(attempt, cancel=error is not None)
        if error is None:
            # What others report after the whole answer is here changes nothing in it.
            return
        if self._is_cancelled:
            raise Cancelled("the plan was cancelled", plan_id=self.plan_id)
        cause = _cause(error, attempt.failure)
        if isinstance(cause, Cancelled) and attempt.pending:
            # Nobody who has answered knows of another reason.
            silent = min(attempt.pending)
            raise NodeLost(f"a node does not say why its part of the plan has ended: {silent}", node=silent) from cause
        raise cause

    def _cancel_part(self) -> None:
        """This node's, of the last attempt: where its rows were of no use it would wait for ever for somebody to take
        them."""
        if self._running is not None:
            self._running.cancel()

    async def _prepare(self) -> tuple[tuple[str, ...], PreparedPlan]:
        """Raises as `Coordinator.prepare`, and Cancelled."""
        self._is_preparing = True
        try:
            return await self._node.coordinator.prepare(self.plan, self._avoided)
        except asyncio.CancelledError:
            self._check_cancelled()
            raise
        except NotFound:
            if self._lost is not None:
                raise self._lost from None  # the one that reads the file
            raise
        finally:
            self._is_preparing = False

    def _note_change(self) -> None:
        """Another node has ended its part; if it failed, there is no answer to wait for."""
        if self._attempted is not None and self._attempted.failure is not None and self._running is not None:
            self._cancel_part()
            self._node.coordinator.run(self._wake(), f"{self.plan_id}/wake")

    async def _take_all(self, running: RunningPlan) -> None:
        while (batch := await running.take()) is not None:
            # Converted beside the loop, if it is much: views of texts are copied.
            is_small = isinstance(batch, Batch) and batch.length <= _SMALL_ROWS
            rows = running.as_arrow(batch) if is_small else await asyncio.to_thread(running.as_arrow, batch)
            del batch
            async with self._changed:
                if self._ready and not self._has_room(rows.nbytes, _QUEUED_BYTES if self._is_flowing else HELD_BYTES):
                    self._is_flowing = True
                    self._changed.notify_all()
                    await self._changed.wait_for(self._may_go_on)
                self._ready.append(rows)
                self._ready_bytes += rows.nbytes
                if self._is_flowing:
                    self._changed.notify_all()

    def _may_go_on(self) -> bool:
        """There is room for more rows, or no use for them."""
        failed = self._attempted is not None and self._attempted.failure is not None
        return not self._ready or self._has_room(1, _QUEUED_BYTES) or self._is_cancelled or failed

    def _has_room(self, nbytes: int, most: int) -> bool:
        return self._ready_bytes + nbytes <= most and self._node.coordinator.may_hold(nbytes)

    async def take(self) -> pa.RecordBatch | None:
        """On the node's loop: the next rows, None after the last. Raises the plan's error."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._seconds is not None or (self._is_flowing and bool(self._ready)) or self._is_cancelled
            )
            if self._error is not None:
                raise self._error
            if self._seconds is None and self._is_cancelled:
                await self._changed.wait_for(lambda: self._seconds is not None)
                raise self._error or Cancelled("the plan was cancelled", plan_id=self.plan_id)
            if not self._ready:
                return None
            batch = self._ready.popleft()
            self._ready_bytes -= batch.nbytes
            self.rows += batch.num_rows
            self._changed.notify_all()
            return batch

    def next_batch(self) -> pa.RecordBatch | None:
        """Wait for rows, on a client's thread; None after the last. Raises the plan's error."""
        try:
            waiting = self._node.host.call(self.take())
        except InvalidRequest:
            if self._error is not None:
                raise self._error from None
            raise
        return waiting.result()

    def cancel(self) -> None:
        """From any thread."""
        if self._seconds is None:
            with suppress(RuntimeError):  # the loop is closed: every plan has ended
                self._loop.call_soon_threadsafe(self.cancel_nowait)

    def cancel_nowait(self) -> None:
        """On the node's loop."""
        if self._seconds is not None or self._is_cancelled:
            return
        self._is_cancelled = True
        self._cancel_part()
        if self._is_preparing and self._task is not None:
            self._task.cancel()  # a node that is asked for its files may be silent
        self._node.coordinator.run(self._wake(), f"{self.plan_id}/wake")

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def set_urgency(self, urgency: Urgency) -> None:
        """Without effect once the plan has ended; the other nodes hear of it from the central service."""
        self._note_urgency(urgency, time.monotonic())
        if self._running is not None:
            self._running.set_urgency(urgency)

    def _note_urgency(self, urgency: Urgency, now: float) -> None:
        """For the next attempt. Without a deadline it stays as it was."""
        self._urgency = urgency
        if urgency.deadline is not None:
            self._due = now + urgency.deadline

    @property
    def held_bytes(self) -> int:
        """Of rows that wait for the client."""
        return self._ready_bytes

    @property
    def seconds(self) -> float:
        return self._seconds if self._seconds is not None else time.monotonic() - self._submitted

    def transferred(self) -> Totals:
        """What the I/O scheduler of this node moved for the plan so far, and the bytes that others moved whose part has
        ended."""
        here = Totals() if self._running is None else self._running.transferred()
        elsewhere = 0 if self._attempted is None else self._attempted.moved_bytes
        return replace(here, transferred_bytes=here.transferred_bytes + elsewhere)

    def operators(self) -> tuple[OperatorReport, ...]:
        """What each operator did, on this node so far, and on the others that have ended their part."""
        return reports(self._spread, self._snapshots())

    def explain(self, analyze: bool) -> str:
        remark = f"\n\n{self._remark}" if self._remark else ""
        if not analyze:
            return render(self._spread) + remark
        tree = render(self._spread, self._snapshots()) + remark
        found = self.verdict()
        return tree if found is None else f"{tree}\n\non the coordinator: {found}"

    def _snapshots(self) -> dict[str, OperatorSnapshot]:
        here = () if self._running is None else self._running.snapshots().values()
        elsewhere = () if self._attempted is None else self._attempted.operators
        return together((*here, *elsewhere))

    def trace(self) -> PlanTrace:
        """What this node remembers of its own part: each node keeps the records of its part to itself."""
        if self._running is None:
            raise InvalidRequest("the plan has not started")
        return self._running.trace()

    def verdict(self) -> Verdict | None:
        """What bounded this node's part."""
        return None if self._running is None else self._running.verdict()

    def progress(self) -> float | None:
        """The share of all rows to scan that is known to be done: those of this node's part, and those of the other
        nodes whose part has ended."""
        if self._seconds is not None and self._error is None:
            return 1.0
        return scanned_share(self._spread, self._snapshots())

    def _check_cancelled(self) -> None:
        if self._is_cancelled:
            raise Cancelled("the plan was cancelled", plan_id=self.plan_id)


def _cause(here: PystachioError, elsewhere: PystachioError | None) -> PystachioError:
    """Of two failures of one attempt, the one that the other may follow from: nodes that are lost cause plans to be
    cancelled, and so do failures that are no loss."""
    if elsewhere is None or isinstance(elsewhere, Cancelled):
        return here
    return elsewhere if isinstance(here, Cancelled | NodeLost) else here
