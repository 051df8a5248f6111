"""What joins and runtime filters put into the programs of one run: their form, which the code depends on, and the
tensors that it looks up.

A form names everything that writing a program reads of a build side or a filter besides those tensors: where a program
was written for the same form, another run's tensors can take the place of those it was written with.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from pystachio.operators.coalesce import Coalesced
from pystachio.operators.column import Column, Dictionary, DictionaryColumn, FixedColumn
from pystachio.operators.joins.build import BuildSide
from pystachio.operators.joins.inequalities import OrderedIndex
from pystachio.operators.joins.probe import JoinProbe
from pystachio.operators.kernels.bounds import with_measured_bounds
from pystachio.operators.kernels.direct import DirectTable
from pystachio.operators.kernels.hash_compiled import KeyTable
from pystachio.operators.kernels.key_parts import CodePart, KeyPart, RangePart, RawPart
from pystachio.operators.kernels.key_sets import BitSet, BloomFilter
from pystachio.operators.kernels.keys import KeyEncoding
from pystachio.operators.kernels.numbering import HashTable
from pystachio.operators.kernels.ranks import RankTable
from pystachio.operators.kernels.row_index import CodeTable, Members, RangeIndex, RowIndex, UniqueIndex
from pystachio.operators.operator import Transform
from pystachio.operators.runtime_filter import RuntimeFilter
from pystachio.operators.scans.rows import FilterUse

NOWHERE: Final = -1


class NotComparable(Exception):
    """What this has in a program is another thing in each run."""


@dataclass(slots=True, eq=False)
class RunParts:
    """Of one run: `form` and `tables` are in an order that depends on the form only; `columns` are those of build sides
    that are put out by their row numbers, `built` all of build sides; `uses` the filters that are useful now."""

    uses: tuple[FilterUse, ...]
    form: list[Hashable] = field(default_factory=list)
    tables: list[torch.Tensor] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    built: list[Column] = field(default_factory=list)
    dictionaries: list[Dictionary] = field(default_factory=list)
    """Those that the form names."""

    @property
    def look(self) -> Hashable:
        """The form, for comparing."""
        return tuple(self.form)

    def look_up(self, table: torch.Tensor) -> None:
        """The next one of `tables`."""
        if not table.is_contiguous():
            raise NotComparable("a program has a copy of it")
        # A program has a tensor once, however often it is there: which ones are the same is part of the form.
        self.form.append((table.dtype, table.shape[0], place_among(table, self.tables)))
        self.tables.append(table)


def place_among(each: object, known: Sequence[object]) -> int:
    """Where the very same object is among those known; NOWHERE if it is not."""
    return next((place for place, other in enumerate(known) if other is each), NOWHERE)


def run_parts(chain: Sequence[Transform], filters: Iterable[FilterUse]) -> RunParts | None:
    """Of the opened operators behind a scan, whose rows the `filters` are still to test; None where something of them
    cannot be compared."""
    parts = RunParts(tuple(use for use in filters if use.is_useful))
    try:
        for use in parts.uses:
            parts.form.append(use.position)
            _add_filter(parts, use.filter)
        for transform in chain:
            while isinstance(transform, Coalesced):
                transform = transform.transform
            if isinstance(transform, JoinProbe):
                _add_side(parts, transform.side)
    except NotComparable:
        return None
    return parts


def _add_filter(parts: RunParts, runtime_filter: RuntimeFilter) -> None:
    if runtime_filter.values is not None:
        raise NotComparable("which texts pass is a table of its own")
    parts.form += (runtime_filter.empty, runtime_filter.bounds)
    match runtime_filter.keys:
        case None:
            parts.form.append(None)
        case BitSet(low=low, span=span, bits=bits):
            parts.form += ("bits", low, span)
            parts.look_up(bits)
        case BloomFilter(words=words):
            parts.form.append("words")
            parts.look_up(words)


def _add_side(parts: RunParts, side: BuildSide) -> None:
    parts.form += (side.rows.length, side.null_keys is None, side.matched is None)
    if side.matched is not None:
        parts.look_up(side.matched)
    for column in side.rows.columns:
        _add_column(parts, column)
    parts.built += side.rows.columns
    if side.encoding is not None:
        _add_encoding(parts, side.encoding)
    # What stands in order is part of no program.
    if side.index is not None and not isinstance(side.index, OrderedIndex):
        _add_index(parts, side.index)


def _add_column(parts: RunParts, column: Column) -> None:
    parts.form += (type(column).__name__, column.validity is None)
    match column:
        case FixedColumn(values=values):
            measured = with_measured_bounds(column)
            assert isinstance(measured, FixedColumn)
            parts.form.append(measured.bounds)
            parts.look_up(values)
        case DictionaryColumn(codes=codes, dictionary=dictionary):
            _add_dictionary(parts, dictionary)
            parts.look_up(codes)
        case _:
            parts.form.append(place_among(column, parts.columns))
            parts.columns.append(column)
    if column.validity is not None:
        parts.look_up(column.validity)


def _add_dictionary(parts: RunParts, dictionary: Dictionary) -> None:
    parts.form.append(dictionary)
    parts.dictionaries.append(dictionary)


def _add_encoding(parts: RunParts, encoding: KeyEncoding) -> None:
    parts.form.append(encoding.span)
    for step in encoding.steps:
        parts.form += (step.column, step.radix, step.span)
        _add_part(parts, step.part)
        _add_table(parts, step.digit_numbers)
        _add_table(parts, step.code_numbers)


def _add_part(parts: RunParts, part: KeyPart) -> None:
    parts.form.append(type(part).__name__)
    match part:
        case RangePart(low=low, span=span, null_digit=null_digit):
            parts.form += (low, span, null_digit)
        case CodePart(dictionary=dictionary, span=span, null_digit=null_digit):
            _add_dictionary(parts, dictionary)
            parts.form += (span, null_digit)
        case RawPart(form=form, null_digit=null_digit):
            parts.form += (form, null_digit)
        case _:
            pass


def _add_index(parts: RunParts, index: RowIndex | Members) -> None:
    parts.form.append(type(index).__name__)
    match index:
        case Members(table=table):
            _add_table(parts, table)
        case UniqueIndex(table=table, rows=rows):
            _add_table(parts, table)
            _add_positions(parts, rows)
        case RangeIndex(groups=groups, offsets=offsets, order=order):
            if order is not None and order.dtype != offsets.dtype:
                raise NotComparable("a program has a copy of the order")
            _add_table(parts, groups)
            parts.form.append(index.most)
            parts.look_up(offsets)
            _add_positions(parts, order)


def _add_positions(parts: RunParts, positions: torch.Tensor | None) -> None:
    parts.form.append(positions is None)
    if positions is not None:
        parts.look_up(positions)


def _add_table(parts: RunParts, table: CodeTable | HashTable | None) -> None:
    parts.form.append(type(table).__name__)
    match table:
        case DirectTable(values=values):
            parts.look_up(values)
        case RankTable(words=words, span=span):
            parts.form.append(span)
            parts.look_up(words)
        case KeyTable(slots=slots):
            parts.look_up(slots)
        case _:
            pass
