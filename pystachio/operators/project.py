"""Project: one output column per expression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.column import Column, ViewColumn
from pystachio.operators.evaluate import bind_scalars, evaluate
from pystachio.operators.expressions import Expression, FieldReference, fields_of
from pystachio.operators.kernels.bounds import with_measured_bounds
from pystachio.operators.kernels.selection import own_texts
from pystachio.operators.operator import Operator
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context

_FEW_ROWS: Final = 1024
"""Of so many, the ranges of values that several expressions compute with are measured once for all of them."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """Of each expression the first one that equals it, and the fields that several compute with."""

    firsts: tuple[int, ...]
    fields: frozenset[int]

    @classmethod
    def of(cls, expressions: Sequence[Expression]) -> _Shared:
        positions: dict[Expression, int] = {}
        firsts = tuple(positions.setdefault(each, at) for at, each in enumerate(expressions))
        readers = Counter(
            field for each in positions if not isinstance(each, FieldReference) for field in fields_of(each)
        )
        return cls(firsts, frozenset(field for field, count in readers.items() if count > 1))


@dataclass(slots=True)
class _Known:
    """Found once, for as long as the plan is kept."""

    shared: _Shared | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """Streaming; keeps the order of rows."""

    input: Operator
    expressions: tuple[Expression, ...]
    schema: Schema

    prefers_large_batches: ClassVar[bool] = False

    _known: _Known = field(default_factory=_Known, init=False, compare=False, repr=False)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    def label(self) -> str:
        return "Project"

    async def open(self, ctx: Context, builds: tuple[Receiver[Batch], ...]) -> ProjectTransform:
        bound = tuple([await bind_scalars(ctx, expression) for expression in self.expressions])
        if self._known.shared is None:
            self._known.shared = _Shared.of(self.expressions)
        return ProjectTransform(bound, self._known.shared, ctx.stream.device)


@dataclass(frozen=True, slots=True)
class ProjectTransform:
    """The expressions with their scalar subqueries filled in, and where batches are."""

    expressions: tuple[Expression, ...]
    shared: _Shared
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
        if batch.length <= _FEW_ROWS and self.shared.fields and self.device.type == "cpu":
            measured = (
                with_measured_bounds(column) if at in self.shared.fields else column
                for at, column in enumerate(batch.columns)
            )
            batch = Batch(tuple(measured), batch.length, batch.ready)
        columns: list[Column] = []
        for expression, first in zip(self.expressions, self.shared.firsts, strict=True):
            computed = first < len(columns)
            columns.append(columns[first] if computed else evaluate(expression, batch, self.device))
        yield Batch(tuple(columns), batch.length, batch.ready)

    def finish(self) -> None:
        return None

    def close(self) -> None:
        pass
