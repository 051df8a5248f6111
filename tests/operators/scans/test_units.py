"""Tables that lie on several disks: their units take turns, so that all disks work from the start."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pystachio.io_scheduler.client import HostBuffer, TransferClient
from pystachio.io_scheduler.core.request import Extent, Link
from pystachio.io_scheduler.prefetch import Prefetch
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.units import in_turns, plan_units
from pystachio.operators.table import Table
from tests.operators.conftest import Harness
from tests.operators.parquet_sources import open_table, reading, write

GROUP = 100


async def table_on_disks(client: TransferClient, folder: Path, groups: Sequence[int]) -> Table:
    """A file for each disk `0`, `1`, ... with so many row groups, that says where its rows come from."""
    paths = []
    for disk, count in enumerate(groups):
        rows = pa.table({"disk": pa.array([disk] * (count * GROUP), pa.int64())})
        (folder / str(disk)).mkdir()
        paths.append(write(rows, folder / str(disk) / "part.parquet", row_group_size=GROUP))
    return await open_table(client, *paths)


def link_of(path: str) -> Link:
    return Link("disk", Path(path).parent.name)


async def test_units_of_several_disks_take_turns(tmp_path: Path) -> None:
    async with reading() as client:
        table = await table_on_disks(client, tmp_path, [3, 1, 2])
        units = plan_units(table, (0,), None, (), GROUP).units
        in_order = [(link_of(unit.file.path).name, unit.groups) for unit in in_turns(units, link_of)]
        assert in_order == [("0", (0,)), ("1", (0,)), ("2", (0,)), ("0", (1,)), ("2", (1,)), ("0", (2,))]
        assert in_turns(units, lambda path: None) == list(units), "one disk is read in the order of its files"


@dataclass
class SlowDisks:
    """Ends a read only when one of every disk is under way."""

    client: TransferClient
    disks: int
    under_way: dict[str, int] = field(default_factory=dict)
    all_busy: asyncio.Event = field(default_factory=asyncio.Event)

    def link(self, path: str) -> Link:
        return link_of(path)

    def memory(self, lengths: Sequence[int]) -> list[memoryview]:
        return self.client.memory(lengths)

    async def read(
        self, path: str, extents: Sequence[Extent], *, criticality: int = 0, prefetch: Prefetch | None = None
    ) -> list[HostBuffer]:
        name = link_of(path).name
        self.under_way[name] = self.under_way.get(name, 0) + 1
        if len(self.under_way) == self.disks:
            self.all_busy.set()
        await self.all_busy.wait()
        return await self.client.read(path, extents, criticality=criticality, prefetch=prefetch)


async def test_all_disks_are_read_from_the_start(tmp_path: Path) -> None:
    async with reading() as client:
        table = await table_on_disks(client, tmp_path, [20] * 6)
        slow = SlowDisks(client, disks=6)
        harness = Harness()
        ctx = dataclasses.replace(harness.context(batch_rows=GROUP), transfers=slow)
        batches = await harness._run(Scan(table, (0,), None, (0,)), ctx)
        assert sum(batch.length for batch in batches) == 6 * 20 * GROUP
        assert harness.memory.held == 0
