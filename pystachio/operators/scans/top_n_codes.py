"""Which rows may be among the first of an order by texts: asked of each value of a dictionary, not of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from pystachio.operators.column import Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.distinct import result_on_distinct
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import Expression
from pystachio.operators.kernels import primitives
from pystachio.operators.kernels.host_memory import taken
from pystachio.operators.kernels.strings import index
from pystachio.operators.kernels.thresholds import Threshold


class CodedRows(NamedTuple):
    """Positions (int64, ascending), and whether the rows have passed the predicate."""

    rows: torch.Tensor
    are_tested: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """For each value of the dictionary, whether rows that have it may be before the threshold, or tie with it; if they
    `are_tested`, only such as pass the predicate."""

    threshold: Threshold
    dictionary: Dictionary
    are_candidates: torch.Tensor
    are_tested: bool


class CodeTest:
    """By the codes of the first key. Several threads may ask; what was last worked out serves them all."""

    def __init__(self) -> None:
        self._known: _Candidates | None = None

    def rows(
        self, threshold: Threshold | None, column: Column, start: int, stop: int, test: Expression | None
    ) -> CodedRows | None:
        """Those of the rows [start, stop) of the first key that may stand before the threshold; and only such as pass
        the `test`, a predicate that reads nothing else. None where there are no codes, or fewer rows than values."""
        if threshold is None or not isinstance(column, DictionaryColumn) or column.validity is not None:
            return None
        if not 0 < len(column.dictionary) <= stop - start:
            return None
        known = self._known
        if known is None or known.threshold is not threshold or known.dictionary is not column.dictionary:
            known = self._known = _candidates(threshold, column.dictionary, test, stop - start)
        codes = index(column.codes[start:stop])
        return CodedRows(primitives(codes.device).indices_of_true(taken(known.are_candidates, codes)), known.are_tested)


def _candidates(threshold: Threshold, dictionary: Dictionary, test: Expression | None, rows: int) -> _Candidates:
    each = torch.arange(len(dictionary), dtype=torch.int32)
    before, ties = threshold.keys[0].masks(DictionaryColumn(dictionary.values.type, each, dictionary, None))
    may_be = before | ties
    found = None if test is None else result_on_distinct(test, 0, dictionary, rows, evaluate)
    passing = None if found is None else found.values
    if not isinstance(passing, FixedColumn):
        return _Candidates(threshold, dictionary, torch.from_numpy(may_be), are_tested=False)
    may_be &= passing.values.numpy()
    if passing.validity is not None:
        may_be &= passing.validity.numpy()
    return _Candidates(threshold, dictionary, torch.from_numpy(may_be), are_tested=True)
