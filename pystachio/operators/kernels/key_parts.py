"""Parts of keys: one column (or one limb of it) as integers, numbered by what a build side holds.

A part is made from the build's column and then encodes any other column of the same type: equal values get equal
digits. A *ranged* part has digits in [0, span) and `span` for a value that the build cannot hold; a *raw* part
(span None) has any int64 and a mask of the rows that match nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch

from pystachio.operators.column import (
    BytesColumn,
    Column,
    Dictionary,
    DictionaryColumn,
    FixedColumn,
    ViewColumn,
    WideDecimalColumn,
)
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.bounds import bounds_of, with_measured_bounds
from pystachio.operators.kernels.host_memory import as_dtype
from pystachio.operators.kernels.selection import plain, widen
from pystachio.operators.kernels.strings import find, index, to_codes, translate
from pystachio.operators.kernels.views import materialised
from pystachio.records import record

SPAN_LIMIT: Final = 1 << 62
"""Spans from here on do not fit the arithmetic on int64 codes."""

_OTHER_NAN: Final = 0x7FF8000000000001
"""Not the one that `float_bits` makes of all."""


@record(eq=False)
class Digits:
    """`values` (int32 or int64 [rows]) of a part with `span`. `absent` marks rows that equal nothing; it is only set
    for raw parts. `exact`: no row of a ranged part holds `span`."""

    values: torch.Tensor
    span: int | None
    absent: torch.Tensor | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RangedKeys:
    """Keys that are numbers: `values` (integers of any width [rows]) from `low` on, of the rows that are `kept` (None:
    all); the others equal nothing."""

    values: torch.Tensor
    low: int
    kept: torch.Tensor | None


@record
class RangePart:
    """Integer-like values minus `low`; with `null_digit` the last digit of `span` stands for NULL."""

    low: int
    span: int
    null_digit: bool

    def encode(self, column: Column) -> Digits:
        values, fits, validity = _integers(column)
        held = self.span - self.null_digit
        known = bounds_of(column) if fits is None and isinstance(column, FixedColumn) and column.bounds else None
        inside = known is not None and self.low <= known[0] and known[1] < self.low + held
        digits = _clamped_offset(values, self.low, held)
        if self.null_digit and not inside:
            digits = torch.where(digits == held, self.span, digits)
        if fits is not None:
            digits = torch.where(fits, digits, self.span)
        if validity is None:
            return Digits(digits, self.span, exact=inside)
        digits = torch.where(validity, digits, held if self.null_digit else self.span)
        return Digits(digits, self.span, exact=inside and self.null_digit)

    def as_range(self, column: Column) -> RangedKeys | None:
        """What `encode` starts from; None where NULL is a value of its own."""
        if self.null_digit:
            return None
        values, fits, validity = _integers(column)
        if values.dtype == torch.bool:
            values = values.view(torch.int8)
        kept = validity if fits is None else fits if validity is None else fits & validity
        return RangedKeys(values, self.low, kept)


@dataclass(frozen=True, slots=True)
class CodePart:
    """Codes of a string column on the build's dictionary; with `null_digit` the last digit of `span` is NULL."""

    dictionary: Dictionary
    span: int
    null_digit: bool

    def encode(self, column: Column) -> Digits:
        if isinstance(column, ViewColumn):
            column = materialised(column)
        assert isinstance(column, BytesColumn | DictionaryColumn)
        if isinstance(column, BytesColumn):
            found = find(column, self.dictionary)
            digits = torch.where(found < 0, self.span, found)
            if self.null_digit and column.validity is not None:
                digits = torch.where(column.validity, digits, self.span - 1)
            return Digits(digits, self.span)
        coded = column
        if coded.dictionary is self.dictionary:
            digits, exact = index(coded.codes), True
        elif len(coded.dictionary) == 0:
            digits, exact = (
                torch.full(coded.codes.shape, self.span, dtype=torch.int32, device=coded.codes.device),
                False,
            )
        else:
            mapping = translate(coded.dictionary, self.dictionary, coded.codes.device)
            mapping = torch.where(mapping < 0, self.span, mapping)
            digits, exact = mapping.index_select(0, index(coded.codes)), False
        if coded.validity is None:
            return Digits(digits, self.span, exact=exact)
        digits = torch.where(coded.validity, digits, self.span - 1 if self.null_digit else self.span)
        return Digits(digits, self.span, exact=exact and self.null_digit)


class RawForm(StrEnum):
    """What a raw part takes from its column: the value itself, a float's bits, or one limb of a decimal."""

    VALUE = "value"
    BITS = "bits"
    HIGH = "high"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class RawPart:
    """Any int64; rows that are NULL hold `null` with `null_digit` (a `NullPart` tells them apart, if values may be the
    same), else match nothing."""

    form: RawForm
    null_digit: bool
    span: None = None
    null: int = 0

    def encode(self, column: Column) -> Digits:
        values, absent = self._values(column)
        validity = column.validity
        if validity is not None and self.null_digit:
            values = torch.where(validity, values, self.null)
        elif validity is not None:
            absent = ~validity if absent is None else absent | ~validity
        return Digits(values, None, absent)

    def _values(self, column: Column) -> tuple[torch.Tensor, torch.Tensor | None]:
        match self.form:
            case RawForm.HIGH:
                return widen(plain(column)).high, None
            case RawForm.LOW:
                return widen(plain(column)).low, None
            case RawForm.BITS:
                values, _, _ = _integers(column)
                return float_bits(values), None
            case RawForm.VALUE:
                values, fits, _ = _integers(column)
                return values.to(torch.int64), None if fits is None else ~fits


@dataclass(frozen=True, slots=True)
class NullPart:
    """1 where the column is NULL."""

    span: int = 2

    def encode(self, column: Column) -> Digits:
        if column.validity is not None:
            return Digits((~column.validity).to(torch.int32), 2, exact=True)
        values, _, _ = _integers(column)
        return Digits(torch.zeros(values.shape, dtype=torch.int32, device=values.device), 2, exact=True)


KeyPart = RangePart | CodePart | RawPart | NullPart


def prepared(column: Column) -> Column:
    """The column as `parts_of` wants it: strings as codes, numbers with their bounds."""
    return to_codes(column) if isinstance(column, BytesColumn | ViewColumn) else with_measured_bounds(column)


def parts_of(column: Column, null_equal: bool) -> tuple[KeyPart, ...]:
    """The parts that tell the values of `column` (prepared) apart; NULL is a value of its own when `null_equal`."""
    null_digit = null_equal and column.validity is not None
    null_part = (NullPart(),) if null_digit else ()
    if isinstance(column, DictionaryColumn) and isinstance(column.dictionary.values, BytesColumn):
        dictionary = column.dictionary
        return (CodePart(dictionary, len(dictionary) + null_digit, null_digit),)
    column = plain(column)
    if isinstance(column, WideDecimalColumn):
        return (*null_part, RawPart(RawForm.HIGH, null_digit), RawPart(RawForm.LOW, null_digit))
    bounds = bounds_of(column)
    if bounds is None:
        return (*null_part, RawPart(RawForm.BITS, null_digit))
    span = bounds[1] - bounds[0] + 1 + null_digit
    if span >= SPAN_LIMIT:
        return (*null_part, RawPart(RawForm.VALUE, null_digit))
    return (RangePart(bounds[0], span, null_digit),)


def parts_among_themselves(column: Column) -> tuple[KeyPart, ...]:
    """`parts_of` with NULLs equal, for a column that meets no other: NULL may be a number that it does not have."""
    if column.validity is not None and not primitives(column.validity.device).any_true(column.validity):
        return ()
    match parts_of(column, null_equal=True):
        case NullPart(), RawPart(form=RawForm.BITS):
            return (RawPart(RawForm.BITS, null_digit=True, null=_OTHER_NAN),)
        case (NullPart(), RawPart(form=RawForm.VALUE)) as parts:
            bounds = bounds_of(plain(column))
            assert bounds is not None
            lowest, highest = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
            if bounds == (lowest, highest):
                return parts
            null = bounds[0] - 1 if bounds[0] > lowest else bounds[1] + 1
            return (RawPart(RawForm.VALUE, null_digit=True, null=null),)
        case parts:
            return parts


def float_bits(values: torch.Tensor) -> torch.Tensor:
    """int64 that are equal where the floats are: one zero and one NaN."""
    wide = values.to(torch.float64) + 0.0
    return torch.where(torch.isnan(wide), torch.nan, wide).view(torch.int64)


def _integers(column: Column) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The numbers of a plain column, where they fit int64 (None: everywhere), and the validity."""
    column = plain(column)
    if isinstance(column, WideDecimalColumn):
        return column.low, column.high == column.low >> 63, column.validity
    assert isinstance(column, FixedColumn)
    return column.values, None, column.validity


def _clamped_offset(values: torch.Tensor, low: int, span: int) -> torch.Tensor:
    """`values - low` where that is in [0, span), else `span`: int32 or int64."""
    if values.dtype == torch.bool:
        values = values.view(torch.int8)
    narrow = values.dtype != torch.int64 and span < 2**31 - 1 and low >= -(2**31) and low + span <= 2**31
    values = as_dtype(values, torch.int32 if narrow else torch.int64)
    return primitives(values.device).offsets_within(values, low, span)
