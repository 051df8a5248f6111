"""Rows into groups, and the folds of one number per row into one per group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import torch

from pystachio.operators.column import BytesColumn, Column, FixedColumn, ViewColumn
from pystachio.operators.kernels import direct, hash_table, native, primitives
from pystachio.operators.kernels.direct import SLOTS_PER_ROW
from pystachio.operators.kernels.floats import extreme_floats, group_float_sums, group_moments
from pystachio.operators.kernels.hash_compiled import MOST_ROWS, MOST_WORDS, number_runs
from pystachio.operators.kernels.host_memory import as_dtype
from pystachio.operators.kernels.keys import KeyCodes, group_words
from pystachio.operators.kernels.numbering import Numbering
from pystachio.operators.kernels.parts import mix_hashes
from pystachio.operators.kernels.selection import slice_column
from pystachio.operators.kernels.texts import extreme_rows, hash_texts
from pystachio.operators.kernels.views import texts_equal

_SAMPLE_ROWS: Final = 2048
_FEWEST_DENSE_SLOTS: Final = 4096
_DENSE_SLOTS_PER_ROW: Final = 2
"""Up to this many slots folds run over codes as they are; unused slots are dropped from the results."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """`codes` (integers [rows], in [0, slots)) are each row's slot, in int64 `ids`; None: all rows are one group, even
    when there are none.

    `used` are the slots that have rows, ascending; None: all. They are the groups. `representatives` [groups] is the
    position of one row of each (empty when `codes` is None).
    """

    rows: int
    codes: torch.Tensor | None
    slots: int
    used: torch.Tensor | None
    representatives: torch.Tensor
    device: torch.device
    slot_rows: torch.Tensor | None = None
    """int64 [slots]: how many rows each has, if that is known."""

    @cached_property
    def ids(self) -> torch.Tensor | None:
        return None if self.codes is None else as_dtype(self.codes, torch.int64)

    @property
    def groups(self) -> int:
        return self.slots if self.used is None else self.used.shape[0]

    @cached_property
    def row_counts(self) -> torch.Tensor:
        """int64 [groups]."""
        if self.codes is None:
            return torch.full((1,), self.rows, dtype=torch.int64, device=self.device)
        if self.slot_rows is None:
            return self._groups_of(primitives(self.device).group_rows(self.codes, self.slots)[0])
        return self._groups_of(self.slot_rows)

    @property
    def is_trivial(self) -> bool:
        """Whether row i is group i."""
        if self.codes is None or self.groups != self.rows:
            return False
        return torch.equal(
            self.representatives, torch.arange(self.rows, device=self.device).to(self.representatives.dtype)
        )

    @cached_property
    def models(self) -> torch.Tensor:
        """int32 or int64 [rows]: the representative of each row's group."""
        return self.spread(self.representatives).contiguous()

    def sums(self, values: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
        """[groups] of `values` [rows] in the rows that are `kept` (None: all): float64, or int64 for integers of any
        width."""
        if not values.dtype.is_floating_point and self.codes is not None:
            return self._groups_of(primitives(self.device).group_sums(values, self.codes, self.slots, kept))
        if self.codes is not None and self.device.type == "cpu":
            sums = group_float_sums(values, kept, self.codes, self.slots)
            if sums is not None:
                return self._groups_of(sums)
        if kept is not None:
            values = torch.where(kept, values, 0)
        if self.ids is None:
            return values.sum().reshape(1)
        total = torch.zeros(self.slots, dtype=values.dtype, device=self.device)
        return self._groups_of(total.scatter_add_(0, self.ids, values))

    def moments(
        self, values: torch.Tensor, counted: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """float64 [groups] each: how many of the float64 `values` [rows] are `counted` (int8, None: all), their mean,
        and the sum of their squared deviations; None where only `sums` are there for it."""
        found = group_moments(values, counted, self.codes, self.slots) if self.device.type == "cpu" else None
        if found is None:
            return None
        counts, means, squares = (self._groups_of(each) for each in found)
        return counts, means, squares

    def extreme_floats(self, values: torch.Tensor, valid: torch.Tensor | None, *, largest: bool) -> torch.Tensor | None:
        """int64 [groups]: the `ordered_bits` of the lowest or highest valid float, anything where there is none; None
        where only `extremes` are there for it."""
        if self.device.type != "cpu":
            return None
        found = extreme_floats(values, valid, self.codes, self.slots, largest=largest)
        return None if found is None else self._groups_of(found)

    def extreme_texts(self, column: BytesColumn | ViewColumn, *, largest: bool) -> torch.Tensor | None:
        """int64 [groups]: the row with the smallest or largest text, -1 where all are NULL; None where it takes codes
        of the texts to say."""
        found = extreme_rows(column, self.codes, self.slots, largest=largest) if self.device.type == "cpu" else None
        return None if found is None else self._groups_of(found)

    def extremes(self, values: torch.Tensor, initial: int, *, largest: bool) -> torch.Tensor:
        """The largest or smallest of `initial` and the group's integer values: [groups] in their dtype."""
        start = torch.full((self.slots,), initial, dtype=values.dtype, device=self.device)
        if self.codes is None:
            return torch.cat((start, values)).aminmax()[int(largest)].reshape(1)
        return self._groups_of(primitives(self.device).group_extremes(values, self.codes, start, largest=largest))

    def any_of(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """bool [groups]: whether `mask` (None: every row) is true anywhere in the group; None: in all groups."""
        if mask is None:
            if self.codes is None and self.rows == 0:
                return torch.zeros(1, dtype=torch.bool, device=self.device)
            return None
        if self.codes is None:
            return mask.any().reshape(1)
        none = torch.zeros(self.slots, dtype=torch.int8, device=self.device)
        marks = primitives(self.device).group_extremes(mask.view(torch.int8), self.codes, none, largest=True)
        return self._groups_of(marks.view(torch.bool))

    def spread(self, per_group: torch.Tensor) -> torch.Tensor:
        """The value of each row's group: [rows]."""
        if self.ids is None:
            return per_group.expand(self.rows)
        if self.used is None:
            return per_group.index_select(0, self.ids)
        per_slot = torch.zeros(self.slots, dtype=per_group.dtype, device=self.device)
        return per_slot.index_copy_(0, self.used, per_group).index_select(0, self.ids)

    def _groups_of(self, per_slot: torch.Tensor) -> torch.Tensor:
        return per_slot if self.used is None else per_slot.index_select(0, self.used)


def one_group(rows: int, device: torch.device) -> Grouping:
    """All rows together; a group even without rows."""
    return Grouping(rows, None, 1, None, torch.empty(0, dtype=torch.int64, device=device), device)


def group_rows(
    keys: Sequence[Column],
    rows: int,
    device: torch.device,
    *,
    allow_direct: bool,
    runs: np.ndarray | None = None,
    counted: bool = False,
) -> Grouping:
    """Groups of rows with equal `keys` (NULL equals NULL); without keys all rows are one group.

    `runs`: rows of different runs have different keys, see `hash_compiled.number_runs`. `counted`: the number of rows
    of each group will be asked for.
    """
    if not keys:
        return one_group(rows, device)
    texts = [key for key in keys if isinstance(key, BytesColumn | ViewColumn)]
    others = [key for key in keys if not isinstance(key, BytesColumn | ViewColumn)]
    if not texts or (not others and all(isinstance(text, BytesColumn) for text in texts)):
        return _by_codes(keys, rows, device, allow_direct, runs, counted)
    # Text is dear to number and often determined by the other keys (a customer's name by its number): look first.
    left_out = _perhaps_determined(texts, others, rows, device, allow_direct) if others else []
    asked = [text for text in texts if text not in left_out]
    grouping = _by_codes([*others, *_words(asked)], rows, device, allow_direct, runs, counted)
    differing = [text for text in left_out if not texts_equal(text, grouping.models)]
    if differing:
        asked += differing
        grouping = _by_codes([*others, *_words(asked)], rows, device, allow_direct, runs, counted)
    if all(texts_equal(text, grouping.models) for text in asked if isinstance(text, ViewColumn)):
        return grouping
    # Different texts of one hash are next to impossible, but for somebody who makes them.
    return _by_codes(keys, rows, device, allow_direct, runs, counted)


def _words(texts: Sequence[BytesColumn | ViewColumn]) -> list[Column]:
    """Columns that are equal where the texts are, and perhaps elsewhere: one column of hashes stands for all views."""
    views = [text for text in texts if isinstance(text, ViewColumn)]
    words: list[Column] = [text for text in texts if isinstance(text, BytesColumn)]
    if len(views) == 1 and views[0].validity is None:
        words.append(FixedColumn(pa.int64(), hash_texts(views[0])))
    elif views:
        hashes = torch.zeros(len(views[0]), dtype=torch.int64)
        for view in views:
            mix_hashes(hashes, hash_texts(view), view.validity)
        words.append(FixedColumn(pa.int64(), hashes))
    return words


def _perhaps_determined(
    texts: Sequence[BytesColumn | ViewColumn],
    others: Sequence[Column],
    rows: int,
    device: torch.device,
    allow_direct: bool,
) -> list[BytesColumn | ViewColumn]:
    """Those of the texts that may be equal where all `others` are; on a CPU the first rows say so of many."""
    if rows <= 4 * _SAMPLE_ROWS or device.type != "cpu":
        return list(texts)
    sample = [slice_column(column, 0, _SAMPLE_ROWS) for column in others]
    models = _by_codes(sample, _SAMPLE_ROWS, device, allow_direct).models
    found: list[BytesColumn | ViewColumn] = []
    for text in texts:
        first = slice_column(text, 0, _SAMPLE_ROWS)
        assert isinstance(first, BytesColumn | ViewColumn)
        if texts_equal(first, models):
            found.append(text)
    return found


def _by_codes(
    keys: Sequence[Column],
    rows: int,
    device: torch.device,
    allow_direct: bool,
    runs: np.ndarray | None = None,
    counted: bool = False,
) -> Grouping:
    words = group_words(keys)
    if not words:
        words = [KeyCodes(torch.zeros(rows, dtype=torch.int32, device=device), 1, exact=True)]
    library = native.library()
    in_runs = runs is not None and library is not None and rows <= MOST_ROWS and len(words) <= MOST_WORDS
    if len(words) > 1 and not in_runs:
        numbers, first, counts = primitives(device).number_words([word.values.to(torch.int64) for word in words])
        return Grouping(rows, numbers, first.shape[0], None, first, device, counts)
    codes = words[0]
    if len(words) == 1 and allow_direct and codes.span is not None:
        if codes.span <= max(_FEWEST_DENSE_SLOTS, _DENSE_SLOTS_PER_ROW * rows):
            return _dense(codes.values, codes.span, rows)
        in_runs = in_runs and codes.span > SLOTS_PER_ROW * rows
    if in_runs:
        assert library is not None
        assert runs is not None
        numbers, first, known = number_runs(
            library, [as_dtype(word.values, torch.int64) for word in words], runs, counted=counted
        )
        return Grouping(rows, numbers, first.shape[0], None, first, device, known)
    numbering = _numbering(codes, allow_direct)
    first = numbering.first
    return Grouping(rows, numbering.numbers, first.shape[0], None, first, device)


def _dense(codes: torch.Tensor, span: int, rows: int) -> Grouping:
    counts, holders = primitives(codes.device).group_rows(codes, span)
    used = primitives(codes.device).indices_of_true(holders != 0)
    if used.shape[0] == span:
        return Grouping(rows, codes, span, None, holders - 1, codes.device, counts)
    return Grouping(rows, codes, span, used, holders.index_select(0, used) - 1, codes.device, counts)


def _numbering(codes: KeyCodes, allow_direct: bool) -> Numbering:
    # The table is needed once: unlike a join's it does not pay when few of its slots are used.
    if allow_direct and codes.span is not None and codes.span <= SLOTS_PER_ROW * codes.values.shape[0]:
        return direct.number(codes.values, codes.span)
    return hash_table.number(codes.values.to(torch.int64))
