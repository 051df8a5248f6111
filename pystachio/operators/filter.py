"""Filter: the rows for which a predicate is true (SQL: neither false nor NULL)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.evaluate import bind_scalars, passing
from pystachio.operators.expressions import Expression
from pystachio.operators.operator import Operator
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context


@dataclass(frozen=True, slots=True)
class Filter:
    """Streaming; keeps the order of rows."""

    input: Operator
    predicate: Expression

    prefers_large_batches: ClassVar[bool] = False

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def schema(self) -> Schema:
        return self.input.schema

    def label(self) -> str:
        return "Filter"

    async def open(self, ctx: Context, builds: tuple[Receiver[Batch], ...]) -> FilterTransform:
        return FilterTransform(await bind_scalars(ctx, self.predicate))


@dataclass(frozen=True, slots=True)
class FilterTransform:
    """The predicate with its scalar subqueries filled in."""

    predicate: Expression

    def process(self, batch: Batch) -> Iterator[Batch]:
        yield passing(self.predicate, batch)

    def finish(self) -> None:
        return None

    def close(self) -> None:
        pass
