"""The node's actor: runs plans side by side on one loop, one worker pool, one memory and one I/O scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from types import TracebackType

import torch

from pystachio.errors import InternalError, InvalidRequest, NotFound
from pystachio.io_scheduler.central.lease_holder import LeaseHolderStatistics, Reranking
from pystachio.io_scheduler.central.scheduler import CentralStatistics
from pystachio.io_scheduler.client import TransferClient
from pystachio.io_scheduler.core.request import PriorityClass
from pystachio.runtime.activity import NodeActivity
from pystachio.runtime.actors import ActorRef, Children, Directive, Reply
from pystachio.runtime.central import NodeLeases, OpenCentre, OwnCentre
from pystachio.runtime.clock import Clock, SystemClock
from pystachio.runtime.context import Context
from pystachio.runtime.cuda_streams import CudaStreams
from pystachio.runtime.executor import BuildGraph, PlanScope
from pystachio.runtime.logging import get_logger
from pystachio.runtime.memory import Memory, Tier, TierStatistics
from pystachio.runtime.observation import ObservedPlan, observe
from pystachio.runtime.peers import PlanPeers
from pystachio.runtime.plan import CancelPlan, PlanActor, PlanEnded, PlanHandle, PlanMessage, SetPriority
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.settings import ExecutionSettings
from pystachio.runtime.streams import CpuStreams, StreamFactory
from pystachio.runtime.tracing import Tracing
from pystachio.runtime.transfers import PlanTransfers, TransferService
from pystachio.runtime.urgency import Urgency
from pystachio.runtime.worker_pool import WorkerPool, WorkerStatistics

LOCAL = "local"
"""The name of the only node of a single machine."""

OpenChunks = Callable[[Context], AbstractAsyncContextManager[object]]
"""Makes `Context.chunks`, with a context of class batch for work that belongs to no plan."""

OpenWorkers = Callable[[int, Clock], WorkerPool]
"""Makes a pool of so many workers, on the node's clock."""

_CHUNKS_PLAN = "chunk cache"


@dataclass(frozen=True, slots=True)
class ChangePriority:
    plan_id: str
    urgency: Urgency
    reply: Reply[None]


@dataclass(frozen=True, slots=True)
class CancelPlanById:
    plan_id: str
    reply: Reply[None]


NodeMessage = ChangePriority | CancelPlanById | PlanEnded


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """The leak counters stay zero. `leaked_bytes` were reserved by plans that ended well without releasing them,
    `leaked_external` counts jobs and transfers that outlived their plan's tasks. `central` is None where the central
    service is on another node.
    """

    plans_running: int
    plans_ended: int
    plans_failed: int
    leaked_bytes: int
    leaked_external: int
    workers: WorkerStatistics
    memory: Mapping[Tier, TierStatistics]
    leases: LeaseHolderStatistics
    central: CentralStatistics | None


@dataclass(slots=True)
class _RunningPlan:
    entry: PlanEntry
    handle: PlanHandle
    ref: ActorRef[PlanMessage]
    label: str


class Node:
    """`async with Node(...) as node`: starts the workers and the I/O scheduler, and on leaving cancels what runs."""

    def __init__(
        self,
        *,
        transfers: TransferService,
        settings: ExecutionSettings,
        memory: Mapping[Tier, int],
        device: torch.device,
        clock: Clock | None = None,
        hot_bytes: int = 0,
        open_chunks: OpenChunks | None = None,
        name: str = LOCAL,
        open_centre: OpenCentre = OwnCentre,
        open_workers: OpenWorkers | None = None,
    ) -> None:
        """`memory` is bytes by tier, of which `hot_bytes` of the host's may hold what plans keep for each other;
        `settings.workers` the number of worker threads; `open_chunks` opens what they keep on disk. `name` is the
        node's in its cluster, whose central service `open_centre` gives the way to. `open_workers` makes the pool, of
        threads unless time is virtual."""
        self.name = name
        self._open_centre = open_centre
        self._open_workers = open_workers if open_workers is not None else _worker_threads
        self._transfers = transfers
        self._settings = settings
        self._budgets = dict(memory)
        self._hot_bytes = hot_bytes
        self._open_chunks = open_chunks
        self.chunks: object | None = None
        self._device = device
        self._clock = clock if clock is not None else SystemClock()
        self.tracing = Tracing(enabled=settings.tracing)
        self._plans: dict[str, _RunningPlan] = {}
        self._sequence = 0
        self._ended = 0
        self._failed = 0
        self._leaked_bytes = 0
        self._leaked_external = 0
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Node:
        async with AsyncExitStack() as resources:
            self._workers = self._open_workers(self._settings.workers, self._clock)
            resources.push_async_callback(self._workers.close)
            self._streams = self._open_streams()
            resources.push_async_callback(self._streams.close)
            working = Tier.DEVICE if self._device.type == "cuda" else Tier.HOST
            self._memory = Memory(self._budgets, self._clock, working, self.tracing, self._hot_bytes)
            await self._transfers.start()
            resources.push_async_callback(self._transfers.stop)
            # Not left to the garbage collector, which may take its time: read buffers are freed with what they hold.
            resources.callback(self._memory.hot.clear)
            self._children = await resources.enter_async_context(Children(self._decide))
            self._ref = self._children.spawn("node", lambda ref: self)
            self._open_central(resources)
            if self._open_chunks is not None:
                chunk_worker = WorkerPool(1, name="pystachio-chunks", clock=self._clock)
                resources.push_async_callback(chunk_worker.close)
                context = self._context_of_chunks(CpuStreams(chunk_worker))
                self.chunks = await resources.enter_async_context(self._open_chunks(context))
            resources.push_async_callback(self._end_plans)
            self._resources = resources.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._resources.__aexit__(kind, error, traceback)

    async def _end_plans(self) -> None:
        running = tuple(self._plans.values())
        for plan in running:
            plan.ref.tell(CancelPlan())
        for plan in running:
            await plan.handle.wait_ended()

    def _open_central(self, resources: AsyncExitStack) -> None:
        self._centre = self._open_centre(self._children, self._clock, self.name)
        resources.callback(self._centre.close)
        self._leases = NodeLeases(
            self.name,
            clock=self._clock,
            ledger=self._transfers.ledger,
            centre=self._centre,
            grant=self._transfers.set_lease,
            rerank=self._rerank,
        )
        resources.callback(self._leases.close)
        self._centre.attach(self._leases)

    def _context_of_chunks(self, streams: StreamFactory) -> Context:
        """With a thread of its own: jobs among those of the plans would make them start threads beside."""
        entry = PlanEntry(_CHUNKS_PLAN, PriorityClass.BATCH, 0, self._memory.plan_became_idle)
        client = self._transfers.client(_CHUNKS_PLAN, PriorityClass.BATCH)
        return self._scope(entry, client, streams).context(_CHUNKS_PLAN)

    def _scope(
        self, entry: PlanEntry, client: TransferClient, streams: StreamFactory, peers: PlanPeers | None = None
    ) -> PlanScope:
        return PlanScope(
            entry,
            settings=self._settings,
            clock=self._clock,
            memory=self._memory,
            transfers=lambda operator: PlanTransfers(client.of_operator(operator), entry),
            stream=streams.open,
            tracing=self.tracing,
            chunks=self.chunks,
            peers=peers,
        )

    def _open_streams(self) -> StreamFactory:
        if self._device.type == "cuda":
            return CudaStreams(self._device, self._workers, threads=self._settings.workers)
        return CpuStreams(self._workers)

    async def submit(
        self,
        build: BuildGraph,
        *,
        plan_id: str,
        priority: PriorityClass = PriorityClass.NORMAL,
        deadline: float | None = None,
        label: str = "",
    ) -> PlanHandle:
        """`start_plan`, with the urgency in parts."""
        return self.start_plan(build, plan_id=plan_id, urgency=Urgency(priority, deadline), label=label)

    async def cancel(self, plan_id: str) -> None:
        """Ask a running plan to end; raises NotFound when none has this id."""
        await self._ref.ask(lambda reply: CancelPlanById(plan_id, reply))

    async def set_priority(self, plan_id: str, priority: PriorityClass, deadline: float | None = None) -> None:
        """For what the plan does from now on: jobs, transfers and memory that wait already included.

        `deadline` is in seconds from now; None leaves it as it is. Raises NotFound when no running plan has this id.
        """
        urgency = Urgency(priority, deadline)
        await self._ref.ask(lambda reply: ChangePriority(plan_id, urgency, reply))

    def expect_urgent(self) -> None:
        """From any thread: an interactive plan is being planned and will be submitted soon."""
        self._workers.expect_urgent()

    def activity(self) -> NodeActivity:
        """What everybody does and waits for now."""
        plans = [ObservedPlan(plan.entry, plan.label, plan.handle.rows) for plan in self._plans.values()]
        return observe(self._clock.now(), plans, self._workers, self._memory, self._transfers.activity())

    def statistics(self) -> NodeStatistics:
        return NodeStatistics(
            plans_running=len(self._plans),
            plans_ended=self._ended,
            plans_failed=self._failed,
            leaked_bytes=self._leaked_bytes,
            leaked_external=self._leaked_external,
            workers=self._workers.statistics(),
            memory=self._memory.statistics(),
            leases=self._leases.statistics(),
            central=self._centre.statistics(),
        )

    async def receive(self, message: NodeMessage) -> None:
        match message:
            case CancelPlanById(plan_id=plan_id, reply=reply):
                self._tell_plan(plan_id, CancelPlan(), reply)
            case ChangePriority(plan_id=plan_id, urgency=urgency, reply=reply):
                due = self._due(urgency)
                self._tell_plan(plan_id, SetPriority(urgency.priority, due), reply)
                self._leases.plan_reranked(plan_id, urgency.priority, due_at=due)
            case PlanEnded():
                self._forget(message)

    def start_plan(
        self,
        build: BuildGraph,
        *,
        plan_id: str,
        urgency: Urgency,
        label: str = "",
        peers: PlanPeers | None = None,
    ) -> PlanHandle:
        """Start a plan; returns before it ends. `plan_id` is unique among the running plans. On the loop.

        The urgency's deadline is in seconds from now. `label` is what people know the plan by, for example its
        statement. `peers` are the nodes that the plan is spread over. Not a message: the start of a small plan would
        wait for several turns of the loop.
        """
        if self._ref.has_ended:
            raise InternalError("a plan was submitted to a node that has ended")
        if plan_id in self._plans:
            raise InvalidRequest(f"a plan with this id is running already: {plan_id}")
        self._sequence += 1
        priority, due = urgency.priority, self._due(urgency)
        entry = PlanEntry(
            plan_id,
            priority,
            self._sequence,
            self._memory.plan_became_idle,
            opened_at=self._clock.now(),
            deadline=due,
        )
        client = self._transfers.client(plan_id, priority, deadline=due)
        self._workers.plan_opened(entry)
        self._leases.plan_started(plan_id, priority, due_at=due)
        scope = self._scope(entry, client, self._streams, peers)
        actor = PlanActor(
            scope,
            children=self._children,
            memory=self._memory,
            workers=self._workers,
            transfers=self._transfers,
            report=self._forget,
        )
        ref = self._children.spawn(plan_id, lambda _: actor)
        handle = PlanHandle(plan_id, scope.metrics, ref)
        self._plans[plan_id] = _RunningPlan(entry, handle, ref, label)
        actor.start(build)
        return handle

    def _due(self, urgency: Urgency) -> float | None:
        """The deadline as a time of the node's clock, which is the I/O scheduler's too."""
        return None if urgency.deadline is None else self._clock.now() + urgency.deadline

    def _rerank(self, reranking: Reranking) -> None:
        """The plan was given another rank on another node."""
        plan = self._plans.get(reranking.plan_id)
        if plan is not None:
            plan.ref.tell(SetPriority(reranking.priority, reranking.due_at))

    def _tell_plan(self, plan_id: str, message: PlanMessage, reply: Reply[None]) -> None:
        plan = self._plans.get(plan_id)
        if plan is None:
            reply.fail(NotFound(f"no running plan has this id: {plan_id}"))
        else:
            plan.ref.tell(message)
            reply.answer(None)

    def _forget(self, ended: PlanEnded) -> None:
        plan = self._plans.pop(ended.plan_id)
        self._workers.plan_closed(plan.entry)
        self._leases.plan_ended(ended.plan_id)
        self._ended += 1
        self._failed += ended.error is not None
        leaked_bytes = 0 if ended.error is not None else ended.left_bytes
        self._leaked_bytes += leaked_bytes
        self._leaked_external += ended.left_external
        if leaked_bytes or ended.left_external:
            get_logger().error(
                "a plan left something behind",
                plan_id=ended.plan_id,
                left_bytes=ended.left_bytes,
                left_external=ended.left_external,
            )
        self._children.stop(plan.ref)
        plan.handle.mark_ended(ended.error)

    def _decide(self, name: str, error: BaseException) -> Directive:
        """Supervision: a message that fails takes down its plan, never the node."""
        get_logger().error("an actor crashed", actor=name, exc_info=error)
        plan = self._plans.get(name)
        if plan is None:
            return Directive.RESTART
        failure = InternalError(f"the plan's actor crashed: {error}", plan_id=name)
        failure.__cause__ = error
        self._ref.tell(PlanEnded(name, failure, self._memory.release_plan(plan.entry), plan.entry.external))
        return Directive.STOP


def _worker_threads(workers: int, clock: Clock) -> WorkerPool:
    return WorkerPool(workers, clock=clock)
