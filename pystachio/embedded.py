"""A node inside the client's process: what a session's tables, plans and results stand on.

Everything here may be called from any thread of the client; what belongs to the node's loop goes there.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from textwrap import shorten

import torch

from pystachio.config import Settings
from pystachio.errors import PystachioError, ResourceExhausted
from pystachio.io_scheduler.buffers import IDLE_BYTES, SPARE_BYTES, BufferPool, SpareSlabs
from pystachio.io_scheduler.client import HostBuffer
from pystachio.io_scheduler.core.policy import POLICIES
from pystachio.io_scheduler.core.request import Extent, PriorityClass
from pystachio.io_scheduler.devices import choose
from pystachio.io_scheduler.emulation import Emulation, emulating
from pystachio.io_scheduler.history import History
from pystachio.io_scheduler.ledger import Totals
from pystachio.io_scheduler.links import Locate, locate_disk
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.chunks import cache as chunk_cache
from pystachio.operators.chunks.cache import ChunkCache, ChunkCacheStatistics
from pystachio.operators.chunks.plans import ChunkPlans
from pystachio.operators.chunks.samples import ChunkSamples
from pystachio.operators.chunks.store import ChunkStore
from pystachio.operators.parquet.footer import read_footers
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.table import FileVersion, ParquetFile
from pystachio.planner.local_files import local_files
from pystachio.running_plan import RunningPlan, named_operators, operator_labels
from pystachio.runtime.allocator import keep_freed_memory
from pystachio.runtime.central import OpenCentre, OwnCentre
from pystachio.runtime.control import ControlServer
from pystachio.runtime.devices import choose_device
from pystachio.runtime.host import NodeHost
from pystachio.runtime.interpreter import collect_after_many_objects, switch_threads_often
from pystachio.runtime.memory import Tier
from pystachio.runtime.node import LOCAL, Node, NodeStatistics
from pystachio.runtime.settings import ExecutionSettings
from pystachio.runtime.urgency import Urgency
from pystachio.trace import plan_trace
from pystachio.trace.plan_trace import PlanTrace

CATALOG_PLAN = "catalog"
_USUAL_CATALOG_PLAN = "usual catalog"
"""The ledger's name for reads that belong to no plan: footers and samples."""
_DEVICE_MEMORY_FRACTION = 0.8
_LONGEST_TITLE = 100
_HOT_SHARE = 2
"""Of the memory budget, this part may hold decoded columns as long as no plan needs it."""
_IDLE_BUFFER_SHARE = 8
"""Read buffers between two uses keep at most this part of the memory budget, beside it."""

_SPARE_SLABS = SpareSlabs(SPARE_BYTES)
"""The process's, as is the heap: sessions come and go, and a fresh page costs as much as reading it from a disk."""


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """What the node holds now. `leaks` counts what ended plans had left behind; it stays zero.

    `chunks` is None where decoded columns are not stored on disk.
    """

    running_plans: int
    reserved_bytes: int
    leaks: int
    chunks: ChunkCacheStatistics | None = None


OpenBeside = Callable[[Node, IoSchedulerService], AbstractAsyncContextManager[object]]


class EmbeddedNode:
    """Owns the node's thread; it stops when it is closed or nobody holds it any more."""

    def __init__(
        self,
        settings: Settings,
        *,
        name: str = LOCAL,
        open_centre: OpenCentre = OwnCentre,
        beside: OpenBeside | None = None,
        locate: Locate = locate_disk,
    ) -> None:
        """`name` and `open_centre` are those of `Node`; `beside` opens what lives on its loop as long as it does.
        `locate` is that of `IoSchedulerService`, of what is not emulated."""
        keep_freed_memory()
        switch_threads_often()
        collect_after_many_objects()
        device = choose_device(settings.device)
        locate_all, open_device = emulating(
            [Emulation(str(disk.path), disk.rate, disk.latency, disk.depth) for disk in settings.emulated],
            locate,
            choose(settings.io_device, direct=settings.direct_io == "on", sparing=settings.direct_io == "auto"),
        )
        transfers = IoSchedulerService(
            open_device=open_device,
            locate=locate_all,
            policy=POLICIES[settings.io_policy],
            buffers=BufferPool(idle_bytes=min(IDLE_BYTES, settings.memory // _IDLE_BUFFER_SHARE), spare=_SPARE_SLABS),
            history=History(enabled=settings.tracing),
        )
        execution = execution_settings(settings)
        budgets = _budgets(settings, device)
        hot_bytes = settings.memory // _HOT_SHARE if settings.chunk_cache else 0
        chunk_bytes = settings.chunk_cache_limit()
        store = ChunkStore(settings.chunk_cache_dir, chunk_bytes) if chunk_bytes else None
        self._transfers = transfers
        self._workers = settings.threads
        self._expected = threading.local()
        self._host = NodeHost(
            lambda: _opened(
                Node(
                    transfers=transfers,
                    settings=execution,
                    memory=budgets,
                    device=device,
                    hot_bytes=hot_bytes,
                    open_chunks=None if store is None else lambda ctx: chunk_cache.opened(ctx, store),
                    name=name,
                    open_centre=open_centre,
                ),
                settings.control_socket,
                None if beside is None else lambda node: beside(node, transfers),
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
        except RuntimeError as error:  # Python's word for a thread that the system refuses
            raise ResourceExhausted(
                f"the node could not start: {error}",
                setting="ulimit -u",
                hint="allow the user more threads, or the process more memory",
            ) from error
        self._stop = weakref.finalize(self, self._host.stop)
        self._stop.atexit = False

    def close(self) -> None:
        """Cancel what runs and end the node's thread."""
        self._stop()

    def find_files(self, paths: Sequence[str], known: Sequence[FileVersion] = ()) -> tuple[FileVersion, ...]:
        """`planner.catalog.FindFiles`."""
        return local_files(paths)

    def read_footers(self, versions: Sequence[FileVersion]) -> list[ParquetFile]:
        """`planner.catalog.ReadFooters`."""

        catalog = self._catalog()

        async def read() -> list[ParquetFile]:
            files = await read_footers(self._transfers.client(*catalog), versions)
            chunks = self._host.node.chunks
            if isinstance(chunks, ChunkCache):
                chunks.expect(files)
            return files

        return self._host.call(read()).result()

    def fetch(self, path: str, extents: Sequence[Extent]) -> list[HostBuffer]:
        """`planner.sample.Fetch`."""

        catalog = self._catalog()

        async def read() -> list[HostBuffer]:
            return await self._transfers.client(*catalog).read(path, extents)

        return self._host.call(read()).result()

    def fetch_all(self, files: Sequence[tuple[str, int]], beside: str) -> Callable[[], list[HostBuffer | None]]:
        """`operators.chunks.samples.FetchAll`."""

        catalog = self._catalog()

        async def read() -> list[HostBuffer | None]:
            found = await self._transfers.client(*catalog).read_files(files, beside=beside)
            return [None if isinstance(buffer, PystachioError) else buffer for buffer in found]

        return self._host.call(read()).result

    @property
    def samples(self) -> ChunkSamples | None:
        """`planner.sample.KeptSamples`: beside the columns that are kept on disk, if they are."""
        chunks = self._host.node.chunks
        return ChunkSamples(chunks, self.fetch_all) if isinstance(chunks, ChunkCache) else None

    @property
    def plans(self) -> ChunkPlans | None:
        """`planner.kept_plans.KeptPlans`: beside the samples."""
        chunks = self._host.node.chunks
        return ChunkPlans(chunks, self.fetch_all) if isinstance(chunks, ChunkCache) else None

    def expect(self, urgency: Urgency) -> None:
        """Plans of this urgency are planned from here on, on this thread: the workers are kept free for an interactive
        one."""
        self._expected.priority = urgency.priority
        if urgency.priority == PriorityClass.INTERACTIVE:
            self._host.expect_urgent()

    def _catalog(self) -> tuple[str, PriorityClass]:
        """As what the planner reads: in a hurry for an interactive plan only. What is read in a hurry makes the disk
        expect more of that kind, and cut what others read into short chunks (`LinkQueue`)."""
        priority = getattr(self._expected, "priority", PriorityClass.NORMAL)
        if priority == PriorityClass.INTERACTIVE:
            return CATALOG_PLAN, PriorityClass.INTERACTIVE
        return _USUAL_CATALOG_PLAN, PriorityClass.NORMAL

    def as_run(self, plan: PhysicalPlan) -> PhysicalPlan:
        """The plan as `submit` runs it."""
        return plan

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


@asynccontextmanager
async def _opened(
    node: Node, wanted: bool, beside: Callable[[Node], AbstractAsyncContextManager[object]] | None
) -> AsyncIterator[Node]:
    """The node, and a control socket if it is wanted."""
    async with AsyncExitStack() as resources:
        await resources.enter_async_context(node)
        if wanted:
            await resources.enter_async_context(ControlServer(node))
        if beside is not None:
            await resources.enter_async_context(beside(node))
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
        keep_builds=settings.keep_builds,
        tracing=settings.tracing,
    )


def _budgets(settings: Settings, device: torch.device) -> dict[Tier, int]:
    budgets = {Tier.HOST: settings.memory}
    if device.type == "cuda":
        budgets[Tier.DEVICE] = int(torch.cuda.mem_get_info(device)[1] * _DEVICE_MEMORY_FRACTION)
    return budgets
