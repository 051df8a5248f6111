"""Rows that an operator must hold all at once, under a reservation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.kernels.selection import all_null, concat_batches
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation


@dataclass(frozen=True, slots=True)
class Collected:
    """All rows of an input as one batch. `reservation` covers them; the holder releases it."""

    rows: Batch
    reservation: Reservation


async def collect(ctx: Context, receiver: Receiver[Batch], schema: Schema, columns: Sequence[int]) -> Collected:
    """Read `receiver` (batches of `schema`) to the end and keep `columns` of it."""
    reservation = await ctx.memory.reserve(0)
    batches: list[Batch] = []
    async for batch in receiver:
        ctx.metrics.add_batch(rows_in=batch.length, batches=0)
        kept = Batch(tuple(batch.columns[position] for position in columns), batch.length, batch.ready)
        await reservation.resize(reservation.nbytes + kept.nbytes)
        batches.append(kept)
    if not batches:
        return Collected(await ctx.stream.run(_no_rows, schema, columns, ctx.stream.device), reservation)
    if len(batches) == 1:
        return Collected(batches[0], reservation)
    # Both the parts and the whole exist while they are copied.
    await reservation.resize(2 * reservation.nbytes)
    rows = await ctx.stream.run(concat_batches, batches)
    del batches
    await reservation.resize(rows.nbytes)
    return Collected(rows, reservation)


def _no_rows(schema: Schema, columns: Sequence[int], device: torch.device) -> Batch:
    return Batch(tuple(all_null(schema[position].type, 0, device) for position in columns), 0, None)
