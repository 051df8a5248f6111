"""Rows that an operator must hold all at once, under a reservation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.column import Column
from pystachio.operators.kernels.selection import all_null, concat
from pystachio.records import record
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation


@record(eq=False)
class Collected:
    """All rows of an input, in batches of `schema`. `reservation` covers them, and the whole that `joined` makes of
    them beside them; the holder releases it."""

    batches: list[Batch]
    rows: int
    schema: Schema
    device: torch.device
    reservation: Reservation

    def joined(self) -> Batch:
        """The rows as one batch: in a job. The batches are let go, each column as soon as there is the whole of it."""
        if not self.batches:
            return Batch(tuple(all_null(field.type, 0, self.device) for field in self.schema), 0, None)
        if len(self.batches) == 1:
            return self.batches.pop()
        ready = self.batches[-1].ready
        columns = [list(parts) for parts in zip(*(batch.columns for batch in self.batches), strict=True)]
        self.batches.clear()
        columns.reverse()
        whole: list[Column] = []
        while columns:
            whole.append(concat(columns.pop()))
        return Batch(tuple(whole), self.rows, ready)


async def collect(ctx: Context, receiver: Receiver[Batch], schema: Schema, columns: Sequence[int]) -> Collected:
    """Read `receiver` (batches of `schema`) to the end and keep `columns` of it."""
    reservation = await ctx.memory.reserve(0)
    batches: list[Batch] = []
    rows = 0
    async for batch in receiver:
        ctx.metrics.add_batch(rows_in=batch.length, batches=0)
        kept = Batch(tuple(batch.columns[position] for position in columns), batch.length, batch.ready)
        await reservation.resize(reservation.nbytes + kept.nbytes)
        batches.append(kept)
        rows += kept.length
    if len(batches) > 1:
        # Both the parts and the whole exist while they are copied.
        await reservation.resize(2 * reservation.nbytes)
    wanted = tuple(schema[position] for position in columns)
    return Collected(batches, rows, wanted, ctx.stream.device, reservation)
