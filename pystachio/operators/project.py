"""Project: one output column per expression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.column import Column, ViewColumn
from pystachio.operators.evaluate import bind_scalars, evaluate
from pystachio.operators.expressions import Expression, FieldReference, fields_of
from pystachio.operators.kernels.selection import own_texts
from pystachio.operators.operator import Operator
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context


@dataclass(frozen=True, slots=True)
class Project:
    """Streaming; keeps the order of rows."""

    input: Operator
    expressions: tuple[Expression, ...]
    schema: Schema

    prefers_large_batches: ClassVar[bool] = False

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    def label(self) -> str:
        return "Project"

    async def open(self, ctx: Context, builds: tuple[Receiver[Batch], ...]) -> ProjectTransform:
        bound = tuple([await bind_scalars(ctx, expression) for expression in self.expressions])
        return ProjectTransform(bound, ctx.stream.device)


@dataclass(frozen=True, slots=True)
class ProjectTransform:
    """The expressions with their scalar subqueries filled in, and where batches are."""

    expressions: tuple[Expression, ...]
    device: torch.device

    @property
    def only_moves(self) -> bool:
        """Whether columns are only renamed, moved or left out."""
        return all(isinstance(expression, FieldReference) for expression in self.expressions)

    @property
    def _read(self) -> frozenset[int]:
        """The columns whose values must be known."""
        computing = (each for each in self.expressions if not isinstance(each, FieldReference))
        return frozenset().union(*map(fields_of, computing))

    def process(self, batch: Batch) -> Iterator[Batch]:
        if any(isinstance(column, ViewColumn) for column in batch.columns):
            batch = own_texts(batch, self._read)
        computed: dict[Expression, int] = {}
        columns: list[Column] = []
        for expression in self.expressions:
            if expression in computed:
                columns.append(columns[computed[expression]])
                continue
            computed[expression] = len(columns)
            columns.append(evaluate(expression, batch, self.device))
        yield Batch(tuple(columns), batch.length, batch.ready)

    def finish(self) -> None:
        return None

    def close(self) -> None:
        pass
