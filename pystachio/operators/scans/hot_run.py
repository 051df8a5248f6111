"""Putting out a scan that is in memory as a whole: nothing is read, and no task waits for anything but workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pystachio.operators.operator import Output
from pystachio.operators.scans.hot_rows import HotRows
from pystachio.operators.scans.ready import Left
from pystachio.operators.scans.rows import RowReader
from pystachio.operators.scans.units import ScanUnits, Unit
from pystachio.runtime.context import Context
from pystachio.runtime.failures import root_cause


def rows_in_memory(ctx: Context, reader: RowReader, planned: ScanUnits, order: Sequence[Unit] = ()) -> HotRows | None:
    """The rows of all units, if the operators compute where they are and nothing is missing. In this `order`, if it is
    not that of the files."""
    if reader.hot is None or not planned.units or ctx.stream.device.type != "cpu":
        return None
    units = reader.hot.find_all(planned, reader.positions)
    if units is None:
        return None
    ctx.metrics.count("bytes from memory", units.nbytes)
    return HotRows.of_all(reader, units, ctx.settings.workers, order)


async def put_out(ctx: Context, out: Output, rows: HotRows) -> None:
    """All of them, by as many jobs at once as they are worth."""
    left = Left(0, (rows,))
    jobs = min(ctx.settings.workers, rows.jobs)
    small = rows.is_small

    async def put_out_some() -> None:
        left.job_began()
        await out.emit(lambda: (rows,), last=left.job_ended, small=small)

    if jobs == 1 or small:
        await put_out_some()
        return
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(jobs - 1):
                group.create_task(put_out_some())
            await put_out_some()
    except BaseExceptionGroup as failures:
        raise root_cause(failures) from None
