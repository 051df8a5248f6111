"""Scans that read while they wait for runtime filters: what they begin, what they give up, and that nothing is left."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystachio.errors import Cancelled, DataError, ResourceExhausted
from pystachio.io_scheduler.core.request import Link, PriorityClass
from pystachio.io_scheduler.devices.faulty import ChooseFault, FaultyDevice, Vanish, scripted
from pystachio.io_scheduler.devices.posix import PosixDevice
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.arrow import batch_to_arrow, column_from_arrow, schema_to_arrow
from pystachio.operators.parquet.footer import file_version, read_footers
from pystachio.operators.runtime_filter import RuntimeFilter, filter_of_keys
from pystachio.operators.scans.early_reads import SURE_VALUES, surely_needed
from pystachio.operators.scans.fetching import fetched_bytes
from pystachio.operators.scans.scan import Scan, ScanFilter
from pystachio.operators.scans.units import plan_units
from pystachio.operators.table import Table, table_of_files
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.memory import Tier
from pystachio.runtime.memory_pool import AHEAD_SHARES
from pystachio.runtime.node import Node
from pystachio.runtime.plan import PlanHandle
from pystachio.runtime.slots import Slot
from tests.operators.parquet_sources import reading, write
from tests.operators.scans.test_scan_on_a_node import WorkerOutput, make_node

GROUPS = 8
GROUP_ROWS = 5_000
IDS = pa.int64()


class Waiting:
    """A scan of `id` (ascending) and `text` that waits for the filter of `id`."""

    def __init__(self, node: Node, service: IoSchedulerService, table: Table, share: float) -> None:
        self.node = node
        self.service = service
        self.scan = Scan(table, (0, 1), None, (0, 1), (ScanFilter(0, 0, share),))
        self.output = WorkerOutput()
        self.filter: Slot[object] = Slot()
        self._built = asyncio.Event()

    async def start(self, beside: Callable[[PlanScope], TaskSpec] | None = None) -> PlanHandle:
        def build(scope: PlanScope) -> list[TaskSpec]:
            scope.slots["filter", 0] = self.filter
            ctx = self.output.ctx = scope.context("scan")
            self._built.set()
            others = [] if beside is None else [beside(scope)]
            return [TaskSpec("scan", lambda: self.scan.run(ctx, (), self.output)), *others]

        handle = await self.node.submit(build, plan_id="p", priority=PriorityClass.NORMAL)
        await self._built.wait()
        return handle

    @property
    def counts(self) -> dict[str, int]:
        assert self.output.ctx is not None
        return dict(self.output.ctx.metrics.snapshot().counts)

    async def until_read(self) -> None:
        """What can be read early is."""
        before = -1
        while (now := self.counts.get("bytes read", 0)) != before or not now:
            before = now
            await asyncio.sleep(0.05)

    def ids(self) -> list[int]:
        schema = schema_to_arrow(self.scan.schema)
        batches = [batch_to_arrow(batch, schema) for batch in self.output.batches]
        return sorted(pa.Table.from_batches(batches, schema)["id"].to_pylist())

    def require_nothing_left(self) -> None:
        now = self.node.statistics()
        assert now.leaked_bytes == now.leaked_external == 0
        assert now.memory[Tier.HOST].used == 0
        assert self.service.buffers.statistics().used_bytes == 0, "without the garbage collector"


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def waiting(
    tmp_path: Path,
    share: float = 0.5,
    memory: int = 256 << 20,
    faults: dict[str, ChooseFault] | None = None,
    groups: int = GROUPS,
) -> AsyncIterator[Waiting]:
    rows = groups * GROUP_ROWS
    table = pa.table(
        {"id": pa.array(range(rows), IDS), "text": [f"text number {i * 7919 % rows}" for i in range(rows)]}
    )
    path = write(table, tmp_path / "t.parquet", row_group_size=GROUP_ROWS)

    def open_device(link: Link) -> FaultyDevice:
        choose = {} if faults is None else faults
        loop = asyncio.get_running_loop()
        return FaultyDevice(PosixDevice(), lambda *start: choose.get("", scripted({}))(*start), timers=loop)

    service = IoSchedulerService(open_device=open_device)
    async with make_node(service, 2, memory) as node:
        client = service.client("footers", PriorityClass.NORMAL)
        files = await read_footers(client, [file_version(str(path))])
        yield Waiting(node, service, table_of_files("t", files), share)


def keys(*ids: int) -> RuntimeFilter | None:
    return filter_of_keys([column_from_arrow(pa.array(ids, IDS))])


async def test_what_is_read_early_is_read_once(tmp_path: Path) -> None:
    async with waiting(tmp_path) as scan:
        handle = await scan.start()
        await scan.until_read()
        early = scan.counts["bytes read"]
        passing = [group * GROUP_ROWS + 5 for group in range(GROUPS)]
        scan.filter.set(keys(*passing))
        await handle.wait()
        assert scan.ids() == passing
        counts = scan.counts
        assert counts["bytes read early"] == early
        assert counts["bytes read"] == sum(
            chunk.length for position in (0, 1) for chunk in scan.scan.table.files[0].chunks(position)
        )
        assert "bytes given up early" not in counts
        scan.require_nothing_left()


async def test_units_that_are_ruled_out_are_given_up(tmp_path: Path) -> None:
    async with waiting(tmp_path) as scan:
        handle = await scan.start()
        await scan.until_read()
        early = scan.counts["bytes read"]
        scan.filter.set(keys(3, 7 * GROUP_ROWS))
        await handle.wait()
        assert scan.ids() == [3, 7 * GROUP_ROWS]
        counts = scan.counts
        assert counts["bytes read early"] + counts["bytes given up early"] == early
        assert 0 < counts["bytes read early"] < counts["bytes given up early"]
        scan.require_nothing_left()


async def test_no_filter_after_all(tmp_path: Path) -> None:
    async with waiting(tmp_path) as scan:
        handle = await scan.start()
        await scan.until_read()
        scan.filter.set(None)
        await handle.wait()
        assert scan.ids() == list(range(GROUPS * GROUP_ROWS))
        scan.require_nothing_left()


@pytest.mark.parametrize("share", [0.0, 1e-4])
async def test_nothing_is_read_early_that_may_well_be_ruled_out(tmp_path: Path, share: float) -> None:
    async with waiting(tmp_path, share) as scan:
        handle = await scan.start()
        await asyncio.sleep(0.2)
        assert "bytes read" not in scan.counts
        scan.filter.set(keys(3))
        await handle.wait()
        assert scan.ids() == [3]
        assert "bytes read early" not in scan.counts


async def test_a_scan_beside_another_of_its_table_reads_nothing_early(tmp_path: Path) -> None:
    async with waiting(tmp_path) as scan:
        scan.scan = dataclasses.replace(scan.scan, reads_early=False)
        handle = await scan.start()
        await asyncio.sleep(0.2)
        assert "bytes read" not in scan.counts
        scan.filter.set(keys(3))
        await handle.wait()
        assert scan.ids() == [3]


async def test_who_waits_for_memory_gets_that_of_early_reads(tmp_path: Path) -> None:
    """Nobody else could give any: the build side is waited for."""
    memory = 8 << 20
    begin = asyncio.Event()

    def build_side(scope: PlanScope) -> TaskSpec:
        ctx = scope.context("build")

        async def run() -> None:
            await begin.wait()
            with await ctx.memory.reserve(memory - 1024, tier=Tier.HOST, transient=True):
                assert scan.service.buffers.statistics().used_bytes == 0, "nor is any memory in use that is not counted"
            scan.filter.set(keys(3, 6))

        return TaskSpec("build", run)

    async with waiting(tmp_path, memory=memory) as scan:
        handle = await scan.start(build_side)
        await scan.until_read()
        assert scan.node.statistics().memory[Tier.HOST].used > 1024
        begin.set()
        await handle.wait()
        assert scan.ids() == [3, 6]
        assert "bytes read early" not in scan.counts
        scan.require_nothing_left()


@pytest.mark.parametrize("is_enough", [False, True])
async def test_only_spare_memory_is_used(tmp_path: Path, is_enough: bool) -> None:
    async with waiting(tmp_path) as scan:
        (unit, *_) = plan_units(scan.scan.table, (0, 1), None, (), GROUP_ROWS).units
        needed = fetched_bytes(unit, (0, 1), {}) + unit.decoded_bytes((0, 1))
    # Half of what is there to be read ahead: a part of an eighth.
    enough = int(2 * needed / AHEAD_SHARES[PriorityClass.NORMAL]) * 8 + 64
    async with waiting(tmp_path, memory=enough if is_enough else enough - 1024) as scan:
        handle = await scan.start()
        await asyncio.sleep(0.2)
        assert scan.node.statistics().memory[Tier.HOST].used == (needed if is_enough else 0)
        scan.filter.set(keys(1))
        await handle.wait()
        assert scan.ids() == [1]
        scan.require_nothing_left()


async def test_a_file_that_is_there_twice(tmp_path: Path) -> None:
    async with waiting(tmp_path, groups=2) as scan:
        file = scan.scan.table.files[0]
        scan.scan = dataclasses.replace(scan.scan, table=table_of_files("t", [file, file]))
        handle = await scan.start()
        await scan.until_read()
        scan.filter.set(keys(3))
        await handle.wait()
        assert scan.ids() == [3, 3]
        scan.require_nothing_left()


async def test_cancelled_while_it_waits(tmp_path: Path) -> None:
    async with waiting(tmp_path) as scan:
        handle = await scan.start()
        await scan.until_read()
        handle.cancel()
        with pytest.raises(Cancelled):
            await handle.wait()
        gc.collect()  # what cancelled tasks refer to
        scan.require_nothing_left()


async def test_cancelled_at_once(tmp_path: Path) -> None:
    async with waiting(tmp_path) as scan:
        handle = await scan.start()
        for _ in range(3):
            await asyncio.sleep(0)
        handle.cancel()
        with pytest.raises(Cancelled):
            await handle.wait()
        gc.collect()  # what cancelled tasks refer to
        scan.require_nothing_left()


async def test_a_disk_that_fails_early_fails_the_scan_that_needs_it(tmp_path: Path) -> None:
    faults: dict[str, ChooseFault] = {}
    async with waiting(tmp_path, faults=faults) as scan:
        faults[""] = lambda number, now: Vanish()
        handle = await scan.start()
        await asyncio.sleep(0.2)
        scan.filter.set(keys(1))
        with pytest.raises(DataError, match="gone"):
            await handle.wait()
        scan.require_nothing_left()


async def test_a_disk_that_fails_early_fails_nobody_who_does_not_need_it(tmp_path: Path) -> None:
    faults: dict[str, ChooseFault] = {}
    async with waiting(tmp_path, faults=faults) as scan:
        faults[""] = lambda number, now: Vanish()
        handle = await scan.start()
        await asyncio.sleep(0.2)
        scan.filter.set(RuntimeFilter(IDS, empty=True))
        await handle.wait()
        assert scan.output.batches == []
        scan.require_nothing_left()


async def test_a_filter_that_never_comes_holds_nothing(tmp_path: Path) -> None:
    """Its build side fails."""

    def build_side(scope: PlanScope) -> TaskSpec:
        async def run() -> None:
            await asyncio.sleep(0.1)
            raise ResourceExhausted("no memory", setting="memory")

        return TaskSpec("build", run)

    async with waiting(tmp_path) as scan:
        handle = await scan.start(build_side)
        with pytest.raises(ResourceExhausted, match="no memory"):
            await handle.wait()
        scan.require_nothing_left()


async def test_which_units_are_surely_needed(tmp_path: Path) -> None:
    async with waiting(tmp_path) as scan:
        for together in (1, 3):  # row groups
            units = plan_units(scan.scan.table, (0, 1), None, (), together * GROUP_ROWS).units
            assert len(units) == -(-GROUPS // together)
            assert surely_needed(units, [(0, SURE_VALUES / GROUP_ROWS)]) == list(units)
            assert surely_needed(units, [(0, (SURE_VALUES - 1) / GROUP_ROWS)]) == []
            assert surely_needed(units, [(0, 0.5), (1, 0.0)]) == [], "each filter may rule them out"


async def test_few_values_are_soon_ruled_out(tmp_path: Path) -> None:
    """However many rows have them."""
    path = write(pa.table({"id": pa.array([i % 20 for i in range(GROUP_ROWS)], IDS)}), tmp_path / "t.parquet")
    async with reading() as client:
        table = table_of_files("t", await read_footers(client, [file_version(str(path))]))
    (unit,) = plan_units(table, (0,), None, (), GROUP_ROWS).units
    assert surely_needed([unit], [(0, 0.8)]) == [unit]
    assert surely_needed([unit], [(0, 0.7)]) == []


async def test_what_is_ruled_out_moves_the_units_behind_it(tmp_path: Path) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    few, many = (pa.table({"id": pa.array(range(rows), IDS)}) for rows in (10, 3 * GROUP_ROWS))
    for path, small in zip(paths, (many.slice(0, GROUP_ROWS), few), strict=True):
        with pq.ParquetWriter(path, many.schema) as writer:
            for rows in (many.slice(0, GROUP_ROWS), small, many.slice(0, GROUP_ROWS)):
                writer.write_table(rows)
    async with reading() as client:
        table = table_of_files("t", await read_footers(client, [file_version(str(path)) for path in paths]))
    units = plan_units(table, (0,), None, (), 1).units
    assert [len(unit.groups) for unit in units] == [1] * 6
    assert surely_needed(units, [(0, 0.5)]) == list(units[:4]), "not what is behind the few rows"
