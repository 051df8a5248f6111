"""What programs depend on in columns: look, ranges, addresses. Kept for columns that stay in memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from pystachio.operators.column import (
    Bounds,
    BytesColumn,
    Column,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.fusion.trace import Input, Part
from pystachio.operators.kernels.bounds import is_within, with_measured_bounds
from pystachio.operators.scans.rows import ScanRows

Look = tuple[Hashable, ...]
"""Of some columns all that a program depends on, but for the ranges of their values."""

_KEPT = "prepared for programs"


@dataclass(slots=True, eq=False)
class Prepared:
    """The columns of a scan by position, with the ranges of all integers; None for those that were not needed.

    Several threads may ask; what one of them works out, another may work out again.
    """

    columns: tuple[Column | None, ...]
    look: Look
    are_addressable: bool
    """Whether programs can read them at their addresses."""
    _within: Sequence[Bounds | None] = ()
    """What the columns were last found to be within."""
    _located: tuple[Sequence[Input], Sequence[tuple[int, int]]] = field(default=((), ()))

    @staticmethod
    def of(columns: Sequence[Column | None]) -> Prepared:
        # Decoders know the ranges of what they make; nobody else needs to.
        whole = tuple([None if column is None else with_measured_bounds(column) for column in columns])
        return Prepared(whole, tuple(map(_look, whole)), all(map(_is_addressable, whole)))

    def is_within(self, bounds: Sequence[Bounds | None]) -> bool:
        """`are_within`; asked again for the same ones, nothing is compared."""
        if self._within is bounds:
            return True
        found = are_within(self.columns, bounds)
        if found:
            self._within = bounds
        return found

    def located(self, inputs: Sequence[Input]) -> Sequence[tuple[int, int]]:
        """The address of the first row of each input, and the bytes from one row to the next."""
        known = self._located
        if known[0] is not inputs:
            known = self._located = inputs, [_location(self.columns[each.position], each.part) for each in inputs]
        return known[1]


def prepared(rows: ScanRows) -> Prepared:
    """Of the unit's columns."""
    if rows.hot is None:
        return Prepared.of(rows.by_position)
    known = rows.hot.derived.get(_KEPT)
    if not isinstance(known, Prepared):
        known = rows.hot.derived[_KEPT] = Prepared.of(rows.by_position)
    return known


def are_within(columns: Sequence[Column | None], bounds: Sequence[Bounds | None]) -> bool:
    """Whether the columns have ranges within the `bounds` (by position), where there are some."""
    for column, known in zip(columns, bounds, strict=True):
        if known is not None and not (
            isinstance(column, FixedColumn) and column.bounds is not None and is_within(column.bounds, known)
        ):
            return False
    return True


def _location(column: Column | None, part: Part) -> tuple[int, int]:
    """The address of the first row, and the bytes from one row to the next."""
    assert column is not None
    if part is Part.VALIDITY:
        assert column.validity is not None
        tensor = column.validity
    else:
        match column:
            case FixedColumn(values=tensor) | DictionaryColumn(codes=tensor):
                pass
            case WideDecimalColumn() | BytesColumn() | ViewColumn():
                raise AssertionError("a column without an address")
    assert tensor.is_contiguous()
    return tensor.data_ptr(), tensor.itemsize


def _is_addressable(column: Column | None) -> bool:
    """Whether programs can read it at its address."""
    match column:
        case FixedColumn(values=values, validity=validity) | DictionaryColumn(codes=values, validity=validity):
            return values.is_contiguous() and (validity is None or validity.is_contiguous())
        case _:
            return column is None or column.validity is None or column.validity.is_contiguous()


def _look(column: Column | None) -> Hashable:
    match column:
        case None:
            return None
        case FixedColumn(type=type_, values=values, validity=validity):
            return type_, values.dtype, validity is None
        case DictionaryColumn(codes=codes, dictionary=dictionary, validity=validity):
            return codes.dtype, dictionary, validity is None
        case (
            WideDecimalColumn(type=type_, validity=validity)
            | BytesColumn(type=type_, validity=validity)
            | ViewColumn(type=type_, validity=validity)
        ):
            return type_, validity is None
