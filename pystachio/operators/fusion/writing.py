"""Writing a segment: stage by stage, as far as programs can do what the stages do."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import torch

from pystachio.operators.aggregation.partial import PartialFold
from pystachio.operators.coalesce import Coalesced
from pystachio.operators.column import Column
from pystachio.operators.filter import FilterTransform
from pystachio.operators.fusion.expressions import truth, value
from pystachio.operators.fusion.filters import passing
from pystachio.operators.fusion.fold import fold
from pystachio.operators.fusion.groups import FoldedGroups
from pystachio.operators.fusion.probe import probe
from pystachio.operators.fusion.segment import OutputColumn, Segment
from pystachio.operators.fusion.trace import Form, Input, Lookup, NotTraceable, Symbol, Trace, input_symbols
from pystachio.operators.joins.probe import JoinProbe
from pystachio.operators.kernels.assembler import TooManyRegisters
from pystachio.operators.kernels.instructions import Operation, Register, kind_of
from pystachio.operators.operator import Transform
from pystachio.operators.project import ProjectTransform
from pystachio.operators.scans.rows import FilterUse, RowReader, ScanRows

Fields = list[Symbol | None]


def write_segment(
    chain: Sequence[Transform],
    columns: Sequence[Column | None],
    first: Sequence[Column | None],
    rows: int,
    scanned: ScanRows | None,
    *,
    in_parts: bool = False,
) -> Segment | None:
    """As much of the chain as a program can do; None when that is nothing, or nothing that pays.

    `columns` are those of a batch, or of `scanned` by position, with ranges in which all to come are expected; `first`
    are the same with their own. `in_parts`: units whose fold has too many states at once may be folded in parts.
    """
    trace = Trace(rows)
    fields = input_symbols(columns)
    types = [None if column is None else column.type for column in columns]
    tested: tuple[FilterUse | None, ...] = ()
    drops = False
    if scanned is not None:
        reader = scanned.reader
        drops = scanned.is_tested
        try:
            tested = (None,) if scanned.is_tested else _write_tests(trace, reader, fields)
        except NotTraceable:
            return None
        if scanned.is_tested:
            trace.boundary()
        else:
            drops = len(tested) > 1 or reader.predicate is not None
        fields = [fields[position] for position in reader.output]
    stages, pays = 0, drops
    folded: FoldedGroups | None = None
    for transform in chain:
        saved = trace.saved()
        try:
            made = _write_stage(trace, transform, fields)
            if isinstance(made, FoldedGroups) and not _may_fit(made, first, rows, scanned, in_parts):
                raise NotTraceable("groups that are too far apart")
        except NotTraceable:
            trace.restore(saved)
            break
        trace.boundary()
        stages += 1
        if isinstance(made, FoldedGroups):
            folded = made
            break
        moves = isinstance(transform, ProjectTransform) and transform.only_moves
        pays = pays or not moves
        drops = drops or not isinstance(transform, ProjectTransform)
        fields = made
    if folded is None and not pays:
        return None
    try:
        outputs = _write_outputs(trace, fields, drops, types) if folded is None else ()
        program = trace.assembler.assemble(trace.boundaries)
    except (NotTraceable, TooManyRegisters):
        return None
    segment = Segment(stages, tested, program, tuple(trace.inputs), outputs, folded, bool(trace.of_rows))
    collect_states(segment, chain)
    return segment


def collect_states(segment: Segment, chain: Sequence[Transform]) -> None:
    """Have the aggregation that the segment folds for put out what it folds, at the end."""
    if segment.folded is not None:
        fold = fold_of(chain[segment.stages - 1])
        assert fold is not None
        fold.kept.append(segment.folded)


def has_room(segment: Segment, chain: Sequence[Transform]) -> bool:
    """Whether the aggregation that the segment folds for, if it does, has room for its states."""
    if segment.folded is None or not segment.folded.is_large:
        return True
    fold = fold_of(chain[segment.stages - 1])
    assert fold is not None
    return fold.has_room(segment.folded.nbytes)


def fold_of(transform: Transform) -> PartialFold | None:
    """The aggregation, if it is one."""
    if isinstance(transform, Coalesced):
        return fold_of(transform.transform)
    return transform if isinstance(transform, PartialFold) else None


def _write_tests(trace: Trace, reader: RowReader, fields: Fields) -> tuple[FilterUse | None, ...]:
    """The predicate of a scan, then its filters, each with a boundary."""
    if reader.predicate is not None:
        trace.filter(truth(trace, reader.predicate, fields))
    trace.boundary()
    tested: list[FilterUse | None] = [None]
    for use in reader.filters:
        if use.is_useful:
            symbol = fields[use.position]
            if symbol is None:
                raise NotTraceable("a column that is not there")
            trace.filter(passing(trace, use.filter, symbol))
            trace.boundary()
            tested.append(use)
    return tuple(tested)


def _may_fit(
    folded: FoldedGroups, columns: Sequence[Column | None], rows: int, scanned: ScanRows | None, in_parts: bool
) -> bool:
    """Whether all rows of a unit can be folded, at once or in parts."""
    if scanned is None:
        return folded.fits(columns, rows)
    rows = scanned.unit_rows
    can_split = in_parts and scanned.piece.survivors is None
    return folded.fits(columns, rows) or (can_split and folded.parts_that_fit(columns, rows) > 1)


def _write_stage(trace: Trace, transform: Transform, fields: Fields) -> Fields | FoldedGroups:
    match transform:
        case Coalesced(transform=inner):
            return _write_stage(trace, inner, fields)
        case ProjectTransform(expressions=expressions):
            return [value(trace, expression, fields) for expression in expressions]
        case FilterTransform(predicate=predicate):
            trace.filter(truth(trace, predicate, fields))
            return fields
        case JoinProbe():
            return probe(trace, transform, fields)
        case PartialFold():
            return fold(trace, transform, fields)
        case _:
            raise NotTraceable(type(transform).__name__)


def _write_outputs(
    trace: Trace, fields: Fields, drops: bool, types: Sequence[pa.DataType | None]
) -> tuple[OutputColumn, ...]:
    """`types` are those of the inputs: one that is put out under another type is copied."""
    outputs: dict[int, OutputColumn] = {}
    row_output: int | None = None
    columns: list[OutputColumn] = []
    for symbol in fields:
        if symbol is None:
            raise NotTraceable("a column that is not there")
        if id(symbol) not in outputs:
            if isinstance(symbol.values, Input) and not drops and types[symbol.values.position] == symbol.type:
                outputs[id(symbol)] = OutputColumn(symbol.type, None, position=symbol.values.position)
            elif symbol.form is Form.OPAQUE and symbol.column is None:
                if row_output is None:
                    row_output = trace.assembler.output(torch.int32)
                    trace.assembler.perform(Operation.PUT_ROW, row_output)
                assert isinstance(symbol.values, Input)
                outputs[id(symbol)] = OutputColumn(symbol.type, row_output, position=symbol.values.position)
            else:
                valid = None if symbol.valid is None else _put(trace, symbol.valid, Form.BOOLEAN, torch.bool)
                values = _put(trace, symbol.values, symbol.form, symbol.dtype)
                dictionary = symbol.dictionary if symbol.form is Form.CODES else None
                outputs[id(symbol)] = OutputColumn(
                    symbol.type, values, valid, column=symbol.column, dictionary=dictionary, bounds=symbol.bounds
                )
        columns.append(outputs[id(symbol)])
    return tuple(columns)


def _put(trace: Trace, origin: Input | Lookup | Register, form: Form, dtype: torch.dtype) -> int:
    number, kind = trace.assembler.output(dtype), kind_of(dtype)
    match origin:
        case Input():
            trace.assembler.perform(Operation.PUT_INPUT, number, trace.input(origin), kind=kind)
        case Lookup(values=values, index=index, shift=shift, is_fixed=is_fixed):
            table = trace.assembler.table(values, is_fixed=is_fixed)
            trace.assembler.perform(Operation.PUT_TABLE, number, index, table, x=shift, kind=kind)
        case Register(is_mask=True):
            trace.assembler.perform(Operation.PUT_MASK, number, origin)
        case Register() if form is Form.FLOAT:
            trace.assembler.perform(Operation.PUT_FLOAT, number, origin, kind=kind)
        case Register():
            trace.assembler.perform(Operation.PUT_INTEGER, number, origin, kind=kind)
    return number
