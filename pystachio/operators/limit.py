"""Limit: skip some rows, then pass at most so many."""

from __future__ import annotations

from dataclasses import dataclass

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.kernels.selection import settled_batch, slice_batch
from pystachio.operators.operator import Operator, Output
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context


@dataclass(frozen=True, slots=True)
class Limit:
    """Breaker: one task sees every row in arrival order, and stops its producers when it has enough."""

    input: Operator
    offset: int
    count: int | None

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def schema(self) -> Schema:
        return self.input.schema

    def label(self) -> str:
        return f"Limit offset={self.offset} count={'all' if self.count is None else self.count}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        skip, left = self.offset, self.count
        (receiver,) = inputs
        if left != 0:
            async for batch in receiver:
                start = min(skip, batch.length)
                skip -= start
                stop = batch.length if left is None else min(batch.length, start + left)
                if stop > start:
                    if (start, stop) != (0, batch.length):
                        batch = await ctx.stream.run(_cut, batch, start, stop)
                    await out.send(batch)
                    left = None if left is None else left - (stop - start)
                if left == 0:
                    break
        receiver.close()


def _cut(batch: Batch, start: int, stop: int) -> Batch:
    return settled_batch(slice_batch(batch, start, stop))
