"""A run of stages as one program: written from what columns look like, then run on any that look the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import torch

from pystachio.operators.batch import Batch
from pystachio.operators.column import Bounds, Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.fusion.groups import FoldedGroups
from pystachio.operators.fusion.prepared import Prepared
from pystachio.operators.fusion.trace import Input
from pystachio.operators.kernels.bounds import measured_bounds
from pystachio.operators.kernels.host_memory import copied, empty
from pystachio.operators.kernels.program import InputRows, Program
from pystachio.operators.kernels.selection import concat, slice_column, take_late, with_validity
from pystachio.operators.scans.rows import FilterUse
from pystachio.records import record

_MOST_PUT_OUT: Final = 1 << 18
"""Rows for which a run has room, unless one vector needs more."""


class SegmentRows(NamedTuple):
    """Rows [start, start + length) of the columns, or of those `rows` (int32 positions from `start`).

    The columns are those that are `ready`, perhaps with narrower ranges.
    """

    ready: Prepared
    columns: Sequence[Column | None]
    start: int
    length: int
    rows: torch.Tensor | None

    def of(self, inputs: Sequence[Input]) -> InputRows:
        """These inputs of the rows."""
        start, rows = self.start, self.rows
        addresses = [first + start * width for first, width in self.ready.located(inputs)]
        return InputRows(addresses, self.length if rows is None else rows.shape[0], rows)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """How a column of the result is made: of outputs `values` and `valid`.

    With a `column`, or the `position` of an input, `values` are numbers of its rows (None: all of the input's). Codes
    are of the `dictionary`, integers within `bounds`.
    """

    type: pa.DataType
    values: int | None
    valid: int | None = None
    position: int | None = None
    column: Column | None = None
    dictionary: Dictionary | None = None
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The next `stages` of a chain in one program.

    A boundary stands behind each of `tested`, the tests of a scan (None: the predicate, or nothing), and each stage.
    `is_of_run`: for no other run of the plan.
    """

    stages: int
    tested: tuple[FilterUse | None, ...]
    program: Program
    inputs: tuple[Input, ...]
    columns: tuple[OutputColumn, ...]
    folded: FoldedGroups | None
    is_of_run: bool = False

    def fits(self, columns: Sequence[Column | None], rows: int) -> bool:
        """Whether these rows can be folded, if they are."""
        return self.folded is None or self.folded.fits(columns, rows)

    def parts_that_fit(self, columns: Sequence[Column | None], rows: int) -> int:
        """Into how many parts rows that do not fit should go for each to fit, if their groups are in order; 1: none."""
        return 1 if self.folded is None else self.folded.parts_that_fit(columns, rows)

    def narrowed(self, columns: Sequence[Column | None], start: int, stop: int) -> Sequence[Column | None]:
        """The columns, with the range that counts for rows [start, stop) where only one of rows given at once does."""
        assert self.folded is not None
        assert self.folded.rebased is not None
        position = self.folded.rebased.position
        column = columns[position]
        if not isinstance(column, FixedColumn) or stop - start == len(column):
            return columns
        bounds = measured_bounds(slice_column(column, start, stop))
        narrow = FixedColumn(column.type, column.values, column.validity, bounds)
        return (*columns[:position], narrow, *columns[position + 1 :])

    @property
    def takes_many(self) -> bool:
        """Whether rows of several units may be given at once."""
        return self.folded is None or self.folded.rebased is None

    def run(self, rows: Sequence[SegmentRows]) -> Iterator[SegmentRun]:
        """All these rows; of one unit, unless it `takes_many`."""
        parts = [each.of(self.inputs) for each in rows]
        size = sum([part.length for part in parts])
        capacity = min(size, _MOST_PUT_OUT)
        part = begin = 0
        while part < len(parts):
            began = time.perf_counter()
            batch: Batch | None = None
            if self.folded is not None:
                states, full = self.folded.take(rows[0].columns, size)
                run = self.program.run(parts, part, begin, states=states.states, changes=states.changes)
                states.rows += run.put
                batch = self.folded.give_back(states) or full
            else:
                outputs = [empty(capacity, dtype) for dtype in self.program.outputs]
                run = self.program.run(parts, part, begin, outputs=outputs, capacity=capacity)
                if run.put:
                    batch = self._batch(rows, outputs, run.ends, begin)
                elif (run.part, run.begin) == (part, begin):
                    capacity *= 4
            taken = sum([each.length for each in parts[part : run.part]]) + run.begin - begin
            yield SegmentRun(batch, taken, run.counters, time.perf_counter() - began)
            part, begin = run.part, run.begin

    def _batch(self, rows: Sequence[SegmentRows], outputs: list[torch.Tensor], ends: list[int], begin: int) -> Batch:
        """`ends`: how many rows were put out by the end of each of `rows`, the first that were from its row `begin`."""
        reached = ends[-1]
        # What is kept must not keep a much larger buffer.
        outputs = [
            copied(output[:reached]) if 4 * reached < 3 * output.shape[0] else output[:reached] for output in outputs
        ]
        sources: list[_Source] = []
        for each, start, end in zip(rows, [0, *ends], ends, strict=False):
            if end > start:
                sources.append(_Source(each, begin if start == 0 else 0, start, end))
        made: dict[int, Column] = {}
        for output in self.columns:
            if id(output) not in made:
                made[id(output)] = _column(output, sources, outputs)
        return Batch(tuple(made[id(output)] for output in self.columns), reached, None)


@record(eq=False)
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


class _Source(NamedTuple):
    """Of `rows` some are put out, at [start, end): where none is dropped, those from `first` on."""

    rows: SegmentRows
    first: int
    start: int
    end: int

    def column(self, position: int, numbers: torch.Tensor | None) -> Column:
        """An input column's rows: those at `numbers`, None: where none is dropped."""
        column, begin = self.rows.columns[position], self.rows.start
        assert column is not None
        if numbers is None:
            begin += self.first
            return slice_column(column, begin, begin + self.end - self.start)
        return take_late(slice_column(column, begin, begin + self.rows.length), numbers[self.start : self.end])


def _column(output: OutputColumn, sources: Sequence[_Source], outputs: list[torch.Tensor]) -> Column:
    validity = None if output.valid is None else outputs[output.valid]
    if output.position is not None:
        numbers = None if output.values is None else outputs[output.values]
        return concat([source.column(output.position, numbers) for source in sources])
    assert output.values is not None
    values = outputs[output.values]
    if output.column is not None:
        taken = take_late(output.column, values)
        return taken if validity is None else with_validity(taken, validity)
    if output.dictionary is not None:
        return DictionaryColumn(output.type, values, output.dictionary, validity)
    return FixedColumn(output.type, values, validity, output.bounds)
