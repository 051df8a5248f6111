"""A run of stages as one program: written from what columns look like, then run on any that look the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pystachio.operators.batch import Batch
from pystachio.operators.column import BytesColumn, Column, DictionaryColumn, FixedColumn, WideDecimalColumn
from pystachio.operators.fusion.groups import FoldedGroups
from pystachio.operators.fusion.trace import Form, Input, Part, Symbol
from pystachio.operators.kernels.program import Program
from pystachio.operators.kernels.selection import slice_column, take, with_validity
from pystachio.operators.scan_rows import FilterUse


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """How a column of the result is made: of output `values` (None: of input `position` as it is) and `valid`.

    With `column` (or `rows` without one: of the input) the output `values` are row numbers.
    """

    symbol: Symbol
    values: int | None
    valid: int | None = None
    is_rows: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The next `stages` of a chain in one program.

    A boundary stands behind each of `tested`, the tests of a scan (None: the predicate, or nothing), and each stage.
    """

    stages: int
    tested: tuple[FilterUse | None, ...]
    program: Program
    inputs: tuple[Input, ...]
    columns: tuple[OutputColumn, ...]
    folded: FoldedGroups | None

    def fits(self, columns: Sequence[Column | None], rows: int) -> bool:
        """Whether these rows can be folded, if they are."""
        return self.folded is None or self.folded.fits(columns, rows)

    def run(
        self, columns: Sequence[Column | None], count: int, start: int, rows: torch.Tensor | None
    ) -> Iterator[SegmentRun]:
        """The rows [start, start + count) of the columns, or of those `rows` (int32 positions from `start`)."""
        addresses = [_address(columns[part.position], part.part, start) for part in self.inputs]
        size = count if rows is None else rows.shape[0]
        begin, capacity = 0, size
        while begin < size:
            began = time.perf_counter()
            batch: Batch | None = None
            if self.folded is not None:
                states, full = self.folded.take(columns, size)
                run = self.program.run(addresses, begin, size, rows=rows, states=states.states, changes=states.changes)
                states.rows += run.put
                batch = self.folded.give_back(states) or full
            else:
                outputs = [torch.empty(capacity, dtype=dtype) for dtype in self.program.outputs]
                run = self.program.run(addresses, begin, size, rows=rows, outputs=outputs, capacity=capacity)
                if run.put:
                    batch = self._batch(columns, start, count, rows, outputs, run.put)
                elif run.begin == begin:
                    capacity *= 4
            yield SegmentRun(batch, run.begin - begin, run.counters, time.perf_counter() - began)
            begin = run.begin

    def _batch(
        self,
        columns: Sequence[Column | None],
        start: int,
        count: int,
        rows: torch.Tensor | None,
        outputs: list[torch.Tensor],
        reached: int,
    ) -> Batch:
        # What is kept must not keep a much larger buffer.
        outputs = [
            output[:reached].clone() if 4 * reached < 3 * output.shape[0] else output[:reached] for output in outputs
        ]
        made: dict[int, Column] = {}
        for output in self.columns:
            if id(output) not in made:
                made[id(output)] = _column(output, columns, start, count, outputs)
        return Batch(tuple(made[id(output)] for output in self.columns), reached, None)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentRun:
    """What a run gave, how many rows it took, and its counters (rows and ticks per boundary)."""

    batch: Batch | None
    rows: int
    counters: list[int]
    seconds: float

    def seconds_of(self, boundary: int) -> float:
        """The boundary's share of the time."""
        total = sum(self.counters[1::2])
        return self.seconds * self.counters[2 * boundary + 1] / total if total > 0 else 0.0


def _column(
    output: OutputColumn, columns: Sequence[Column | None], start: int, count: int, outputs: list[torch.Tensor]
) -> Column:
    symbol = output.symbol
    validity = None if output.valid is None else outputs[output.valid]
    if output.values is None or (output.is_rows and symbol.column is None):
        assert isinstance(symbol.values, Input)
        column = columns[symbol.values.position]
        assert column is not None
        sliced = slice_column(column, start, start + count)
        return sliced if output.values is None else take(sliced, outputs[output.values])
    values = outputs[output.values]
    if symbol.column is not None:
        taken = take(symbol.column, values)
        return taken if validity is None else with_validity(taken, validity)
    if symbol.form is Form.CODES:
        assert symbol.dictionary is not None
        return DictionaryColumn(symbol.type, values, symbol.dictionary, validity)
    return FixedColumn(symbol.type, values, validity, symbol.bounds)


def _address(column: Column | None, part: Part, start: int) -> int:
    assert column is not None
    if part is Part.VALIDITY:
        assert column.validity is not None
        tensor = column.validity
    else:
        match column:
            case FixedColumn(values=tensor) | DictionaryColumn(codes=tensor):
                pass
            case WideDecimalColumn() | BytesColumn():
                raise AssertionError("a column without an address")
    assert tensor.is_contiguous()
    return tensor.data_ptr() + start * tensor.itemsize
