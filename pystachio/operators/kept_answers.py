"""What a plan that may run many times keeps of its first run: the answers of parts that read no rows.

Literals and footers, which the plan itself holds, say all of them, so they cannot change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

import pyarrow as pa

from pystachio.operators.expressions import Literal
from pystachio.operators.operator import Operator
from pystachio.operators.scans.statistics import StatisticsFold
from pystachio.operators.spool import Spool
from pystachio.operators.values import Values

_MOST_BYTES: Final = 1 << 16
"""A larger answer is not worth the memory for as long as the plan is kept."""


@dataclass(slots=True, eq=False)
class KeptAnswers:
    """`constant_scalars`: so many, the first ones, read no rows; `is_constant`: nor does anything else."""

    constant_scalars: int
    is_constant: bool
    rows: pa.RecordBatch | None = None
    """The whole answer, once a run has put it out: one batch, and at least one row."""
    scalars: dict[int, Literal] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Operator, scalars: Sequence[Operator]) -> KeptAnswers:
        # A scalar may ask for those before it.
        constant = sum(1 for _ in takewhile(_reads_nothing, scalars))
        return cls(constant, constant == len(scalars) and _reads_nothing(root))

    def keep_rows(self, rows: pa.RecordBatch) -> None:
        if self.is_constant and rows.nbytes <= _MOST_BYTES:
            self.rows = rows

    def keep_scalar(self, index: int, value: Literal) -> None:
        if index < self.constant_scalars:
            self.scalars[index] = value


def _reads_nothing(operator: Operator) -> bool:
    if isinstance(operator, Spool):
        return False  # it waits for all its consumers, of which others may run
    if operator.inputs:
        return all(map(_reads_nothing, operator.inputs))
    return isinstance(operator, Values | StatisticsFold)
