"""Keys of several columns as one integer per row: exact, never a hash without comparison.

Digits of the parts are packed by mixed radix while the product of their spans fits; where it does not, or where a part
has no range, values are first numbered by the build side's distinct ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pystachio.operators.column import BytesColumn, Column, ViewColumn
from pystachio.operators.kernels import hash_table
from pystachio.operators.kernels.host_memory import as_dtype
from pystachio.operators.kernels.key_parts import (
    SPAN_LIMIT,
    Digits,
    KeyPart,
    RangedKeys,
    RangePart,
    parts_among_themselves,
    parts_of,
    prepared,
)
from pystachio.operators.kernels.numbering import HashTable
from pystachio.operators.kernels.strings import numbered
from pystachio.operators.kernels.views import materialised
from pystachio.records import record


@record(eq=False)
class KeyCodes:
    """One int32 or int64 per row, equal where the keys are.

    With a `span` codes are in [0, span), and `span` for rows that equal no key of the build. Without (any int64) such
    rows are marked by `absent`. `exact`: there is no such row.
    """

    values: torch.Tensor
    span: int | None
    absent: torch.Tensor | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """Append `part` of column `column` to the code: digits (numbered by `digit_numbers` when raw) below `radix`, which
    makes codes below `span`. Then, with `code_numbers`, the code itself is numbered anew."""

    column: int
    part: KeyPart
    radix: int
    span: int
    digit_numbers: HashTable | None
    code_numbers: HashTable | None


@dataclass(frozen=True, slots=True, eq=False)
class KeyEncoding:
    """How the keys of a build side become codes; `encode` gives those of any other rows."""

    steps: tuple[_Step, ...]
    span: int | None

    @property
    def nbytes(self) -> int:
        """Bytes of the tables that number values."""
        tables = (table for step in self.steps for table in (step.digit_numbers, step.code_numbers))
        return sum(table.nbytes for table in tables if table is not None)

    def encode(self, columns: Sequence[Column]) -> KeyCodes:
        """Codes for rows of the same key columns."""
        if len(self.steps) == 1 and self.steps[0].digit_numbers is None:
            digits = self.steps[0].part.encode(columns[self.steps[0].column])
            return KeyCodes(digits.values, digits.span, digits.absent, digits.exact)
        assert self.span is not None
        code: torch.Tensor | None = None
        absent: torch.Tensor | None = None
        for step in self.steps:
            values, missing = _ranged(step.part.encode(columns[step.column]), step.digit_numbers)
            absent = _either(absent, missing)
            code = values if code is None else _append(code, values, step.radix, step.span)
            if step.code_numbers is not None:
                code, missing = _numbered(code.to(torch.int64), step.code_numbers)
                absent = _either(absent, missing)
        assert code is not None
        if absent is None:
            return KeyCodes(code, self.span, exact=True)
        return KeyCodes(torch.where(absent, self.span, code.to(torch.int64)), self.span)

    def as_range(self, columns: Sequence[Column]) -> RangedKeys | None:
        """Rows of the same key columns, where one column of numbers is all there is to encode."""
        if len(self.steps) != 1 or self.steps[0].digit_numbers is not None:
            return None
        part = self.steps[0].part
        return part.as_range(columns[self.steps[0].column]) if isinstance(part, RangePart) else None


def encode_build(columns: Sequence[Column], null_equal: Sequence[bool]) -> tuple[KeyEncoding, KeyCodes]:
    """The encoding made for these key columns (at least one), and their own codes.

    Rows with a NULL in a column that is not `null_equal` equal nothing, not even themselves.
    """
    columns = [prepared(column) for column in columns]
    parts = _all_parts(columns, null_equal)
    if len(parts) == 1:
        column, part = parts[0]
        encoding = KeyEncoding((_Step(column, part, 0, 0, None, None),), part.span)
        return encoding, encoding.encode(columns)
    return _fold(columns, parts)


def group_words(columns: Sequence[Column]) -> list[KeyCodes]:
    """Codes of rows among themselves: rows are equal, NULL being equal to NULL, where all of these are. There are none
    where all columns are NULL."""
    columns = [materialised(c) if isinstance(c, ViewColumn) else c for c in columns]
    columns = [numbered(c) if isinstance(c, BytesColumn) else prepared(c) for c in columns]
    words: list[KeyCodes] = []
    packed: KeyCodes | None = None
    for column, part in [(key, part) for key in columns for part in parts_among_themselves(key)]:
        digits = part.encode(column)
        if digits.span is None:
            words.append(KeyCodes(digits.values, None, exact=True))
        elif packed is None or packed.span is None or packed.span * digits.span >= SPAN_LIMIT:
            if packed is not None:
                words.append(packed)
            packed = KeyCodes(digits.values, max(1, digits.span), exact=True)
        else:
            radix = max(1, digits.span)
            span = packed.span * radix
            packed = KeyCodes(_append(packed.values, digits.values, radix, span), span, exact=True)
    return words if packed is None else [*words, packed]


def _all_parts(columns: Sequence[Column], null_equal: Sequence[bool]) -> list[tuple[int, KeyPart]]:
    return [
        (position, part)
        for position, (column, equal) in enumerate(zip(columns, null_equal, strict=True))
        for part in parts_of(column, equal)
    ]


def _fold(columns: Sequence[Column], parts: Sequence[tuple[int, KeyPart]]) -> tuple[KeyEncoding, KeyCodes]:
    steps: list[_Step] = []
    code: torch.Tensor | None = None
    absent: torch.Tensor | None = None
    span = 1
    for column, part in parts:
        digits = part.encode(columns[column])
        digit_numbers: HashTable | None = None
        if digits.span is None:
            values, radix, digit_numbers = _number(digits.values)
            missing = digits.absent
        else:
            values, missing = _ranged(digits, None)
            radix = max(1, digits.span)
        absent = _either(absent, missing)
        if code is None:
            code, span = values, radix
        else:
            if span * radix >= SPAN_LIMIT:
                # The earlier columns together have at most as many distinct values as there are rows.
                code, span, numbers = _number(code.to(torch.int64))
                steps[-1] = replace(steps[-1], code_numbers=numbers)
            if span * radix >= SPAN_LIMIT:
                values, radix, digit_numbers = _number(values.to(torch.int64))
            span *= radix
            code = _append(code, values, radix, span)
        steps.append(_Step(column, part, radix, span, digit_numbers, None))
    assert code is not None
    encoding = KeyEncoding(tuple(steps), span)
    if absent is None:
        return encoding, KeyCodes(code, span, exact=True)
    return encoding, KeyCodes(torch.where(absent, span, code.to(torch.int64)), span)


def _append(code: torch.Tensor, digits: torch.Tensor, radix: int, span: int) -> torch.Tensor:
    """code * radix + digits, which is below `span`."""
    dtype = torch.int32 if span < 2**31 else torch.int64
    return as_dtype(code, dtype).mul(radix).add_(as_dtype(digits, dtype))


def _number(values: torch.Tensor) -> tuple[torch.Tensor, int, HashTable]:
    """Numbers of the distinct values, how many there are (at least 1), and the table that finds them."""
    numbering = hash_table.number(values)
    return numbering.numbers, max(1, numbering.first.shape[0]), numbering.table()


def _ranged(digits: Digits, numbers: HashTable | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Digits within their span, and the mask of the rows that had none (None: all had)."""
    if numbers is not None:
        values, missing = _numbered(digits.values.to(torch.int64), numbers)
        return values, _either(digits.absent, missing)
    if digits.exact or digits.span is None:
        return digits.values, digits.absent
    missing = torch.eq(digits.values, digits.span)
    return torch.where(missing, 0, digits.values), missing


def _numbered(values: torch.Tensor, numbers: HashTable) -> tuple[torch.Tensor, torch.Tensor]:
    found = numbers.lookup(values)
    return (found - 1).clamp_(min=0), found == 0


def _either(left: torch.Tensor | None, right: torch.Tensor | None) -> torch.Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left | right
