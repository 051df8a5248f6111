"""A node inside the client's process: what a session's tables, plans and results stand on.

Everything here may be called from any thread of the client; what belongs to the node's loop goes there.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from textwrap import shorten

import pyarrow as pa
import torch

from pystachio.config import Settings
from pystachio.errors import InternalError, InvalidRequest, NotFound, PystachioError, ResourceExhausted
from pystachio.io_scheduler.buffers import IDLE_BYTES, BufferPool
from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import Extent, PriorityClass
from pystachio.io_scheduler.devices import choose
from pystachio.io_scheduler.emulation import Emulation, emulating
from pystachio.io_scheduler.history import History
from pystachio.io_scheduler.ledger import Totals
from pystachio.io_scheduler.links import locate_disk
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators import chunk_cache
from pystachio.operators.arrow import batch_to_arrow
from pystachio.operators.batch import Batch
from pystachio.operators.chunk_cache import ChunkCache, ChunkCacheStatistics
from pystachio.operators.chunk_samples import ChunkSamples
from pystachio.operators.chunk_store import ChunkStore
from pystachio.operators.operator import Operator
from pystachio.operators.parquet_footer import read_footers
from pystachio.operators.pipeline import PhysicalPlan, build_graph, operator_names, operators_of
from pystachio.operators.scan import Scan
from pystachio.operators.scan_top_n import ScanTopN
from pystachio.operators.table import FileVersion, ParquetFile
from pystachio.planner.explain import render
from pystachio.runtime.allocator import keep_freed_memory
from pystachio.runtime.channels import Receiver
from pystachio.runtime.control import ControlServer
from pystachio.runtime.devices import choose_device
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.host import NodeHost
from pystachio.runtime.interpreter import switch_threads_often
from pystachio.runtime.memory import Tier
from pystachio.runtime.metrics import OperatorSnapshot
from pystachio.runtime.node import Node, NodeStatistics
from pystachio.runtime.plan import PlanHandle
from pystachio.runtime.settings import ExecutionSettings
from pystachio.runtime.slots import Slot
from pystachio.runtime.urgency import Urgency
from pystachio.trace import plan_trace
from pystachio.trace.plan_trace import PlanTrace
from pystachio.trace.verdict import Verdict, verdict

_CATALOG_PLAN = "catalog"
"""The ledger's name for reads that belong to no plan: footers and samples."""
_DEVICE_MEMORY_FRACTION = 0.8
_LONGEST_LABEL = 60
_LONGEST_TITLE = 100
_LABEL_TAIL = re.compile(r"( by)? \[| build=")
_HOT_SHARE = 2
"""Of the memory budget, this part may hold decoded columns as long as no plan needs it."""
_IDLE_BUFFER_SHARE = 8
"""Read buffers between two uses keep at most this part of the memory budget, beside it."""


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """What the node holds now. `leaks` counts what ended plans had left behind; it stays zero.

    `chunks` is None where decoded columns are not stored on disk.
    """

    running_plans: int
    reserved_bytes: int
    leaks: int
    chunks: ChunkCacheStatistics | None = None


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """What one operator did: `kind` is its class, `label` what `explain` calls it, `counts` what only some count."""

    name: str
    kind: str
    label: str
    rows_in: int
    rows_out: int
    busy_seconds: float
    counts: Mapping[str, int]


class EmbeddedNode:
    """Owns the node's thread; it stops when it is closed or nobody holds it any more."""

    def __init__(self, settings: Settings) -> None:
        keep_freed_memory()
        switch_threads_often()
        device = choose_device(settings.device)
        locate, open_device = emulating(
            [Emulation(str(disk.path), disk.rate, disk.latency, disk.depth) for disk in settings.emulated],
            locate_disk,
            choose(settings.io_device, direct=settings.direct_io == "on"),
        )
        transfers = IoSchedulerService(
            open_device=open_device,
            locate=locate,
            policy=POLICIES[settings.io_policy],
            buffers=BufferPool(idle_bytes=min(IDLE_BYTES, settings.memory // _IDLE_BUFFER_SHARE)),
            history=History(enabled=settings.tracing),
        )
        execution = execution_settings(settings)
        budgets = _budgets(settings, device)
        hot_bytes = settings.memory // _HOT_SHARE if settings.chunk_cache else 0
        chunk_bytes = settings.chunk_cache_limit()
        store = ChunkStore(settings.chunk_cache_dir, chunk_bytes) if chunk_bytes else None
        self._transfers = transfers
        self._workers = settings.threads
        self._host = NodeHost(
            lambda: _with_control_socket(
                Node(
                    transfers=transfers,
                    settings=execution,
                    memory=budgets,
                    device=device,
                    hot_bytes=hot_bytes,
                    open_chunks=None if store is None else lambda ctx: chunk_cache.opened(ctx, store),
                ),
                settings.control_socket,
            )
        )
        try:
            self._host.start()
        except OSError as error:
            raise ResourceExhausted(
                f"the node could not start: {error}",
                setting="ulimit -n",
                hint="close files that are not needed, or allow the process more of them",
            ) from error
        self._stop = weakref.finalize(self, self._host.stop)
        self._stop.atexit = False

    def close(self) -> None:
        """Cancel what runs and end the node's thread."""
        self._stop()

    def read_footers(self, versions: Sequence[FileVersion]) -> list[ParquetFile]:
        """`planner.catalog.ReadFooters`."""

        async def read() -> list[ParquetFile]:
            return await read_footers(self._transfers.client(_CATALOG_PLAN, PriorityClass.INTERACTIVE), versions)

        return self._host.call(read()).result()

    def fetch(self, path: str, extents: Sequence[Extent]) -> list[HostBuffer]:
        """`planner.sample.Fetch`."""

        async def read() -> list[HostBuffer]:
            return await self._transfers.client(_CATALOG_PLAN, PriorityClass.INTERACTIVE).read(path, extents)

        return self._host.call(read()).result()

    @property
    def samples(self) -> ChunkSamples | None:
        """`planner.sample.KeptSamples`: beside the columns that are kept on disk, if they are."""
        chunks = self._host.node.chunks
        return ChunkSamples(chunks, self.fetch) if isinstance(chunks, ChunkCache) else None

    def expect(self, urgency: Urgency) -> None:
        """A plan of this urgency is being planned: keep the workers free for it if it is an interactive one."""
        if urgency.priority == PriorityClass.INTERACTIVE:
            self._host.expect_urgent()

    def submit(self, plan: PhysicalPlan, urgency: Urgency, label: str) -> RunningPlan:
        """Start the plan, which people know by `label`; its rows wait for `RunningPlan.next_batch`."""
        running = RunningPlan(self, plan, label)
        running.submit(urgency)
        return running

    def statistics(self) -> SessionStatistics:
        async def ask() -> tuple[NodeStatistics, object]:
            return self._host.node.statistics(), self._host.node.chunks

        now, chunks = self._host.call(ask()).result()
        reserved = sum(tier.used for tier in now.memory.values())
        stored = chunks.statistics() if isinstance(chunks, ChunkCache) else None
        return SessionStatistics(now.plans_running, reserved, now.leaked_bytes + now.leaked_external, stored)

    @property
    def keeps_traces(self) -> bool:
        return self._transfers.history.enabled

    @property
    def host(self) -> NodeHost:
        return self._host

    def plan_trace(self, plan: RunningPlan, submitted: float) -> PlanTrace:
        """What is remembered of the plan, which was submitted then. Raises InvalidRequest when the node has stopped.

        Taken on the caller's thread: going through full rings would stop the node's loop for a good part of a second.
        """
        return plan_trace.take(
            plan.plan_id,
            title=shorten(plan.label, _LONGEST_TITLE, placeholder=" …"),
            submitted=submitted,
            now=time.monotonic(),
            history=self._transfers.history,
            tracing=self._host.node.tracing,
            workers=self._workers,
            labels=operator_labels(plan.plan),
            decoders=frozenset(
                name for name, operator in named_operators(plan.plan).items() if isinstance(operator, Scan | ScanTopN)
            ),
        )

    def totals(self, plan_id: str) -> Totals:
        """What the I/O scheduler moved for the plan; on the node's loop."""
        return self._transfers.ledger.plan(plan_id)


class RunningPlan:
    """A plan on the node, from submission on; keeps the node alive."""

    def __init__(self, node: EmbeddedNode, plan: PhysicalPlan, label: str) -> None:
        self.plan_id = uuid.uuid4().hex[:12]
        self.plan = plan
        self.label = label
        self._node = node
        self._submitted = time.monotonic()
        self._seconds: float | None = None
        self._totals = Totals()
        self._handle: PlanHandle | None = None
        """There once the loop has come to it."""
        self._results: Slot[Receiver[Batch] | None] = Slot()
        self._error: PystachioError | None = None
        self._delivered = False
        """The last batch was, and the plan has ended well."""

    @property
    def schema(self) -> pa.Schema:
        return self.plan.arrow_schema

    def submit(self, urgency: Urgency) -> None:
        """Have the node's loop start the plan; what it is asked for from now on finds the plan there."""
        self._loop = self._node.host.call_soon(lambda: self._start(urgency))

    def _start(self, urgency: Urgency) -> None:
        """On the node's loop."""

        def build(scope: PlanScope) -> list[TaskSpec]:
            graph = build_graph(self.plan, scope)
            self._stream = scope.context("result").stream
            self._results.set(graph.results)
            return graph.tasks

        try:
            node = self._node.host.node
            self._handle = node.start_plan(build, plan_id=self.plan_id, urgency=urgency, label=self.label)
        except Exception as error:
            failure = error if isinstance(error, PystachioError) else InternalError(f"a plan did not start: {error}")
            failure.__cause__ = None if failure is error else error
            self._note_end(failure)
        else:
            self._handle.when_ended(self._note_end)

    def _note_end(self, error: PystachioError | None) -> None:
        """Keep what is known of the plan at its end."""
        self._error = error
        self._totals = self._node.totals(self.plan_id)
        # Last: other threads read the rest once this says that the plan has ended.
        self._seconds = time.monotonic() - self._submitted
        if not self._results.is_set:
            self._results.set(None)

    def next_batch(self) -> pa.RecordBatch | None:
        """Wait for rows; None after the last. Raises the plan's error."""
        if self._delivered:
            return None
        try:
            waiting = self._node.host.call(self._next())
        except InvalidRequest:
            if self._error is not None:
                raise self._error from None
            raise
        batch = waiting.result()
        if isinstance(batch, Batch):
            batch = batch_to_arrow(batch, self.plan.schema)
        return None if batch is None else pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    async def _next(self) -> Batch | pa.RecordBatch | None:
        """Batches of a CPU are left to the client's thread to convert."""
        handle, results = self._handle, await self._results.wait()
        if handle is not None and results is not None:
            async for batch in results:
                handle.rows += batch.length
                if self._stream.device.type != "cpu":
                    return await self._stream.run(batch_to_arrow, batch, self.plan.schema)
                if not results.has_ended:
                    await asyncio.sleep(0)  # the producer may end in this turn
                if results.has_ended:
                    results.close()
                    await self._ended()
                    self._delivered = True
                return batch
        await self._ended()
        return None

    async def _ended(self) -> None:
        """Wait for the end of the plan; raises its error."""
        if self._handle is not None:
            await self._handle.wait_ended()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        if self._seconds is None:
            with suppress(RuntimeError):  # the loop is closed: every plan has ended
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        """On the node's loop."""
        if self._handle is not None:
            self._handle.cancel()

    def set_urgency(self, urgency: Urgency) -> None:
        """Without effect once the plan has ended."""
        if self._seconds is not None:
            return

        async def change() -> None:
            with suppress(NotFound):  # it has ended meanwhile
                await self._node.host.node.set_priority(self.plan_id, urgency.priority, urgency.deadline)

        self._node.host.call(change()).result()

    @property
    def rows(self) -> int:
        """Rows handed to the client so far."""
        return 0 if self._handle is None else self._handle.rows

    @property
    def seconds(self) -> float:
        """From submission to the end, or to now."""
        return self._seconds if self._seconds is not None else time.monotonic() - self._submitted

    def transferred(self) -> Totals:
        """What the I/O scheduler moved for this plan so far."""
        if self._seconds is None:

            async def ask() -> Totals:
                return self._node.totals(self.plan_id)

            return self._node.host.call(ask()).result()
        return self._totals

    def operators(self) -> tuple[OperatorReport, ...]:
        """What each operator did so far, parents before children."""
        snapshots = self._snapshots()
        names = operator_names(self.plan)
        reports = []
        for operator in operators_of(self.plan):
            name = names[id(operator)]
            if name in snapshots:
                done = snapshots[name]
                kind = type(operator).__name__
                measured = (done.rows_in, done.rows_out, done.busy_seconds, done.counts)
                reports.append(OperatorReport(name, kind, operator.label(), *measured))
        return tuple(reports)

    def explain(self, analyze: bool) -> str:
        if not analyze:
            return render(self.plan)
        tree = render(self.plan, self._snapshots())
        found = self.verdict()
        return tree if found is None else f"{tree}\n\n{found}"

    def trace(self) -> PlanTrace:
        """What is remembered of the plan so far. Raises InvalidRequest when the node has stopped or keeps no record."""
        if not self._node.keeps_traces:
            raise InvalidRequest("nothing is traced", hint="set 'tracing' to true")
        return self._node.plan_trace(self, self._submitted)

    def verdict(self) -> Verdict | None:
        """What bounded the plan so far; None when the node has stopped or keeps no record."""
        try:
            return verdict(self.trace())
        except InvalidRequest:
            return None

    def progress(self) -> float | None:
        """The share of the rows of all scanned tables that the scans have gone through or skipped."""
        if self._seconds is not None and self._error is None:
            return 1.0
        names = operator_names(self.plan)
        scans = {
            names[id(operator)]: operator
            for operator in operators_of(self.plan)
            if isinstance(operator, Scan | ScanTopN)
        }
        total = sum(scan.table.rows for scan in scans.values())
        snapshots = self._snapshots()
        done = sum(snapshots[name].rows_in for name in scans if name in snapshots)
        return min(1.0, done / total) if total else None

    def _snapshots(self) -> dict[str, OperatorSnapshot]:
        if self._handle is None:
            return {}
        return {snapshot.name: snapshot for snapshot in self._handle.metrics.snapshot().operators}


def named_operators(plan: PhysicalPlan) -> dict[str, Operator]:
    """The plan's operators by the names that metrics and records have for them."""
    names = operator_names(plan)
    return {names[id(operator)]: operator for operator in operators_of(plan)}


def operator_labels(plan: PhysicalPlan) -> dict[str, str]:
    """What people call the operators, by name: the head of their label, numbered where several are alike."""
    heads = {name: _LABEL_TAIL.split(operator.label())[0] for name, operator in named_operators(plan).items()}
    heads = {name: head if len(head) <= _LONGEST_LABEL else f"{head[:_LONGEST_LABEL]}…" for name, head in heads.items()}
    alike = Counter(heads.values())
    return {name: head if alike[head] == 1 else f"{head} ({name.split(':')[0]})" for name, head in heads.items()}


@asynccontextmanager
async def _with_control_socket(node: Node, wanted: bool) -> AsyncIterator[Node]:
    async with node:
        if not wanted:
            yield node
            return
        async with ControlServer(node):
            yield node


def execution_settings(settings: Settings) -> ExecutionSettings:
    """What operators and the planner read of the settings."""
    return ExecutionSettings(
        batch_rows=settings.batch_rows,
        workers=settings.threads,
        dictionary_codes=settings.dictionary_codes,
        direct_addressing=settings.direct_addressing,
        fusion=settings.fusion,
        join_reordering=settings.join_reordering,
        tracing=settings.tracing,
    )


def _budgets(settings: Settings, device: torch.device) -> dict[Tier, int]:
    budgets = {Tier.HOST: settings.memory}
    if device.type == "cuda":
        budgets[Tier.DEVICE] = int(torch.cuda.mem_get_info(device)[1] * _DEVICE_MEMORY_FRACTION)
    return budgets
