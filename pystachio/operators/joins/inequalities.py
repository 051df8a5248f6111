"""Joins by inequalities alone: the build side stands in the order of one, so that what a row may match is a range.

`build <= probe` leaves a prefix of the order. `build >= probe` beside it cuts the prefix where the greatest second
value so far first reaches the row's: what is stored are intervals, say, and the row is a point. That is the augmented
interval list of Feng, Ratan and Sheffield, "Augmented Interval List: a novel data structure for efficient genomic
interval search" (Bioinformatics 2019); as there, long intervals stand in lists of their own, lest the range of every
point behind them begins with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators.batch import Batch
from pystachio.operators.column import FixedColumn
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import Call, Expression, conjunction, conjuncts, fields_of, shift_fields
from pystachio.operators.functions.units import ratio
from pystachio.operators.joins.places import PairCondition, Place, Source
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.compare import MIRRORED
from pystachio.operators.kernels.numbering import row_dtype
from pystachio.operators.kernels.ordering import Direction, ordered_numbers, sort_order
from pystachio.operators.kernels.pairs import Matches

MAKING_BYTES: Final = 96
"""What making an index takes for each row."""

_BELOW: Final = frozenset({"lt", "lte"})
_FEW_ROWS: Final = 64
_SHORT_SPAN: Final = 16
"""Intervals with fewer others beginning in them are short..."""
_LIST_BITS: Final = 3
"""...and those of each further list at most 8 times as long as its shortest."""


@dataclass(frozen=True, slots=True)
class Inequality:
    """`build function probe`: lt, lte, gt or gte, of stored columns and of those of a streamed batch."""

    function: str
    build: Expression
    probe: Expression


@dataclass(frozen=True, slots=True)
class Inequalities:
    """What of a join's condition gives each streamed row a range: that stored values are `below` its own, `above`, or
    both, each by values of its own.

    Pairs of the ranges must satisfy `rest` besides. `tells_matches`: whether a row has a match if it has a range.
    """

    below: Inequality | None
    above: Inequality | None
    rest: PairCondition | None
    tells_matches: bool

    @staticmethod
    def of(condition: PairCondition) -> Inequalities | None:
        """None where no part of the condition compares the sides in order."""
        below: Inequality | None = None
        above: Inequality | None = None
        rest: list[Expression] = []
        second: list[Expression] = []
        for part in conjuncts(condition.expression):
            found = _inequality(part, condition.places)
            if found is not None and below is None and found.function in _BELOW:
                below = found
            elif found is not None and above is None and found.function not in _BELOW:
                above = found
                second.append(part)
            else:
                rest.append(part)
        if below is None and above is None:
            return None
        tells_matches = not rest
        if below is not None and above is not None and below.build != above.build:
            # The cut leaves some that are not above.
            rest += second
        whole = conjunction(tuple(rest))
        checked = None if whole is None else PairCondition.of(whole, condition.places.__getitem__)
        return Inequalities(below, above, checked, tells_matches)


@dataclass(frozen=True, slots=True, eq=False)
class _Ordered:
    """Ascending `values` (int64 [rows]) and the positions of their `rows`. `reached` (int64 [rows]) are the greatest
    second values so far, where two conditions are asked for."""

    values: torch.Tensor
    rows: torch.Tensor
    reached: torch.Tensor | None

    @property
    def nbytes(self) -> int:
        reached = 0 if self.reached is None or self.reached is self.values else self.reached.nbytes
        return self.values.nbytes + self.rows.nbytes + reached


@dataclass(frozen=True, slots=True, eq=False)
class OrderedIndex:
    """The stored rows that may match at all, each in one of the lists."""

    conditions: Inequalities
    lists: tuple[_Ordered, ...]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.lists)

    def find(self, batch: Batch) -> list[Matches] | None:
        """What each row may match, in parts; None where its own values cannot be computed for all rows."""
        sides = (self.conditions.below, self.conditions.above)
        found: dict[Expression, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for side in sides:
            if side is not None and side.probe not in found:
                numbers = _numbers(side.probe, batch)
                if numbers is None:
                    return None
                found[side.probe] = numbers
        valid = _all_of([validity for _, validity in found.values()])
        below, above = (None if side is None else found[side.probe][0] for side in sides)
        return [self._ranges(each, below, above, valid) for each in self.lists]

    def flag(self, matches: Sequence[Matches], flags: torch.Tensor) -> None:
        """Set the flag (uint8, for each stored row) of all that are in a range."""
        for each, found in zip(self.lists, matches, strict=True):
            steps = torch.zeros(each.rows.shape[0] + 1, dtype=torch.int64, device=flags.device)
            ones = (found.counts != 0).to(torch.int64)
            steps.index_add_(0, found.starts.to(torch.int64), ones)
            steps.index_add_(0, (found.starts + found.counts).to(torch.int64), -ones)
            covered = primitives(flags.device).indices_of_true(steps.cumsum(0)[:-1] != 0)
            flags.index_fill_(0, each.rows.index_select(0, covered).to(torch.int64), 1)

    def _ranges(
        self, each: _Ordered, below: torch.Tensor | None, above: torch.Tensor | None, valid: torch.Tensor | None
    ) -> Matches:
        rows, short = each.rows.shape[0], each.rows.dtype == torch.int32
        starts = ends = None
        if above is not None:
            assert self.conditions.above is not None
            later = self.conditions.above.function == "gt"
            reached = each.values if each.reached is None else each.reached
            starts = torch.searchsorted(reached, above, right=later, out_int32=short)
        if below is not None:
            assert self.conditions.below is not None
            later = self.conditions.below.function == "lte"
            ends = torch.searchsorted(each.values, below, right=later, out_int32=short)
        if starts is None:
            assert ends is not None
            starts, counts = torch.zeros_like(ends), ends
        else:
            counts = (rows - starts if ends is None else ends - starts).clamp_(min=0)
        return Matches(starts, counts if valid is None else counts.masked_fill(~valid, 0), each.rows)


def index_in_order(conditions: Inequalities, rows: Batch) -> OrderedIndex | None:
    """None where the stored values cannot be computed for all rows."""
    first, second = conditions.below or conditions.above, conditions.above if conditions.below is not None else None
    assert first is not None
    leading = _numbers(first.build, rows)
    other = leading if second is None or second.build == first.build else _numbers(second.build, rows)
    if leading is None or other is None:
        return None
    values, others = leading[0], other[0]
    valid = _all_of([leading[1], other[1]])
    kept = None if valid is None else primitives(values.device).indices_of_true(valid)
    if kept is not None:
        values, others = values.index_select(0, kept), others.index_select(0, kept)
    order = sort_order([(FixedColumn(pa.int64(), values), Direction(False, False))], values.shape[0])
    values = values.index_select(0, order)
    positions = (order if kept is None else kept.index_select(0, order)).to(row_dtype(rows.length))
    if second is None:
        return OrderedIndex(conditions, (_Ordered(values, positions, None),))
    if second.build == first.build:
        return OrderedIndex(conditions, (_Ordered(values, positions, values),))
    others = others.index_select(0, order)
    lists = _by_span(values, others) if second.probe == first.probe else [None]
    return OrderedIndex(conditions, tuple(_listed(values, positions, others, chosen) for chosen in lists))


def _by_span(starts: torch.Tensor, ends: torch.Tensor) -> list[torch.Tensor | None]:
    """The places of intervals in ascending order that are about equally long, for each length; None: all."""
    rows = starts.shape[0]
    if rows < _FEW_ROWS:
        return [None]
    spans = torch.searchsorted(starts, ends, right=True) - torch.arange(rows, device=starts.device)
    lengths = (spans.clamp_(min=_SHORT_SPAN).to(torch.float64) / _SHORT_SPAN).log2_() / _LIST_BITS
    numbers = lengths.to(torch.int8)
    which = torch.unique(numbers).tolist()
    kernels = primitives(starts.device)
    return [kernels.indices_of_true(numbers == number) for number in which] if len(which) > 1 else [None]


def _listed(
    values: torch.Tensor, positions: torch.Tensor, others: torch.Tensor, chosen: torch.Tensor | None
) -> _Ordered:
    if chosen is not None:
        values, positions, others = (each.index_select(0, chosen) for each in (values, positions, others))
    return _Ordered(values, positions, torch.cummax(others, 0).values)


def _inequality(part: Expression, places: Sequence[Place]) -> Inequality | None:
    match part:
        case Call(function="lt" | "lte" | "gt" | "gte", arguments=(first, second)):
            function = part.function
        case _:
            return None
    if not _order_alike(first.type, second.type):
        return None
    sources = [{places[position].source for position in fields_of(side)} for side in (first, second)]
    if sources == [{Source.PROBE}, {Source.BUILD}]:
        first, second, function = second, first, MIRRORED[function]
    elif sources != [{Source.BUILD}, {Source.PROBE}]:
        return None
    build, probe = (shift_fields(side, lambda position: places[position].position) for side in (first, second))
    return Inequality(function, build, probe)


def _order_alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether the numbers that stand for values of the two types compare as the values do."""
    return bool(pa.types.is_floating(left) and pa.types.is_floating(right)) or ratio(left, right) == 1


def _numbers(expression: Expression, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """`ordered_numbers` of the value in every row, and which are not NULL."""
    try:
        column = evaluate(expression, batch)
    except DataError:
        return None  # in some row, which may be in no pair that comes so far
    numbers = ordered_numbers(column)
    return None if numbers is None else (numbers, column.validity)


def _all_of(validities: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    whole: torch.Tensor | None = None
    for validity in validities:
        if validity is not None:
            whole = validity if whole is None else whole & validity
    return whole
