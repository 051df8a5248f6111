"""The plan's actor: runs one graph, takes cancellations and priorities while it runs, and reports its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pystachio.errors import Cancelled, PystachioError
from pystachio.io_scheduler.request import PriorityClass
from pystachio.runtime.actors import ActorRef, Children
from pystachio.runtime.executor import BuildGraph, PlanScope, run_graph
from pystachio.runtime.failures import typed_error
from pystachio.runtime.logging import bind_plan
from pystachio.runtime.memory import Memory
from pystachio.runtime.metrics import PlanMetrics
from pystachio.runtime.transfers import TransferService


@dataclass(frozen=True, slots=True)
class StartPlan:
    build: BuildGraph


@dataclass(frozen=True, slots=True)
class CancelPlan:
    pass


@dataclass(frozen=True, slots=True)
class SetPriority:
    priority: PriorityClass


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


PlanMessage = StartPlan | CancelPlan | SetPriority


class PlanHandle:
    """What the submitter holds of a plan. On the node's loop, except `cancel` and `done`."""

    def __init__(self, plan_id: str, metrics: PlanMetrics, ref: ActorRef[PlanMessage]) -> None:
        self.plan_id = plan_id
        self.metrics = metrics
        self._ref = ref
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[PystachioError | None] = self._loop.create_future()

    async def wait(self) -> None:
        """Until the plan has ended and everything of it is released; raises its typed error.

        A plan with a channel for its client ends only when the client has taken everything.
        """
        error = await self.wait_ended()
        if error is not None:
            raise error

    async def wait_ended(self) -> PystachioError | None:
        """As `wait`, but returns the error."""
        return await asyncio.shield(self._ended)

    def cancel(self) -> None:
        """Ask the plan to end, from any thread; `wait` then raises Cancelled unless it had ended before."""
        self._loop.call_soon_threadsafe(self._cancel_nowait)

    def done(self) -> bool:
        return self._ended.done()

    def mark_ended(self, error: PystachioError | None) -> None:
        """By the node, once."""
        if not self._ended.done():
            self._ended.set_result(error)

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
        transfers: TransferService,
        report: Callable[[PlanEnded], None],
    ) -> None:
        self._scope = scope
        self._children = children
        self._memory = memory
        self._transfers = transfers
        self._report = report
        self._execution: asyncio.Task[None] | None = None

    async def receive(self, message: PlanMessage) -> None:
        entry = self._scope.entry
        match message:
            case StartPlan(build=build):
                self._execution = self._children.start(f"{entry.plan_id}/graph", self._execute(build))
            case CancelPlan():
                if self._execution is not None:
                    self._execution.cancel()
            case SetPriority(priority=priority):
                entry.priority = priority
                self._transfers.set_priority(entry.plan_id, priority)
                self._memory.rank_changed()

    async def _execute(self, build: BuildGraph) -> None:
        plan_id = self._scope.identity.plan_id
        bind_plan(plan_id)
        error: PystachioError | None = None
        try:
            await run_graph(self._scope, build)
        except PystachioError as failure:
            error = failure
        except asyncio.CancelledError:
            error = Cancelled("the plan was cancelled", plan_id=plan_id)
        except BaseException as unexpected:
            error = typed_error(unexpected, plan_id=plan_id, operator=None, memory=self._scope.memory_budget)
        finally:
            self._transfers.close_plan(plan_id)
            left = self._memory.release_plan(self._scope.entry)
            self._report(PlanEnded(plan_id, error, left, self._scope.entry.external))
