"""Evaluate on distinct: an expression that reads one dictionary-coded field runs once per value of the dictionary.

After Hector's compaction (Wu et al., "Hector: An Efficient Programming and Compilation Framework for Implementing
Relational Graph Neural Networks"). The result is kept with the dictionary, so that later batches only gather. An
entry is found by the expression object itself: hashing a long IN list for each batch would cost more than the gather.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import torch

from pystachio.errors import DataError
from pystachio.operators.arrow import literal_at
from pystachio.operators.batch import Batch
from pystachio.operators.column import BytesColumn, Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.expressions import Expression, FieldReference, Literal, children
from pystachio.operators.functions.conditional import choose
from pystachio.operators.functions.operands import constant
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.selection import all_null, device_of, take, with_validity
from pystachio.operators.kernels.strings import index, to_codes

Evaluate = Callable[[Expression, Batch], Column]

# Results of plans that are gone must not pile up with a dictionary that stays.
_KEPT_RESULTS: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class DistinctResult:
    """An expression's value for each value of a dictionary, and for NULL.

    A text result is codes of a dictionary of its own. `true_range` (boolean results without NULLs): the codes for
    which it is true when they are neighbours, as (first, behind the last); comparing codes is cheaper than a gather.
    """

    expression: Expression
    values: Column
    on_null: Literal
    true_range: tuple[int, int] | None = None


def evaluate_on_distinct(expression: Expression, batch: Batch, evaluate: Evaluate) -> Column | None:
    """The expression's value per row, or None where it must be evaluated row by row.

    That is when it reads other than one field, the field has no codes, the dictionary is larger than the batch, or a
    value of the dictionary (which the batch need not hold) makes it fail.
    """
    field = _only_field(expression)
    if field is None:
        return None
    column = batch.columns[field]
    if not isinstance(column, DictionaryColumn) or len(column.dictionary) == 0:
        return None
    known = column.dictionary.derived.get(id(expression))
    if known is None:
        if len(column.dictionary) >= batch.length:
            return None
        known = _evaluate_values(expression, field, column.dictionary, evaluate)
        _keep(column.dictionary, known)
    assert isinstance(known, DistinctResult)
    return None if known.values is _FAILED else _spread(known, column)


# Stands for "some value of the dictionary makes the expression fail".
_FAILED: Final[Column] = FixedColumn(pa.null(), torch.empty(0, dtype=torch.int8))


def _only_field(expression: Expression) -> int | None:
    """The position of the only field that the expression reads, through any number of references."""
    found: int | None = None
    waiting = list(children(expression))
    while waiting:
        node = waiting.pop()
        if isinstance(node, FieldReference):
            if found is not None and found != node.index:
                return None
            found = node.index
        elif not isinstance(node, Literal):
            waiting.extend(children(node))
    return found


def _keep(dictionary: Dictionary, result: DistinctResult) -> None:
    mine = [key for key, value in tuple(dictionary.derived.items()) if isinstance(value, DistinctResult)]
    if len(mine) >= _KEPT_RESULTS:
        dictionary.derived.pop(mine[0], None)
    dictionary.derived[id(result.expression)] = result


def _evaluate_values(expression: Expression, field: int, dictionary: Dictionary, evaluate: Evaluate) -> DistinctResult:
    values = dictionary.values
    try:
        result = evaluate(expression, Batch((values,) * (field + 1), len(values), None))
        null = all_null(values.type, 1, device_of(values), like=values)
        on_null = literal_at(evaluate(expression, Batch((null,) * (field + 1), 1, None)), 0)
    except DataError:
        return DistinctResult(expression, _FAILED, Literal(None, pa.null()))
    if isinstance(result, BytesColumn):
        result = to_codes(result)
    return DistinctResult(expression, result, on_null, _true_range(result))


def _true_range(result: Column) -> tuple[int, int] | None:
    if not isinstance(result, FixedColumn) or result.values.dtype != torch.bool or result.validity is not None:
        return None
    true = primitives(result.values.device).indices_of_true(result.values).tolist()
    if not true:
        return 0, 0
    return (true[0], true[-1] + 1) if true[-1] - true[0] + 1 == len(true) else None


def _spread(known: DistinctResult, column: DictionaryColumn) -> Column:
    """The results of the values, per row."""
    if known.true_range is not None:
        result: Column = FixedColumn(pa.bool_(), _in_range(column, known.true_range))
    else:
        result = take(known.values, index(column.codes))
    if column.validity is None:
        return result
    if known.on_null.value is None:
        both = column.validity if result.validity is None else result.validity & column.validity
        return with_validity(result, both)
    rows, device = len(column), device_of(column)
    chosen = choose([(column.validity, result)], known.on_null, result.type, rows, device)
    return constant(chosen, rows, device) if isinstance(chosen, Literal) else chosen


def _in_range(column: DictionaryColumn, codes: tuple[int, int]) -> torch.Tensor:
    first, end = codes
    kernel = primitives(column.codes.device)
    if first == end:
        return torch.zeros_like(column.codes, dtype=torch.bool)
    if end == first + 1:
        return kernel.compare("equal", column.codes, first)
    if first == 0:
        return kernel.compare("lte", column.codes, end - 1)
    from_first = kernel.compare("gte", column.codes, first)
    return from_first if end == len(column.dictionary) else from_first & kernel.compare("lte", column.codes, end - 1)
