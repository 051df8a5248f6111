"""Evaluate on distinct: an expression that reads one dictionary-coded field runs once per value of the dictionary.

After Hector's compaction (Wu et al., "Hector: An Efficient Programming and Compilation Framework for Implementing
Relational Graph Neural Networks"). The result is kept with the dictionary, so that later batches only gather, and
other plans too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import DataError, InvalidRequest
from pystachio.operators.arrow import literal_at
from pystachio.operators.batch import Batch, column_nbytes
from pystachio.operators.column import BytesColumn, Column, Dictionary, DictionaryColumn, FixedColumn, ViewColumn
from pystachio.operators.expressions import Expression, FieldReference, Literal, children
from pystachio.operators.functions.conditional import choose
from pystachio.operators.functions.operands import constant
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.selection import all_null, device_of, take, with_validity
from pystachio.operators.kernels.strings import index, to_codes
from pystachio.operators.placement import column_on

Evaluate = Callable[[Expression, Batch], Column]

# Results of plans that are gone must not pile up with a dictionary that stays.
_KEPT_RESULTS: Final = 64
# Larger expressions (long IN lists) are found by identity: hashing them for each batch would cost more than it saves.
_HASHED_NODES: Final = 64
# Up to this many ranges of codes are compared; for more, a gather from a table is cheaper.
_COMPARED_RANGES: Final = 4

# A dictionary of so few is worth it even for less rows: those of the next run find the result.
_FEW_VALUES: Final = 1024
_FEW_BYTES: Final = 1 << 16

CodeRanges = tuple[tuple[int, int], ...]
"""Codes by their first and last."""


@dataclass(frozen=True, slots=True, eq=False)
class DistinctResult:
    """An expression's value for each value of a dictionary, and for NULL.

    A text result is codes of a dictionary of its own. `true_codes` (boolean results without NULLs): the codes for
    which it is true, when they are few ranges; comparing codes is many times cheaper than a gather. `values` are on
    the host, `copies` of them where codes have been.
    """

    expression: Expression
    values: Column
    on_null: Literal
    true_codes: CodeRanges | None = None
    copies: dict[torch.device, Column] = field(default_factory=dict)

    def on(self, device: torch.device) -> Column:
        """The values where codes are."""
        if device.type == "cpu":
            return self.values
        found = self.copies.get(device)
        return self.copies.setdefault(device, column_on(self.values, device)) if found is None else found


def is_as_large(dictionary: Dictionary, rows: int) -> bool:
    """Whether it takes no less to look into the dictionary's values than into those of so many rows."""
    if len(dictionary) < rows:
        return False
    return rows == 0 or len(dictionary) >= _FEW_VALUES or column_nbytes(dictionary.values) > _FEW_BYTES


def evaluate_on_distinct(expression: Expression, batch: Batch, evaluate: Evaluate) -> Column | None:
    """The expression's value per row, or None where it must be evaluated row by row.

    That is when it reads other than one field, the field has no codes, the dictionary is as large as the batch, or a
    value of the dictionary (which the batch need not hold) makes it fail.
    """
    position, size = _only_field(expression)
    if position is None:
        return None
    column = batch.columns[position]
    if not isinstance(column, DictionaryColumn):
        return None
    known = _result(expression, size, position, column.dictionary, batch.length, evaluate)
    return None if known is None else _spread(known, column)


def result_on_distinct(
    expression: Expression, position: int, dictionary: Dictionary, rows: int, evaluate: Evaluate
) -> DistinctResult | None:
    """The expression over the field at `position`, the only one that it reads, for each value of the dictionary.

    None as in `evaluate_on_distinct`; `rows` are those of a batch.
    """
    return _result(expression, _only_field(expression)[1], position, dictionary, rows, evaluate)


def _result(
    expression: Expression, size: int, position: int, dictionary: Dictionary, rows: int, evaluate: Evaluate
) -> DistinctResult | None:
    if len(dictionary) == 0:
        return None
    key = expression if size <= _HASHED_NODES else id(expression)
    known = dictionary.derived.get(key)
    if known is None:
        if is_as_large(dictionary, rows):
            return None
        known = _evaluate_values(expression, position, dictionary, evaluate)
        _keep(dictionary, key, known)
    assert isinstance(known, DistinctResult)
    return None if known.values is _FAILED else known


# Stands for "some value of the dictionary makes the expression fail".
_FAILED: Final[Column] = FixedColumn(pa.null(), torch.empty(0, dtype=torch.int8))


def _only_field(expression: Expression) -> tuple[int | None, int]:
    """The position of the only field that the expression reads (through any number of references), and its nodes."""
    found: int | None = None
    waiting, size = list(children(expression)), 1
    while waiting:
        node = waiting.pop()
        size += 1
        if isinstance(node, FieldReference):
            if found is not None and found != node.index:
                return None, size
            found = node.index
        elif not isinstance(node, Literal):
            waiting.extend(children(node))
    return found, size


def _keep(dictionary: Dictionary, key: object, result: DistinctResult) -> None:
    """Under its expression, or under the id of the expression, which the result keeps alive."""
    mine = [other for other, value in tuple(dictionary.derived.items()) if isinstance(value, DistinctResult)]
    if len(mine) >= _KEPT_RESULTS:
        dictionary.derived.pop(mine[0], None)
    dictionary.derived[key] = result


def _evaluate_values(
    expression: Expression, position: int, dictionary: Dictionary, evaluate: Evaluate
) -> DistinctResult:
    values = dictionary.values
    try:
        result = evaluate(expression, Batch((values,) * (position + 1), len(values), None))
        null = all_null(values.type, 1, device_of(values), like=values)
        on_null = literal_at(evaluate(expression, Batch((null,) * (position + 1), 1, None)), 0)
    except (DataError, InvalidRequest):
        return DistinctResult(expression, _FAILED, Literal(None, pa.null()))
    if isinstance(result, BytesColumn | ViewColumn):
        result = to_codes(result)
    return DistinctResult(expression, result, on_null, _true_codes(result))


def _true_codes(result: Column) -> CodeRanges | None:
    if not isinstance(result, FixedColumn) or result.values.dtype != torch.bool or result.validity is not None:
        return None
    codes = primitives(result.values.device).indices_of_true(result.values)
    if not codes.shape[0]:
        return ()
    last = torch.nonzero(codes.diff() != 1).view(-1)
    if last.shape[0] >= _COMPARED_RANGES:
        return None
    ends = [*codes[last].tolist(), int(codes[-1])]
    return tuple(zip([int(codes[0]), *codes[last + 1].tolist()], ends, strict=True))


def _spread(known: DistinctResult, column: DictionaryColumn) -> Column:
    """The results of the values, per row."""
    if known.true_codes is not None:
        result: Column = FixedColumn(pa.bool_(), _in_ranges(column, known.true_codes))
    else:
        result = take(known.on(column.codes.device), index(column.codes))
    if column.validity is None:
        return result
    if known.on_null.value is None:
        both = column.validity if result.validity is None else result.validity & column.validity
        return with_validity(result, both)
    rows, device = len(column), device_of(column)
    chosen = choose([(column.validity, result)], known.on_null, result.type, rows, device)
    return constant(chosen, rows, device) if isinstance(chosen, Literal) else chosen


def _in_ranges(column: DictionaryColumn, ranges: CodeRanges) -> torch.Tensor:
    if not ranges:
        return torch.zeros_like(column.codes, dtype=torch.bool)
    return reduce(torch.bitwise_or, [_in_range(column, first, last) for first, last in ranges])


def _in_range(column: DictionaryColumn, first: int, last: int) -> torch.Tensor:
    kernel = primitives(column.codes.device)
    # The dictionary may have grown since the codes were stored: what they cannot say is not looked for in them.
    most = min(len(column.dictionary) - 1, torch.iinfo(column.codes.dtype).max)
    if first > most:
        return torch.zeros_like(column.codes, dtype=torch.bool)
    if first == last:
        return kernel.compare("equal", column.codes, first)
    if first == 0:
        return kernel.compare("lte", column.codes, min(last, most))
    from_first = kernel.compare("gte", column.codes, first)
    return from_first if last >= most else from_first & kernel.compare("lte", column.codes, last)
