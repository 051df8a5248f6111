"""Spool: an equal sub-plan runs once and feeds several consumers."""

from __future__ import annotations

from dataclasses import dataclass

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.operator import Operator
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context
from pystachio.runtime.memory import Reservation


@dataclass(frozen=True, slots=True, eq=False)
class Spool:
    """The same object is the input of `consumers` operators; the pipeline replays its rows to each of them."""

    input: Operator
    consumers: int

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def schema(self) -> Schema:
        return self.input.schema

    def label(self) -> str:
        return f"Spool consumers={self.consumers}"

    async def collect(self, ctx: Context, receiver: Receiver[Batch]) -> tuple[list[Batch], Reservation]:
        """All rows, and the reservation that covers them until the last consumer has read them."""
        held = await ctx.memory.reserve(0)
        batches: list[Batch] = []
        async for batch in receiver:
            await held.resize(held.nbytes + batch.nbytes)
            batches.append(batch)
        return batches, held
