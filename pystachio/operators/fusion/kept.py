"""Programs that one run of a plan has written and the next one would write again: of scans and what is behind them up
to a fold.

They depend on the plan, on what the columns look like, and on the form of what joins and runtime filters have put into
them (`run_parts`), whose tensors each run replaces by its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from pystachio.operators.aggregation.partial import PartialFold
from pystachio.operators.batch import column_nbytes
from pystachio.operators.coalesce import Coalesced
from pystachio.operators.column import Bounds, Column, DictionaryColumn
from pystachio.operators.filter import FilterTransform
from pystachio.operators.fusion.prepared import are_within
from pystachio.operators.fusion.run_parts import NOWHERE, RunParts, place_among
from pystachio.operators.fusion.segment import OutputColumn, Segment
from pystachio.operators.joins.probe import JoinProbe
from pystachio.operators.operator import Transform
from pystachio.operators.project import ProjectTransform
from pystachio.operators.scans.rows import RowReader
from pystachio.records import record

_MOST_KEPT: Final = 8
"""Chains of a scan, looks of a chain, and programs of a look."""
_MOST_SEEN: Final = 64
_MOST_TABLE_BYTES: Final = 1 << 16
_MOST_DICTIONARY_BYTES: Final = 1 << 21
"""A look holds its dictionaries, of which a table that grows has another one for each look."""

_NO_TABLE: Final = torch.empty(0)


@record(eq=False)
class Written:
    """What was made of columns of certain forms within `bounds` (by position; None where there are none)."""

    bounds: tuple[Bounds | None, ...]
    segment: Segment | None


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """What was written, without what belongs to a run: `tables` and `columns` say which of a run's are in the places of
    the program's tables and of the columns put out, None where those are the same in each run; `rows` which of those
    built are in the places of `FoldedGroups.rows`."""

    written: Written
    tables: tuple[int | None, ...]
    columns: tuple[int | None, ...]
    rows: tuple[tuple[int, ...], ...] = ()

    def of_run(self, run: RunParts) -> Written:
        """For a run with parts of the same form."""
        segment = self.written.segment
        if segment is None:
            return self.written
        tables = tuple(
            known if place is None else run.tables[place]
            for known, place in zip(segment.program.tables, self.tables, strict=True)
        )
        of_run = Segment(
            segment.stages,
            segment.tested[:1] + run.uses,
            segment.program.with_tables(tables),
            segment.inputs,
            _with_columns(segment.columns, [None if n is None else run.columns[n] for n in self.columns]),
            None
            if segment.folded is None
            else segment.folded.without_states(tuple(run.built[n] for n in places) for places in self.rows),
        )
        return Written(self.written.bounds, of_run)


@dataclass(frozen=True, slots=True, eq=False)
class KeptSegments:
    """Those of one chain behind a scan, by what the columns look like. `parts` of the plan are what it is made of."""

    parts: tuple[object, ...]
    by_look: dict[Hashable, list[_Kept]]
    seen: set[int]
    """Hashes of looks: what was seen once may never come again, and nothing of it is held."""

    def find(self, look: Hashable, columns: Sequence[Column | None], run: RunParts) -> Written | None:
        """One that an earlier run has kept, with this run's parts."""
        kept = next((kept for kept in self.by_look.get(look, ()) if are_within(columns, kept.written.bounds)), None)
        return None if kept is None else kept.of_run(run)

    def keep(self, look: Hashable, columns: Sequence[Column | None], written: Written, run: RunParts) -> None:
        """For later runs, if it takes little memory, and from the second time on: dictionaries that grow, or are made
        anew in each run, make looks that come once."""
        number = hash(look)
        if number not in self.seen:
            if len(self.seen) >= _MOST_SEEN:
                self.seen.clear()
            self.seen.add(number)
            return
        kept = _kept(written, run)
        if kept is None:
            return
        tables = () if kept.written.segment is None else kept.written.segment.program.tables
        dictionaries = {column.dictionary for column in columns if isinstance(column, DictionaryColumn)}
        held = sum(column_nbytes(dictionary.values) for dictionary in dictionaries.union(run.dictionaries))
        if sum(table.nbytes for table in tables) <= _MOST_TABLE_BYTES and held <= _MOST_DICTIONARY_BYTES:
            if len(self.by_look) >= _MOST_KEPT and look not in self.by_look:
                self.by_look.clear()
            alike = self.by_look.setdefault(look, [])
            if len(alike) >= _MOST_KEPT:
                alike.clear()
            alike.append(kept)


def kept_segments(reader: RowReader, chain: Sequence[Transform]) -> KeptSegments:
    """What the runs of the plan keep for each other of a scan and the chain behind it, as far as programs may go."""
    parts: list[object] = [reader.predicate]
    for transform in chain:
        part = _part(transform)
        if part is None:
            break
        parts += part
        if isinstance(_inner(transform), PartialFold):
            break
    key = (reader.output, *map(id, parts))
    kept = reader.kept.get(key)
    if kept is None:
        if len(reader.kept) >= _MOST_KEPT:
            reader.kept.clear()
        # With the parts, so that no others ever have their identities.
        kept = reader.kept[key] = KeptSegments(tuple(parts), {}, set())
    assert isinstance(kept, KeptSegments)
    return kept


def _inner(transform: Transform) -> Transform:
    return _inner(transform.transform) if isinstance(transform, Coalesced) else transform


def _part(transform: Transform) -> tuple[object, ...] | None:
    """The part of the plan that an opened operator is made of; None for those that no program does."""
    match _inner(transform):
        case ProjectTransform(expressions=expressions):
            return expressions
        case FilterTransform(predicate=predicate):
            return (predicate,)
        case JoinProbe(layout=layout):
            return (layout,)
        case PartialFold(plan=plan, allow_direct=allow_direct):
            return plan, allow_direct
        case _:
            return None


def _kept(written: Written, run: RunParts) -> _Kept | None:
    """The segment without the tensors and columns of `run`; None where something else of the run may be in it."""
    segment = written.segment
    if segment is None:
        return _Kept(written, (), ())
    if segment.is_of_run:
        return None
    program = segment.program
    tables = [
        None if fixed else place_among(t, run.tables) for t, fixed in zip(program.tables, program.fixed, strict=True)
    ]
    columns = [None if each.column is None else place_among(each.column, run.columns) for each in segment.columns]
    folded = segment.folded
    rows = () if folded is None else tuple(tuple(place_among(c, run.built) for c in of) for of in folded.rows)
    if (
        NOWHERE in tables
        or NOWHERE in columns
        or any(NOWHERE in places for places in rows)
        or segment.tested[1:] != run.uses
    ):
        return None
    bare = replace(
        segment,
        tested=segment.tested[:1],
        program=replace(
            program,
            tables=tuple(t if place is None else _NO_TABLE for t, place in zip(program.tables, tables, strict=True)),
        ),
        columns=_with_columns(segment.columns, [None] * len(columns)),
        folded=None if folded is None else folded.without_states(() for _ in rows),
    )
    return _Kept(Written(written.bounds, bare), tuple(tables), tuple(columns), rows)


def _with_columns(outputs: Sequence[OutputColumn], columns: Sequence[Column | None]) -> tuple[OutputColumn, ...]:
    """The same outputs, put out of these columns. One that is there several times stays one."""
    made: dict[int, OutputColumn] = {}
    for output, column in zip(outputs, columns, strict=True):
        if id(output) not in made:
            made[id(output)] = output if output.column is column else replace(output, column=column)
    return tuple(made[id(output)] for output in outputs)
