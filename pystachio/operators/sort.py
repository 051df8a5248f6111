"""Sort: all rows in order, or the first of them where these are too many for `top_n`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.collected import Collected, collect
from pystachio.operators.column import Column
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels import radix_sort
from pystachio.operators.kernels.ordering import Direction, first_of_order, order_words, sort_order
from pystachio.operators.kernels.selection import take_batch
from pystachio.operators.operator import Operator, Output
from pystachio.operators.small import holds_little, is_small
from pystachio.operators.together import together
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context

_SHARES: Final = 4
"""Jobs of each worker that put rows in order: some take longer than others."""


@dataclass(frozen=True, slots=True)
class Sort:
    """Breaker; text orders by its bytes, NaN above all numbers. Ties stay in the order they came.

    Only the first `wanted` rows are put out; None: all.
    """

    input: Operator
    keys: tuple[SortKey, ...]
    wanted: int | None = None

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def schema(self) -> Schema:
        return self.input.schema

    def label(self) -> str:
        first = "" if self.wanted is None else f" first {self.wanted}"
        return f"Sort{first} by {described(self.keys, self.schema)}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        collected = await collect(ctx, inputs[0], self.schema, range(len(self.schema)))
        with collected.reservation as reservation:
            # There is a word for each key of a row, and the row's place in a part; or a word and two orders.
            await reservation.resize(reservation.nbytes + (16 + 8 * len(self.keys)) * collected.rows)
            batch_rows = ctx.settings.batch_rows
            if holds_little(reservation.nbytes, ctx.memory.budget()):
                small = is_small(collected.batches)
                await out.emit(lambda: self._sorted(collected.joined(), batch_rows), last=True, small=small)
                return
            rows, order = await ctx.stream.run(self._split, collected, ctx.settings.workers)
            if isinstance(order, radix_sort.SplitRows):
                await reservation.resize(rows.nbytes + order.nbytes)
                await together([ctx.stream.run(order.sort, share) for share in order.shares])
                order = order.order
            await reservation.resize(rows.nbytes + order.nbytes)
            await out.emit(lambda: _in_order(rows, order, batch_rows), last=True)

    def _sorted(self, rows: Batch, batch_rows: int) -> Iterator[Batch]:
        yield from _in_order(rows, order_of(rows, self.keys, self.wanted), batch_rows)

    def _split(self, collected: Collected, workers: int) -> tuple[Batch, torch.Tensor | radix_sort.SplitRows]:
        """The rows, and their order or what makes it in several jobs."""
        rows = collected.joined()
        if radix_sort.is_available(collected.device) and rows.length:
            words = order_words(_directed(rows, self.keys))
            if words:
                return rows, radix_sort.SplitRows(words, self.wanted, _SHARES * workers, workers)
        return rows, order_of(rows, self.keys, self.wanted)


def order_of(rows: Batch, keys: Sequence[SortKey], count: int | None = None) -> torch.Tensor:
    """The positions of the rows (int64) in the order of `keys`, stable; the first `count` of them."""
    directed = _directed(rows, keys)
    return sort_order(directed, rows.length) if count is None else first_of_order(directed, rows.length, count)


def described(keys: Sequence[SortKey], schema: Schema) -> str:
    """The keys in SQL's words."""
    return ", ".join(
        f"{schema[key.index].name}{' desc' if key.descending else ''}{' nulls first' if key.nulls_first else ''}"
        for key in keys
    )


def _directed(rows: Batch, keys: Sequence[SortKey]) -> list[tuple[Column, Direction]]:
    return [(rows.columns[key.index], Direction(key.descending, key.nulls_first)) for key in keys]


def _in_order(rows: Batch, order: torch.Tensor, batch_rows: int) -> Iterator[Batch]:
    for start in range(0, len(order), batch_rows):
        yield take_batch(rows, order[start : start + batch_rows])
