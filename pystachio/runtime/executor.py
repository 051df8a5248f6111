"""Runs one plan's graph of tasks under structured concurrency and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from pystachio.errors import Cancelled, InternalError, PystachioError
from pystachio.records import record
from pystachio.runtime.channels import Channel, Sized
from pystachio.runtime.clock import Clock
from pystachio.runtime.context import Context, PlanIdentity
from pystachio.runtime.failures import typed_error
from pystachio.runtime.logging import get_logger
from pystachio.runtime.memory import Memory
from pystachio.runtime.metrics import OperatorMetrics, PlanMetrics
from pystachio.runtime.peers import PlanPeers
from pystachio.runtime.plan_entry import PlanEntry
from pystachio.runtime.settings import ExecutionSettings
from pystachio.runtime.slots import Slot
from pystachio.runtime.streams import Stream
from pystachio.runtime.tracing import Phase, PhaseRecord, Tracing
from pystachio.runtime.transfers import Transfers

T = TypeVar("T", bound=Sized)

CHANNEL_SHARE = 32
"""A channel holds at most this fraction of the memory budget: a graph with a dozen of them still fits."""
MOST_CHANNEL_BYTES = 64 << 20


@record
class TaskSpec:
    """One coroutine of the graph. `name` is the operator's, for errors and logs."""

    name: str
    run: Callable[[], Coroutine[object, object, None]]


async def _do_nothing() -> None:
    pass


_NOTHING: Final = TaskSpec("nothing", _do_nothing)


class PlanScope:
    """What the builder of a graph gets: the plan's identity, settings, clock and slots, and makers of the rest."""

    def __init__(
        self,
        entry: PlanEntry,
        *,
        settings: ExecutionSettings,
        clock: Clock,
        memory: Memory,
        transfers: Callable[[str], Transfers],
        stream: Callable[[PlanEntry, OperatorMetrics], Stream],
        tracing: Tracing,
        chunks: object | None = None,
        peers: PlanPeers | None = None,
    ) -> None:
        """`transfers` makes the transfers of an operator, by its name; `chunks` and `peers` are those of `Context`."""
        self.identity = PlanIdentity(entry.plan_id, entry.priority)
        self.settings = settings
        self.clock = clock
        self.slots: dict[tuple[str, int], Slot[object]] = {}
        self.metrics = PlanMetrics(entry.plan_id, clock, tracing)
        self.entry = entry
        self.channels: list[Channel[Any]] = []
        self.peers = None if peers is None else replace(peers, entry=entry)
        self._memory = memory
        self._transfers = transfers
        self._stream = stream
        self._tracing = tracing
        self._chunks = chunks
        self._of_channels = OperatorMetrics("channels", clock)
        """Of all channels' memory: nobody asks for it."""
        self._phase_started = clock.now()

    @property
    def memory_budget(self) -> int:
        """Bytes that the node may hold where operators compute."""
        return self._memory.budget()

    def context(self, operator: str) -> Context:
        """The view of one operator. Its name is unique in the plan: metrics and memory are kept under it."""
        metrics = self.metrics.operator(operator)
        return Context(
            plan=self.identity,
            operator=operator,
            stream=self._stream(self.entry, metrics),
            memory=self._memory.operator(self.entry, operator, metrics),
            transfers=self._transfers(operator),
            clock=self.clock,
            settings=self.settings,
            metrics=metrics,
            slots=self.slots,
            hot=self._memory.hot,
            chunks=self._chunks,
            peers=self.peers,
        )

    def channel(self, name: str, *, producer: str | None = None, for_client: bool = False) -> Channel[T]:
        """A channel whose items count against the plan's memory.

        `producer` names the operator whose waits for room are counted. `for_client` says that the receiver is outside
        the plan: the plan ends only when the client has taken everything or has closed its receiver.
        """
        metrics = None if producer is None else self.metrics.operator(producer)
        channel: Channel[T] = Channel(
            name,
            capacity_bytes=min(MOST_CHANNEL_BYTES, self.memory_budget // CHANNEL_SHARE),
            memory=self._memory.operator(self.entry, f"channel {name}", self._of_channels),
            entry=self.entry,
            for_client=for_client,
            metrics=metrics,
            unread=self.metrics.operator(name) if for_client else None,
        )
        self.channels.append(channel)
        return channel

    def end_phase(self, phase: Phase) -> None:
        """What the plan did since its last phase, or since its submission, was this."""
        now = self.clock.now()
        if self._tracing.enabled:
            entry = self.entry
            self._tracing.phase(PhaseRecord(entry.plan_id, phase, entry.priority, self._phase_started, now))
        self._phase_started = now


BuildGraph = Callable[[PlanScope], Sequence[TaskSpec]]


async def run_graph(scope: PlanScope, build: BuildGraph) -> None:
    """Build the graph and run it to its end.

    The first failure cancels the other tasks and is raised, typed, when all of them have ended. CancelledError passes.
    """
    execution = _Execution(scope)
    try:
        await execution.run(build)
    finally:
        scope.end_phase(Phase.DRAIN)
        for channel in scope.channels:
            channel.discard()


class _Execution:
    def __init__(self, scope: PlanScope) -> None:
        self._scope = scope
        self._failure: PystachioError | None = None
        self._owner: asyncio.Task[object] | None = None

    async def run(self, build: BuildGraph) -> None:
        self._owner = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as tasks:
                *others, last = self._build(build) or (_NOTHING,)
                for spec in others:
                    tasks.create_task(self._run_task(spec), name=f"{self._scope.identity.plan_id}/{spec.name}")
                self._scope.end_phase(Phase.START)
                # Here, not in a task: most often it is the one that ends last.
                await self._run_task(last)
        except* PystachioError:
            assert self._failure is not None, "every failing task records its error"
        finally:
            self._scope.end_phase(Phase.RUN)
        if self._failure is not None:
            raise self._failure
        for channel in self._scope.channels:
            channel.close()
        for channel in self._scope.channels:
            if channel.for_client:
                await channel.wait_drained()

    def _build(self, build: BuildGraph) -> Sequence[TaskSpec]:
        try:
            return build(self._scope)
        except Exception as error:
            raise self._fail(error, None) from error

    async def _run_task(self, spec: TaskSpec) -> None:
        try:
            await spec.run()
        except asyncio.CancelledError:
            assert self._owner is not None
            if self._failure is None and not self._owner.cancelling():
                raise self._fail(InternalError("a task was cancelled by nobody"), spec.name) from None
            raise
        except (Exception, BaseExceptionGroup, SystemExit, KeyboardInterrupt) as error:
            failure = self._fail(error, spec.name)
            raise failure from failure.__cause__

    def _fail(self, error: BaseException, operator: str | None) -> PystachioError:
        """Type the error; the plan's is the first one that is no cancellation, if there is one."""
        failure = typed_error(
            error,
            plan_id=self._scope.identity.plan_id,
            operator=operator,
            memory=self._scope.memory_budget,
        )
        if self._failure is None or (isinstance(self._failure, Cancelled) and not isinstance(failure, Cancelled)):
            # What others have given up comes back as a cancellation, perhaps before the reason for it is known here.
            self._failure = failure
        else:
            get_logger().debug("another task failed while the plan ended", operator=operator, error=str(error))
        return failure
