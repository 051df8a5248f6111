"""Values: constant rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import Literal
from pystachio.operators.kernels.selection import concat_batches
from pystachio.operators.operator import Operator, Output
from pystachio.operators.placement import to_device
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context


@dataclass(frozen=True, slots=True)
class Values:
    """Breaker without inputs; `rows` hold literal values in the encoding of `expressions.Literal`."""

    rows: tuple[tuple[Any, ...], ...]
    schema: Schema

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    def label(self) -> str:
        return f"Values rows={len(self.rows)}"

    async def run(self, ctx: Context, inputs: tuple[Receiver[Batch], ...], out: Output) -> None:
        if self.rows:
            await out.emit(lambda: [to_device(concat_batches([self._batch(row) for row in self.rows]), ctx.stream)])

    def _batch(self, row: tuple[Any, ...]) -> Batch:
        one_row = Batch((), 1, None)
        columns = (evaluate(Literal(value, field.type), one_row) for value, field in zip(row, self.schema, strict=True))
        return Batch(tuple(columns), 1, None)
