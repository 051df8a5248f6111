"""Work that takes no longer than the way to a worker and back: `Stream.run_small` may do it on the loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from pystachio.operators.batch import Batch, column_nbytes
from pystachio.operators.column import BytesColumn, Column, Dictionary, DictionaryColumn, ViewColumn
from pystachio.operators.expressions import Call, Expression, FieldReference, InList, Literal, ScalarSubquery, children
from pystachio.operators.functions.operands import is_text

BRIEF_SECONDS: Final = 0.0007
"""So long the loop does what a worker would do: about what it takes a worker that sleeps to begin and the loop to hear
of its end, while others use the caches. Jobs under way and transfers wait as long for the loop."""

_MOST_ROWS: Final = 1 << 10
_MOST_BYTES: Final = 1 << 16
MOST_COLUMNS: Final = 24
"""In all batches, or put out: each costs some ten microseconds, whatever its length."""

_LITTLE_BYTES: Final = 32 << 20
_LITTLE_SHARE: Final = 64
"""Of the memory of all plans."""

_MOST_VALUES: Final = 1 << 12
_MOST_VALUE_BYTES: Final = 1 << 20
"""In a dictionary: what is done with codes may first be done with all values, or with each row's."""

_MOST_STEPS: Final = 16
"""Of what is computed for each row; a step over few rows costs some ten microseconds."""
_MOST_SHORT_DIGITS: Final = 18
"""Of decimals that 64 bits hold whatever their values are."""
_COMPARISONS: Final = frozenset(
    (
        "equal",
        "not_equal",
        "lt",
        "lte",
        "gt",
        "gte",
        "is_distinct_from",
        "is_not_distinct_from",
        "is_null",
        "is_not_null",
    )
)
"""Of texts: their cost is known. What makes texts may make long ones, and patterns may be anything."""


def holds_little(nbytes: int, budget: int) -> bool:
    """Whether it may hold so many bytes of the `budget` until what it made of them is put out: giving them back before
    would take another way to a worker."""
    return nbytes <= min(_LITTLE_BYTES, budget // _LITTLE_SHARE)


def is_small(batches: Sequence[Batch]) -> bool:
    """Whether so little is there that it can be grouped, sorted or indexed on the loop."""
    rows = sum(batch.length for batch in batches)
    return rows <= _MOST_ROWS and are_small(column for batch in batches for column in batch.columns)


def are_small(columns: Iterable[Column]) -> bool:
    """The same of columns of few rows."""
    nbytes = count = 0
    for column in columns:
        if isinstance(column, DictionaryColumn) and not _is_short(column.dictionary):
            return False
        nbytes += column_nbytes(column)
        count += 1
    return nbytes <= _MOST_BYTES and count <= MOST_COLUMNS


def are_short(columns: Iterable[Column]) -> bool:
    """Whether rows of these columns, few of which may be taken, have no long texts among them."""
    for column in columns:
        if isinstance(column, DictionaryColumn):
            if not _is_short(column.dictionary):
                return False
        elif isinstance(column, BytesColumn | ViewColumn) and column_nbytes(column) > _MOST_VALUE_BYTES:
            return False
    return True


def is_light(expressions: Iterable[Expression]) -> bool:
    """Whether all of them together are a few steps, of which each costs little for few rows."""
    steps = 0
    waiting = list(expressions)
    while waiting:
        node = waiting.pop()
        if isinstance(node, FieldReference | Literal | ScalarSubquery):
            continue
        parts = children(node)
        steps += len(parts)
        if steps > _MOST_STEPS or is_text(node.type) or _is_long_division(node):
            return False
        is_comparison = isinstance(node, InList) or (isinstance(node, Call) and node.function in _COMPARISONS)
        if not is_comparison and any(is_text(part.type) for part in parts):
            return False
        waiting += parts
    return True


def _is_short(dictionary: Dictionary) -> bool:
    return len(dictionary) <= _MOST_VALUES and column_nbytes(dictionary.values) <= _MOST_VALUE_BYTES


def _is_long_division(node: Expression) -> bool:
    """Products and quotients that 64 bits may not hold take microseconds for each row."""
    is_long = pa.types.is_decimal(node.type) and node.type.precision > _MOST_SHORT_DIGITS
    return is_long and isinstance(node, Call) and node.function in ("multiply", "divide", "modulus")
