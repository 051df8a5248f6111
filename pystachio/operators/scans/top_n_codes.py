"""Which rows may be among the first of an order by texts: asked of each value of a dictionary, not of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from pystachio.operators.column import Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.distinct import result_on_distinct
from pystachio.operators.evaluate import evaluate
from pystachio.operators.expressions import Expression
from pystachio.operators.kernels.coded_rows import rows_of_codes
from pystachio.operators.kernels.thresholds import Threshold


class CodedRows(NamedTuple):
    rows: torch.Tensor
    """Positions, int64, ascending."""
    are_before: bool
    """Whether all of them stand before the threshold; else other keys decide of those that tie in the first."""
    are_tested: bool
    """Whether they have passed the predicate."""


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """For each value of the dictionary, whether rows that have it are before the threshold, and whether they are or tie
    with it; if they `are_tested`, only such as pass the predicate."""

    threshold: Threshold
    dictionary: Dictionary
    before: torch.Tensor
    before_or_tie: torch.Tensor
    are_tested: bool


class CodeTest:
    """By the codes of the first key. Several threads may ask; what was last worked out serves them all."""

    def __init__(self) -> None:
        self._known: _Candidates | None = None

    def rows(
        self, threshold: Threshold | None, column: Column, start: int, stop: int, first: int, test: Expression | None
    ) -> CodedRows | None:
        """Those of the rows [start, stop) of the first key that may stand before the threshold; and only such as pass
        the `test`, a predicate that reads nothing else. None where there are no codes, or fewer rows than values.

        `first` is the number of the row at `start`."""
        if threshold is None or not isinstance(column, DictionaryColumn) or column.validity is not None:
            return None
        if not 0 < len(column.dictionary) <= stop - start:
            return None
        known = self._known
        if known is None or known.threshold is not threshold or known.dictionary is not column.dictionary:
            known = self._known = _candidates(threshold, column.dictionary, test, stop - start)
        is_only_key = len(threshold.keys) == 1
        ties_count = not is_only_key or first <= threshold.number
        wanted = known.before_or_tie if ties_count else known.before
        return CodedRows(rows_of_codes(column.codes[start:stop], wanted), is_only_key, known.are_tested)


def _candidates(threshold: Threshold, dictionary: Dictionary, test: Expression | None, rows: int) -> _Candidates:
    before, ties = threshold.keys[0].masks_of_values(dictionary)
    found = None if test is None else result_on_distinct(test, 0, dictionary, rows, evaluate)
    passing = None if found is None else found.values
    are_tested = isinstance(passing, FixedColumn)
    if isinstance(passing, FixedColumn):
        true = passing.values.numpy() if passing.validity is None else (passing.values & passing.validity).numpy()
        before, ties = before & true, ties & true
    return _Candidates(threshold, dictionary, torch.from_numpy(before), torch.from_numpy(before | ties), are_tested)
