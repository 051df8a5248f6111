"""Programs that one run of a plan has written and the next one would write again: of scans and what is behind them up
to a fold, where no join is on the way.

They depend on nothing but the plan and on what the columns look like. What joins and runtime filters put into a program
is another in each run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pystachio.operators.aggregation.partial import PartialFold
from pystachio.operators.batch import column_nbytes
from pystachio.operators.coalesce import Coalesced
from pystachio.operators.column import Bounds, Column, DictionaryColumn, FixedColumn
from pystachio.operators.filter import FilterTransform
from pystachio.operators.fusion.segment import Segment
from pystachio.operators.kernels.bounds import is_within
from pystachio.operators.operator import Transform
from pystachio.operators.project import ProjectTransform
from pystachio.operators.scans.rows import RowReader

_MOST_KEPT: Final = 8
"""Chains of a scan, looks of a chain, and programs of a look."""
_MOST_TABLE_BYTES: Final = 1 << 16
_MOST_DICTIONARY_BYTES: Final = 1 << 18
"""A look holds its dictionaries, of which a table that grows has another one for each look."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What was made of columns of certain forms within `bounds` (by position; None where there are none)."""

    bounds: tuple[Bounds | None, ...]
    segment: Segment | None

    def covers(self, columns: Sequence[Column | None]) -> bool:
        """Whether the columns, which look the same, are within the bounds."""
        return all(
            known is None
            or (isinstance(column, FixedColumn) and column.bounds is not None and is_within(column.bounds, known))
            for column, known in zip(columns, self.bounds, strict=True)
        )

    def without_states(self) -> Written:
        """The same for another run."""
        if self.segment is None or self.segment.folded is None:
            return self
        return Written(self.bounds, replace(self.segment, folded=self.segment.folded.without_states()))


@dataclass(frozen=True, slots=True, eq=False)
class KeptSegments:
    """Those of one chain behind a scan, by what the columns look like. `parts` of the plan are what it is made of."""

    parts: tuple[object, ...]
    by_look: dict[Hashable, list[Written]]

    def find(self, look: Hashable, columns: Sequence[Column | None]) -> Written | None:
        """One that an earlier run has kept, without its states."""
        kept = next((written for written in self.by_look.get(look, ()) if written.covers(columns)), None)
        return None if kept is None else kept.without_states()

    def keep(self, look: Hashable, columns: Sequence[Column | None], written: Written) -> None:
        """For later runs, if it takes little memory."""
        tables = () if written.segment is None else written.segment.program.tables
        dictionaries = {column.dictionary for column in columns if isinstance(column, DictionaryColumn)}
        held = sum(column_nbytes(dictionary.values) for dictionary in dictionaries)
        if sum(table.nbytes for table in tables) <= _MOST_TABLE_BYTES and held <= _MOST_DICTIONARY_BYTES:
            if len(self.by_look) >= _MOST_KEPT and look not in self.by_look:
                self.by_look.clear()
            kept = self.by_look.setdefault(look, [])
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            kept.append(written.without_states())


def kept_segments(reader: RowReader, chain: Sequence[Transform]) -> KeptSegments | None:
    """What the runs of the plan keep for each other of a scan and the chain behind it; None where that is nothing."""
    if reader.filters:
        return None
    parts: list[object] = [reader.predicate]
    for transform in chain:
        part = _part(transform)
        if part is None:
            return None
        parts += part
        if isinstance(_inner(transform), PartialFold):
            break
    key = (reader.output, *map(id, parts))
    kept = reader.kept.get(key)
    if kept is None:
        if len(reader.kept) >= _MOST_KEPT:
            reader.kept.clear()
        # With the parts, so that no others ever have their identities.
        kept = reader.kept[key] = KeptSegments(tuple(parts), {})
    assert isinstance(kept, KeptSegments)
    return kept


def _inner(transform: Transform) -> Transform:
    return _inner(transform.transform) if isinstance(transform, Coalesced) else transform


def _part(transform: Transform) -> tuple[object, ...] | None:
    """The part of the plan that an opened operator is made of; None where that is not all."""
    match _inner(transform):
        case ProjectTransform(expressions=expressions):
            return expressions
        case FilterTransform(predicate=predicate):
            return (predicate,)
        case PartialFold(plan=plan, allow_direct=allow_direct):
            return plan, allow_direct
        case _:
            return None
