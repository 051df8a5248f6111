"""TopN: the first rows of an order, without sorting or keeping the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import torch

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.expressions import SortKey
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.ordering import Direction, is_text, precedes_or_ties
from pystachio.operators.kernels.selection import (
    concat_batches,
    device_of,
    plain,
    settled_batch,
    slice_batch,
    take_batch,
)
from pystachio.operators.kernels.thresholds import KeyThreshold, Threshold
from pystachio.operators.operator import Operator, Output
from pystachio.operators.small import is_small
from pystachio.operators.sort import described, order_of
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context

_CANDIDATES: Final = 1 << 16
"""Rows that may wait before they are cut to the best: few cuts, little memory."""
_FIRST_CANDIDATES: Final = 1 << 12
"""The first cut comes sooner: it says of most others that they need not wait."""


@dataclass(frozen=True, slots=True)
class TopN:
    """Breaker: the rows numbered `offset` to `offset + count` of the input sorted by `keys`, in order and stable."""

    input: Operator
    keys: tuple[SortKey, ...]
    count: int
    offset: int

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def schema(self) -> Schema:
        return self.input.schema

    def label(self) -> str:
        offset = f" offset {self.offset}" if self.offset else ""
        return f"TopN {self.count}{offset} by {described(self.keys, self.schema)}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        if self.count == 0:
            return
        wanted = self.offset + self.count
        waiting: list[Batch] = []
        waiting_rows = 0
        worst: Batch | None = None
        with await ctx.memory.reserve(0) as reservation:
            async for batch in inputs[0]:
                ctx.metrics.add_batch(rows_in=batch.length, batches=0)
                # Only now: the last rows are put in order on their way out.
                if waiting_rows >= (_FIRST_CANDIDATES if worst is None else _CANDIDATES) + 2 * wanted:
                    # The parts and their concatenation exist at once.
                    await reservation.resize(2 * sum(part.nbytes for part in waiting))
                    best, worst = await ctx.stream.run(first_and_last, waiting, self.keys, wanted)
                    waiting, waiting_rows = [best], best.length
                    await reservation.resize(best.nbytes)
                candidates = batch
                if worst is not None:
                    candidates = await ctx.stream.run(not_after, batch, self.keys, worst)
                await reservation.resize(reservation.nbytes + candidates.nbytes)
                waiting.append(candidates)
                waiting_rows += candidates.length
            if waiting:
                await reservation.resize(2 * sum(part.nbytes for part in waiting))
                small = is_small(waiting)
                await out.emit(
                    lambda: [self._after_offset(first_rows(waiting, self.keys, wanted))], last=True, small=small
                )

    def _after_offset(self, best: Batch) -> Batch:
        return slice_batch(best, min(self.offset, best.length), best.length)


def not_after(batch: Batch, keys: Sequence[SortKey], worst: Batch) -> Batch:
    """The rows that `keys` do not order behind the only row of `worst`, as far as that is cheap to say: by the leading
    keys that are no texts, on a device by the first."""
    pairs = [
        (batch.columns[key.index], worst.columns[key.index], Direction(key.descending, key.nulls_first))
        for key in takewhile(lambda key: not is_text(batch.columns[key.index]), keys)
    ]
    if not pairs:
        return batch
    passing: torch.Tensor | None
    if device_of(pairs[0][0]).type == "cpu":
        threshold = Threshold(tuple(KeyThreshold.of(plain(last), 0, direction) for _, last, direction in pairs), 0)
        passing = threshold.select([column for column, _, _ in pairs], 0)
    else:
        mask = precedes_or_ties(*pairs[0])
        passing = None if mask is None else primitives(mask.device).indices_of_true(mask)
    return batch if passing is None else settled_batch(take_batch(batch, passing))


def first_rows(parts: list[Batch], keys: tuple[SortKey, ...], count: int) -> Batch:
    """The first `count` rows of all parts together, in the order of `keys`."""
    whole = concat_batches(parts)
    return settled_batch(take_batch(whole, order_of(whole, keys, count)))


def first_and_last(parts: list[Batch], keys: tuple[SortKey, ...], count: int) -> tuple[Batch, Batch]:
    """The first `count` rows, of at least so many, and the last one of them."""
    best = first_rows(parts, keys, count)
    return best, slice_batch(best, count - 1, count)
