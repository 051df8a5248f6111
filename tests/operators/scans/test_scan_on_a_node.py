"""Scans with real workers, memory and reads: right under any number of workers, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from pystachio.errors import Cancelled, DataError, ResourceExhausted
from pystachio.io_scheduler.core.request import Link, PriorityClass
from pystachio.io_scheduler.devices.faulty import ChooseFault, FaultyDevice, Vanish, scripted
from pystachio.io_scheduler.devices.posix import PosixDevice
from pystachio.io_scheduler.service import IoSchedulerService
from pystachio.operators.arrow import batch_to_arrow, schema_to_arrow
from pystachio.operators.batch import Batch
from pystachio.operators.expressions import Call, FieldReference, Literal
from pystachio.operators.parquet.footer import file_version, read_footers
from pystachio.operators.scans.hot_rows import gathered
from pystachio.operators.scans.rows import ScanRows
from pystachio.operators.scans.scan import Scan
from pystachio.operators.table import Table, table_of_files
from pystachio.runtime.context import Context
from pystachio.runtime.executor import PlanScope, TaskSpec
from pystachio.runtime.memory import Tier
from pystachio.runtime.node import Node
from pystachio.runtime.plan import PlanHandle
from pystachio.runtime.settings import ExecutionSettings
from tests.operators.parquet_sources import write

ROWS = 40_000


class WorkerOutput:
    """Runs `produce` on a worker, as the pipeline does, and keeps the batches."""

    def __init__(self) -> None:
        self.ctx: Context | None = None
        self.batches: list[Batch] = []
        self.first = asyncio.Event()

    async def emit(
        self, produce: Callable[[], Iterable[Batch | ScanRows]], *, last: bool = False, small: bool = False
    ) -> None:
        assert self.ctx is not None
        self.batches.extend(await self.ctx.stream.run(lambda: list(gathered(produce()))))
        self.first.set()

    async def send(self, batch: Batch) -> None:
        self.batches.append(batch)

    async def until_unwanted(self) -> None:
        await asyncio.Event().wait()


def make_node(service: IoSchedulerService, workers: int, memory: int = 256 << 20) -> Node:
    return Node(
        transfers=service,
        settings=ExecutionSettings(workers=workers, batch_rows=1000),
        memory={Tier.HOST: memory},
        device=torch.device("cpu"),
    )


def data() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "key": pa.array([i * 31 % 1000 for i in range(ROWS)], pa.int32()),
            "word": pa.array([f"word {i % 300}" for i in range(ROWS)]),
            "text": pa.array([f"text number {i}" for i in range(ROWS)]),
        }
    )


async def open_table(service: IoSchedulerService, path: Path) -> Table:
    client = service.client("footers", PriorityClass.NORMAL)
    return table_of_files("t", await read_footers(client, [file_version(str(path))]))


def scan_of(table: Table) -> Scan:
    predicate = Call("lt", (FieldReference(1, pa.int32()), Literal(500, pa.int32())), pa.bool_())
    return Scan(table, (0, 1, 2, 3), predicate, (0, 2, 3))


async def submit(node: Node, scan: Scan, name: str) -> tuple[WorkerOutput, PlanHandle]:
    output = WorkerOutput()

    def build(scope: PlanScope) -> list[TaskSpec]:
        ctx = output.ctx = scope.context("scan")
        return [TaskSpec("scan", lambda: scan.run(ctx, (), output))]

    return output, await node.submit(build, plan_id=name, priority=PriorityClass.NORMAL)


def rows(scan: Scan, output: WorkerOutput) -> pa.Table:
    schema = schema_to_arrow(scan.schema)
    return pa.Table.from_batches([batch_to_arrow(batch, schema) for batch in output.batches], schema).sort_by("id")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("group", [700, 9_000, ROWS])
async def test_all_rows_once(tmp_path: Path, workers: int, group: int) -> None:
    path = write(data(), tmp_path / "t.parquet", row_group_size=group, write_page_checksum=True)
    service = IoSchedulerService()
    async with make_node(service, workers) as node:
        scan = scan_of(await open_table(service, path))
        output, handle = await submit(node, scan, "p")
        await handle.wait()
        result = rows(scan, output)
        original = data()
        expected = original.filter(pc.less(original["key"], 500)).select(["id", "word", "text"])
        assert result.equals(expected.cast(result.schema))
        now = node.statistics()
        assert now.leaked_bytes == now.leaked_external == 0
        assert now.memory[Tier.HOST].used == 0


async def test_a_cancelled_scan_leaves_nothing(tmp_path: Path) -> None:
    path = write(data(), tmp_path / "t.parquet", row_group_size=100)
    service = IoSchedulerService()
    async with make_node(service, 2) as node:
        scan = scan_of(await open_table(service, path))
        for number in range(5):
            output, handle = await submit(node, scan, f"p{number}")
            await output.first.wait()
            handle.cancel()
            with pytest.raises(Cancelled):
                await handle.wait()
        now = node.statistics()
        assert now.leaked_bytes == now.leaked_external == 0
        assert now.memory[Tier.HOST].used == 0


async def test_a_budget_that_holds_one_unit_is_enough(tmp_path: Path) -> None:
    path = write(data(), tmp_path / "t.parquet", row_group_size=500)
    service = IoSchedulerService()
    async with make_node(service, 2, memory=160 << 10) as node:
        scan = scan_of(await open_table(service, path))
        output, handle = await submit(node, scan, "p")
        await handle.wait()
        assert sum(batch.length for batch in output.batches) == ROWS // 2
    service = IoSchedulerService()
    async with make_node(service, 2, memory=10 << 10) as node:
        _, handle = await submit(node, scan, "p")
        with pytest.raises(ResourceExhausted) as caught:
            await handle.wait()
        assert caught.value.setting == "memory"


async def test_a_disk_that_vanishes_fails_exactly_the_plans_that_read_it(tmp_path: Path) -> None:
    """With a typed error, and nothing stays behind."""
    faults: dict[str, ChooseFault] = {}

    def open_device(link: Link) -> FaultyDevice:
        loop = asyncio.get_running_loop()
        # Read when a chunk starts: footers are read while the disk is well.
        return FaultyDevice(PosixDevice(), lambda *start: faults.get(link.name, scripted({}))(*start), timers=loop)

    async def locate(path: str) -> Link:
        return Link("disk", Path(path).parent.name)

    service = IoSchedulerService(open_device=open_device, locate=locate)
    async with make_node(service, 2) as node:
        scans = {}
        for name in ("hit", "well"):
            (tmp_path / name).mkdir()
            path = write(data(), tmp_path / name / "t.parquet", row_group_size=500)
            scans[name] = scan_of(await open_table(service, path))
        gone_at = service.ledger.plan("footers").requests + 5
        faults["hit"] = lambda number, now: Vanish() if number >= gone_at else None
        handles = {name: await submit(node, scan, name) for name, scan in scans.items()}
        with pytest.raises(DataError, match="gone") as caught:
            await handles["hit"][1].wait()
        assert caught.value.plan_id == "hit"
        output, handle = handles["well"]
        await handle.wait()
        assert sum(batch.length for batch in output.batches) == ROWS // 2
        now = node.statistics()
        assert now.leaked_bytes == now.leaked_external == 0
        assert now.memory[Tier.HOST].used == 0
