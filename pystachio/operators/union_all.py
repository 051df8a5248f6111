"""UnionAll: the rows of all inputs, in no order."""

from __future__ import annotations

from dataclasses import dataclass

from pystachio.operators.batch import Schema
from pystachio.operators.operator import Operator


@dataclass(frozen=True, slots=True)
class UnionAll:
    """Neither breaker nor streaming: the pipeline gives all inputs the same output, so a union moves no byte."""

    inputs: tuple[Operator, ...]
    schema: Schema

    def label(self) -> str:
        return f"UnionAll inputs={len(self.inputs)}"
