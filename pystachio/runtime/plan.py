"""The plan's actor: runs one graph, takes cancellations and priorities while it runs, and reports its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pystachio.errors import Cancelled, PystachioError
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.actors import ActorRef, Children
from pystachio.runtime.executor import BuildGraph, PlanScope, run_graph
from pystachio.runtime.failures import forget_frames, typed_error
from pystachio.runtime.logging import bind_plan
from pystachio.runtime.memory import Memory
from pystachio.runtime.metrics import PlanMetrics
from pystachio.runtime.transfers import TransferService
from pystachio.runtime.worker_pool import WorkerPool

LAST_JOBS_SECONDS = 1.0
"""How long the end of a plan waits for work that none of its tasks awaits, before it counts as a leak."""


@dataclass(frozen=True, slots=True)
class CancelPlan:
    pass


@dataclass(frozen=True, slots=True)
class SetPriority:
    """`deadline` in seconds of the node's clock; None leaves it as it is."""

    priority: PriorityClass
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class PlanEnded:
    """What a plan's actor tells its node.

    `left_bytes` were still reserved when all tasks had ended: usual after a failure, a leak after a success.
    `left_external` counts jobs and transfers that nobody awaited: always a leak.
    """

    plan_id: str
    error: PystachioError | None
    left_bytes: int
    left_external: int


PlanMessage = CancelPlan | SetPriority


class PlanHandle:
    """What the submitter holds of a plan. On the node's loop, except `cancel` and `done`."""

    def __init__(self, plan_id: str, metrics: PlanMetrics, ref: ActorRef[PlanMessage]) -> None:
        self.plan_id = plan_id
        self.metrics = metrics
        self.rows = 0
        """Rows that the client has taken; the client counts them."""
        self._ref = ref
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._error: PystachioError | None = None
        self._watchers: list[Callable[[PystachioError | None], None]] = []

    async def wait(self) -> None:
        """Until the plan has ended and everything of it is released; raises its typed error.

        A plan with a channel for its client ends only when the client has taken everything.
        """
        error = await self.wait_ended()
        if error is not None:
            raise error

    async def wait_ended(self) -> PystachioError | None:
        """As `wait`, but returns the error."""
        await self._ended.wait()
        return self._error

    def cancel(self) -> None:
        """Ask the plan to end, from any thread; `wait` then raises Cancelled unless it had ended before."""
        with suppress(RuntimeError):  # the loop is closed: every plan has ended
            self._loop.call_soon_threadsafe(self._cancel_nowait)

    def done(self) -> bool:
        return self._ended.is_set()

    def when_ended(self, watcher: Callable[[PystachioError | None], None]) -> None:
        """Have `watcher` called with the error at the end, before anybody who waits goes on."""
        self._watchers.append(watcher)

    def mark_ended(self, error: PystachioError | None) -> None:
        """By the node, once."""
        if not self._ended.is_set():
            self._error = error
            watchers, self._watchers = self._watchers, []
            for watcher in watchers:
                watcher(error)
            self._ended.set()

    def _cancel_nowait(self) -> None:
        if not self.done():
            self._ref.tell(CancelPlan())


class PlanActor:
    """Owns one plan's execution. Everything the plan took is back before its end is reported."""

    def __init__(
        self,
        scope: PlanScope,
        *,
        children: Children,
        memory: Memory,
        workers: WorkerPool,
        transfers: TransferService,
        report: Callable[[PlanEnded], None],
    ) -> None:
        self._scope = scope
        self._children = children
        self._memory = memory
        self._workers = workers
        self._transfers = transfers
        self._report = report
        self._execution: asyncio.Task[None] | None = None
        self._is_executing = False
        self._is_cancelled = False

    def start(self, build: BuildGraph) -> None:
        """Once, before any message."""
        self._execution = self._children.start(self._scope.entry.plan_id, lambda: self._execute(build))

    async def receive(self, message: PlanMessage) -> None:
        entry = self._scope.entry
        match message:
            case CancelPlan():
                self._is_cancelled = True
                if self._execution is not None and self._is_executing:
                    self._execution.cancel()
            case SetPriority(priority=priority, deadline=deadline):
                entry.priority = priority
                if deadline is not None:
                    entry.deadline = deadline
                self._transfers.set_priority(entry.plan_id, priority, deadline)
                self._memory.rank_changed()
                self._workers.rank_changed()

    async def _execute(self, build: BuildGraph) -> None:
        entry = self._scope.entry
        bind_plan(entry.plan_id)
        error = await self._run(build)
        if error is not None:
            forget_frames(error)
        self._is_executing = False
        if self._scope.peers is not None:
            self._scope.peers.close()
        self._transfers.close_plan(entry.plan_id)
        if entry.external:
            with suppress(TimeoutError):
                # The client may be converting what it took; what is left after that was started by nobody's task.
                async with asyncio.timeout(LAST_JOBS_SECONDS):
                    await entry.wait_idle()
        left = self._memory.release_plan(entry)
        self._report(PlanEnded(entry.plan_id, error, left, entry.external))

    async def _run(self, build: BuildGraph) -> PystachioError | None:
        """The graph from start to end; every way to end is a value."""
        plan_id = self._scope.identity.plan_id
        if self._is_cancelled:
            return Cancelled("the plan was cancelled", plan_id=plan_id)
        # A task that is cancelled before its first step never runs, and its end would never be reported.
        self._is_executing = True
        try:
            await run_graph(self._scope, build)
        except asyncio.CancelledError:
            return Cancelled("the plan was cancelled", plan_id=plan_id)
        except PystachioError as failure:
            return failure
        except Exception as unexpected:
            return typed_error(unexpected, plan_id=plan_id, operator=None, memory=self._scope.memory_budget)
        return None
