"""A join probe as instructions."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import torch

from pystachio.operators.column import Dictionary
from pystachio.operators.fusion.expressions import truth
from pystachio.operators.fusion.membership import in_range
from pystachio.operators.fusion.trace import Form, NotTraceable, Symbol, Trace, table_symbol
from pystachio.operators.joins.inequalities import OrderedIndex
from pystachio.operators.joins.layout import Emission
from pystachio.operators.joins.places import Source
from pystachio.operators.joins.probe import JoinProbe
from pystachio.operators.kernels.direct import DirectTable
from pystachio.operators.kernels.hash_compiled import KeyTable
from pystachio.operators.kernels.instructions import Operation, Register, kind_of
from pystachio.operators.kernels.key_parts import CodePart, KeyPart, NullPart, RangePart, RawForm, RawPart
from pystachio.operators.kernels.keys import KeyEncoding
from pystachio.operators.kernels.numbering import HashTable
from pystachio.operators.kernels.ranks import RankTable
from pystachio.operators.kernels.row_index import CodeTable, Members, RangeIndex, UniqueIndex
from pystachio.operators.kernels.strings import translate

_HIGHEST = 2**63 - 1

_MOST_PAIRS = 1 << 20
"""Of the rows of one vector: what a job does between two chances to cancel it."""


def probe(trace: Trace, join: JoinProbe, fields: Sequence[Symbol | None]) -> list[Symbol | None]:
    """The join's output columns. NotTraceable without keys, for NOT IN, where a row may become very many, or where only
    one of several matches counts."""
    layout, side = join.layout, join.side
    if layout.null_aware or side.encoding is None or side.index is None or isinstance(side.index, OrderedIndex):
        raise NotTraceable("a join without keys, or one that knows NULL")
    emission = layout.emission
    drops = emission in (Emission.PAIRS, Emission.MATCHED, Emission.NOTHING)
    keys = [fields[key] for key in layout.probe_keys]
    code, present = _encode(trace, side.encoding, keys)
    if drops and present is not True:
        trace.filter(present)
        present = True
    if isinstance(side.index, Members):
        member = _is_member(trace, side.index, code, present, side.encoding.span)
        return _emitted(trace, join, fields, member, None)
    if side.rows.length == 0:
        raise NotTraceable("a join with nothing")
    matched: Register | bool = True
    if isinstance(side.index, RangeIndex):
        if emission not in (Emission.PAIRS, Emission.NOTHING) and (
            emission is not Emission.PAIRS_AND_UNMATCHED or layout.residual is not None
        ):
            raise NotTraceable("several matches where one counts")
        found = _expand(trace, side.index, code, present, side.encoding.span, everything=not drops)
    else:
        found = _find(trace, side.index, code, present, side.encoding.span)
    if not drops or not isinstance(side.index, RangeIndex):
        matched = trace.assembler.compute(Operation.RANGE, found, x=1, y=_HIGHEST, is_mask=True)
    if drops:
        trace.filter(matched)
        matched = True
    if layout.residual is not None:
        if not drops and emission is Emission.PAIRS_AND_UNMATCHED:
            raise NotTraceable("a condition of an outer join")
        row = found if drops else _existing(trace, matched, found)
        paired = [
            fields[place.position]
            if place.source is Source.PROBE
            else table_symbol(trace, side.rows.columns[place.position], row, -1)
            for place in layout.residual.places
        ]
        passes = truth(trace, layout.residual.expression, paired)
        if drops:
            trace.filter(passes)
        else:
            matched = trace.both(matched, passes)
    if side.matched is not None:
        if not drops:
            raise NotTraceable("flags of a join that drops nothing")
        trace.assembler.perform(Operation.FLAG, 0, found, trace.assembler.table(side.matched), x=-1)
    return _emitted(trace, join, fields, matched, found)


def _emitted(
    trace: Trace,
    join: JoinProbe,
    fields: Sequence[Symbol | None],
    matched: Register | bool,
    found: Register | None,
) -> list[Symbol | None]:
    layout, side = join.layout, join.side
    extra: Register | None = None
    match layout.emission:
        case Emission.MATCHED:
            trace.filter(matched)
        case Emission.UNMATCHED:
            trace.filter(trace.inverse(matched))
        case Emission.NOTHING:
            trace.filter(False)
        case Emission.PAIRS_AND_UNMATCHED:
            extra = trace.mask(matched)
            assert found is not None
            found = _existing(trace, matched, found)
        case _:
            pass
    output: list[Symbol | None] = []
    for place in layout.output:
        match place.source:
            case Source.PROBE:
                output.append(fields[place.position])
            case Source.MARK:
                output.append(Symbol(pa.bool_(), Form.BOOLEAN, torch.bool, trace.mask(matched)))
            case Source.BUILD:
                assert found is not None
                output.append(table_symbol(trace, side.rows.columns[place.position], found, -1, extra))
    return output


def _existing(trace: Trace, matched: Register | bool, found: Register) -> Register:
    """Some row where there is no match."""
    return trace.assembler.compute(Operation.CHOOSE, trace.mask(matched), found, trace.constant(1))


def _encode(trace: Trace, encoding: KeyEncoding, keys: Sequence[Symbol | None]) -> tuple[Register, Register | bool]:
    """The code of each row's key, and where it may be one of the build side's."""
    code: Register | None = None
    present: Register | bool = True
    for step in encoding.steps:
        symbol = keys[step.column]
        if symbol is None:
            raise NotTraceable("a key that is not there")
        digits, there = _digits(trace, step.part, symbol)
        present = trace.both(present, there)
        if step.digit_numbers is not None:
            digits, there = _numbered(trace, step.digit_numbers, digits)
            present = trace.both(present, there)
        code = digits if code is None else trace.assembler.compute(Operation.APPEND, code, digits, x=step.radix)
        if step.code_numbers is not None:
            code, there = _numbered(trace, step.code_numbers, code)
            present = trace.both(present, there)
    assert code is not None
    return code, present


def _digits(trace: Trace, part: KeyPart, symbol: Symbol) -> tuple[Register, Register | bool]:
    valid = trace.valid(symbol)
    present: Register | bool = True if valid is None else valid
    match part:
        case RangePart(low=low, span=span, null_digit=null_digit):
            if null_digit and valid is not None:
                raise NotTraceable("NULL as a key")
            return _ranged(trace, symbol, low, span - null_digit, present)
        case CodePart(dictionary=dictionary, null_digit=null_digit):
            if null_digit and valid is not None:
                raise NotTraceable("NULL as a key")
            return _coded(trace, symbol, dictionary, present)
        case RawPart(form=RawForm.VALUE, null_digit=null_digit):
            if symbol.form is not Form.INTEGER or (null_digit and valid is not None):
                raise NotTraceable("another key")
            return trace.values(symbol), present
        case NullPart() if valid is None:
            return trace.constant(0), True
        case _:
            raise NotTraceable("another key")


def _ranged(
    trace: Trace, symbol: Symbol, low: int, span: int, present: Register | bool
) -> tuple[Register, Register | bool]:
    if symbol.form is not Form.INTEGER or symbol.bounds is None:
        raise NotTraceable("a key that is no integer")
    values = trace.values(symbol)
    if low <= symbol.bounds[0] and symbol.bounds[1] < low + span and present is True:
        return (values if low == 0 else trace.assembler.compute(Operation.SCALE, values, x=1, y=-low)), present
    inside = in_range(trace, symbol, low, low + span - 1)
    return trace.assembler.compute(Operation.OFFSET, values, x=low, y=span), trace.both(present, inside)


def _coded(
    trace: Trace, symbol: Symbol, dictionary: Dictionary, present: Register | bool
) -> tuple[Register, Register | bool]:
    if symbol.form is not Form.CODES or symbol.dictionary is None:
        raise NotTraceable("a key that is no code")
    codes = trace.values(symbol)
    if symbol.dictionary is dictionary:
        return codes, present
    if len(symbol.dictionary) == 0:
        raise NotTraceable("a dictionary without values")
    mapping = translate(symbol.dictionary, dictionary)
    table = trace.assembler.table(mapping, is_fixed=True)
    mapped = trace.assembler.compute(Operation.GATHER, codes, table, kind=kind_of(mapping.dtype))
    if bool((mapping >= 0).all()):
        return mapped, present
    return mapped, trace.both(present, trace.assembler.compute(Operation.RANGE, mapped, y=_HIGHEST, is_mask=True))


def _numbered(trace: Trace, numbers: HashTable, values: Register) -> tuple[Register, Register | bool]:
    found = _hash_find(trace, numbers, values)
    known = trace.assembler.compute(Operation.RANGE, found, x=1, y=_HIGHEST, is_mask=True)
    return trace.assembler.compute(Operation.SCALE, found, x=1, y=-1), known


def _hash_find(trace: Trace, table: HashTable, keys: Register) -> Register:
    if not isinstance(table, KeyTable):
        raise NotTraceable("a table of another kind")
    return trace.assembler.compute(Operation.HASH_FIND, keys, trace.assembler.table(table.slots), x=len(table.slots))


def _find(trace: Trace, index: UniqueIndex, code: Register, present: Register | bool, span: int | None) -> Register:
    """1 + the position of the row with the key, else 0."""
    found = _number(trace, index.table, code, present, span)
    if index.rows is None:
        return found
    rows = trace.assembler.table(index.rows)
    return trace.assembler.compute(Operation.GATHER, found, rows, kind=kind_of(index.rows.dtype))


def _number(
    trace: Trace, table: CodeTable | HashTable, code: Register, present: Register | bool, span: int | None
) -> Register:
    """1 + the number of the key, else 0."""
    if not isinstance(table, CodeTable):
        found = _hash_find(trace, table, code)
        if present is True:
            return found
        return trace.assembler.compute(Operation.CHOOSE, trace.mask(present), found, trace.constant(0))
    safe = _addressable(trace, table, code, present, span)
    if isinstance(table, RankTable):
        return trace.assembler.compute(Operation.RANK, safe, trace.assembler.table(table.words))
    number = trace.assembler.table(table.values)
    return trace.assembler.compute(Operation.GATHER, safe, number, kind=kind_of(table.values.dtype))


def _expand(
    trace: Trace, index: RangeIndex, code: Register, present: Register | bool, span: int | None, *, everything: bool
) -> Register:
    """1 + the position of each row with the key; with `everything` 0 for a key without one."""
    assembler = trace.assembler
    if index.groups is not None:
        group = _number(trace, index.groups, code, present, span)
    else:
        nowhere = trace.constant(index.offsets.shape[0] - 2)
        group = code if present is True else assembler.compute(Operation.CHOOSE, trace.mask(present), code, nowhere)
    most = index.most
    if trace.multiplied * most > _MOST_PAIRS:
        raise NotTraceable("too many rows of one")
    trace.multiplied *= most
    assembler.step = max(1, min(assembler.step, _MOST_PAIRS // trace.multiplied))
    order = -1 if index.order is None else assembler.table(index.order.to(index.offsets.dtype))
    return assembler.compute(
        Operation.EXPAND_ALL if everything else Operation.EXPAND,
        group,
        assembler.table(index.offsets),
        order,
        kind=kind_of(index.offsets.dtype),
        is_shared=False,
    )


def _is_member(
    trace: Trace, index: Members, code: Register, present: Register | bool, span: int | None
) -> Register | bool:
    if not isinstance(index.table, DirectTable):
        found = _number(trace, index.table, code, present, span)
        return trace.inverse(trace.assembler.compute(Operation.RANGE, found, is_mask=True))
    safe = _addressable(trace, index.table, code, present, span)
    number, size = trace.assembler.table(index.table.values), index.table.values.shape[0]
    return trace.assembler.compute(Operation.MEMBER, safe, number, y=size, is_mask=True)


def _addressable(
    trace: Trace, table: CodeTable, code: Register, present: Register | bool, span: int | None
) -> Register:
    """The code, or `span`, whose slot stands for no key."""
    assert span is not None
    assert table.span >= span
    if present is True:
        return code
    return trace.assembler.compute(Operation.CHOOSE, trace.mask(present), code, trace.constant(span))
