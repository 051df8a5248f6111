"""Sort: all rows, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.collected import Collected, collect
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels.ordering import Direction, first_of_order, sort_order
from pystachio.operators.kernels.selection import take_batch
from pystachio.operators.operator import Operator, Output
from pystachio.operators.small import holds_little, is_small
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context


@dataclass(frozen=True, slots=True)
class Sort:
    """Breaker; text orders by its bytes, NaN above all numbers. Ties stay in the order they came."""

    input: Operator
    keys: tuple[SortKey, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def schema(self) -> Schema:
        return self.input.schema

    def label(self) -> str:
        return f"Sort by {described(self.keys, self.schema)}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        collected = await collect(ctx, inputs[0], self.schema, range(len(self.schema)))
        with collected.reservation as reservation:
            # Sorting holds a word per row and two orders; a batch of output exists beside the input.
            await reservation.resize(reservation.nbytes + 24 * collected.rows)
            batch_rows = ctx.settings.batch_rows
            if holds_little(reservation.nbytes, ctx.memory.budget()):
                small = is_small(collected.batches)
                await out.emit(lambda: _sorted(collected.joined(), self.keys, batch_rows), last=True, small=small)
                return
            rows, order = await ctx.stream.run(_with_order, collected, self.keys)
            await reservation.resize(rows.nbytes + order.nbytes)
            await out.emit(lambda: _in_order(rows, order, batch_rows), last=True)


def order_of(rows: Batch, keys: Sequence[SortKey], count: int | None = None) -> torch.Tensor:
    """The positions of the rows (int64) in the order of `keys`, stable; the first `count` of them."""
    directed = [(rows.columns[key.index], Direction(key.descending, key.nulls_first)) for key in keys]
    return sort_order(directed, rows.length) if count is None else first_of_order(directed, rows.length, count)


def described(keys: Sequence[SortKey], schema: Schema) -> str:
    """The keys in SQL's words."""
    return ", ".join(
        f"{schema[key.index].name}{' desc' if key.descending else ''}{' nulls first' if key.nulls_first else ''}"
        for key in keys
    )


def _with_order(collected: Collected, keys: Sequence[SortKey]) -> tuple[Batch, torch.Tensor]:
    rows = collected.joined()
    return rows, order_of(rows, keys)


def _sorted(rows: Batch, keys: Sequence[SortKey], batch_rows: int) -> Iterator[Batch]:
    yield from _in_order(rows, order_of(rows, keys), batch_rows)


def _in_order(rows: Batch, order: torch.Tensor, batch_rows: int) -> Iterator[Batch]:
    for start in range(0, rows.length, batch_rows):
        yield take_batch(rows, order[start : start + batch_rows])
