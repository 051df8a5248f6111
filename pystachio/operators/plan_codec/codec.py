"""Physical plans as bytes and back: how a plan reaches the nodes that run a part of it.

A payload is msgpack: the tables and types that occur, the names of the classes with those of their fields, then the
plan's dataclasses as *nodes*, each the number of its class and the values of its fields. A node comes behind those that
it refers to by number, so that an object that is shared stays one object (a spool is one by identity), nothing contains
itself, and reading is a loop. Bytes are never code: classes are those of `classes`, and every value is checked
against its field's annotation, then positions, types and slots against the plan (`check`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from pystachio.errors import DataError, InternalError, Unsupported, shown
from pystachio.operators.batch import Field, Schema
from pystachio.operators.operator import Operator
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec.check import require_consistent
from pystachio.operators.plan_codec.classes import CLASSES, OPERATORS
from pystachio.operators.plan_codec.fields import FieldForm, Mismatch, Reading, Writing, forms_of
from pystachio.operators.plan_codec.types import read_type, storage_of, write_type
from pystachio.operators.table import FileVersion, Table

_VERSION: Final = 1

MOST_BYTES: Final = 8 << 20
MOST_NODES: Final = 1 << 18
MOST_DEEP: Final = 600
MOST_NODES_OF_TREE: Final = 1 << 20
"""Of the tree that a plan is for those who walk it, where shared parts count as often as they occur."""

_Number = Annotated[int, msgspec.Meta(ge=0, lt=MOST_NODES)]


class _WrittenField(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    name: str
    type: list[Any]
    nullable: bool


class _WrittenFile(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    path: str
    size: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    mtime_ns: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _WrittenTable(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    name: str
    schema: tuple[_WrittenField, ...]
    versions: tuple[_WrittenFile, ...]


class _WrittenClass(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    name: str
    fields: tuple[str, ...]


class _Payload(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    version: int
    tables: tuple[_WrittenTable, ...]
    types: list[list[Any]]
    classes: Annotated[tuple[_WrittenClass, ...], msgspec.Meta(max_length=1024)]
    nodes: Annotated[list[list[Any]], msgspec.Meta(max_length=MOST_NODES)]
    root: _Number
    scalars: tuple[_Number, ...]
    names: tuple[str, ...]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Payload)


@dataclass(frozen=True, slots=True)
class TableReference:
    """A table by name, columns and file versions: what a node needs to open the same one."""

    name: str
    schema: Schema
    versions: tuple[FileVersion, ...]

    @staticmethod
    def of(table: Table) -> TableReference:
        """Extension types, which only columns that cannot be read have, are given as what stores them."""
        schema = tuple(Field(field.name, storage_of(field.type), field.nullable) for field in table.schema)
        return TableReference(table.name, schema, table.version)


def encode_plan(plan: PhysicalPlan) -> bytes:
    """The plan as bytes. Unsupported for one that is too large or has text that is not Unicode; InternalError for a
    class that is not registered."""
    writing, tables = Writing(), dict[TableReference, int]()
    classes: dict[type, int] = {}
    nodes: list[list[Any]] = []
    for part in _parts_first((plan.root, *plan.scalars)):
        class_ = type(part)
        row: list[Any] = [classes.setdefault(class_, len(classes))]
        for form in forms_of(class_):
            value = getattr(part, form.name)
            if isinstance(value, Table):
                writing.tables[id(value)] = tables.setdefault(TableReference.of(value), len(tables))
            row.append(_written(class_, form, value, writing))
        writing.nodes[id(part)] = len(nodes)
        nodes.append(row)
        if _is_too_large(*writing.trees.end()):
            raise Unsupported(f"sending a plan nested more than {MOST_DEEP} parts deep, or that repeats so many")
    payload = _Payload(
        _VERSION,
        tuple(map(_write_table, tables)),
        [write_type(type_) for type_ in writing.types],
        tuple(_WrittenClass(class_.__name__, tuple(form.name for form in forms_of(class_))) for class_ in classes),
        nodes,
        writing.nodes[id(plan.root)],
        tuple(writing.nodes[id(scalar)] for scalar in plan.scalars),
        plan.names,
    )
    try:
        encoded = _ENCODER.encode(payload)
    except UnicodeEncodeError as error:
        raise Unsupported(f"sending text that is not Unicode to another node: {shown(error.object)}") from error
    if len(encoded) > MOST_BYTES or len(nodes) > MOST_NODES:
        raise Unsupported(
            f"sending a plan of {len(encoded)} bytes and {len(nodes)} parts: "
            f"at most {MOST_BYTES} bytes and {MOST_NODES} parts",
            hint="put long lists of constants into a table",
        )
    return encoded


def tables_of(payload: bytes) -> tuple[TableReference, ...]:
    """The tables that the plan reads. DataError as `decode_plan`."""
    return tuple(map(_read_table, _payload_of(payload).tables))


def decode_plan(payload: bytes, tables: Mapping[TableReference, Table]) -> PhysicalPlan:
    """The plan, over these tables. DataError, naming the place, for anything that `encode_plan` would not have
    written, and for a table that is missing or is not the one that was planned with."""
    written = _payload_of(payload)
    classes = tuple(map(_read_class, written.classes))
    reading = Reading(
        tuple(_table_for(_read_table(table), tables) for table in written.tables), tuple(map(read_type, written.types))
    )
    for number, row in enumerate(written.nodes):
        reading.nodes.append(_read_node(number, row, classes, reading))
        depth, size = reading.trees.end()
        if _is_too_large(depth, size):
            raise DataError(f"an encoded plan is too deep or too large: part {number}: {depth} deep, {size} parts")
    root, *scalars = (_operator_at(number, reading) for number in (written.root, *written.scalars))
    plan = PhysicalPlan(root, tuple(scalars), written.names)
    _require_bounded(reading, (written.root, *written.scalars))
    require_consistent(plan)
    return plan


def _parts_first(roots: tuple[Operator, ...]) -> Iterator[Any]:
    """Every object of the plan once, behind those that it is made of. Without recursion: trees may be deep."""
    done: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(root, False) for root in reversed(roots)]
    while waiting:
        part, is_ready = waiting.pop()
        if id(part) in done:
            continue
        if is_ready:
            done.add(id(part))
            yield part
            continue
        if CLASSES.get(type(part).__name__) is not type(part):
            raise InternalError(f"a plan has a part that is not registered in plan_classes: {type(part).__name__}")
        waiting.append((part, True))
        below = [one for form in forms_of(type(part)) for one in _objects_in(getattr(part, form.name))]
        waiting.extend((one, False) for one in reversed(below) if id(one) not in done)


def _objects_in(value: Any) -> Iterator[Any]:
    if type(value) is tuple:
        for item in value:
            yield from _objects_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, Table):
        yield value


def _written(class_: type, form: FieldForm, value: Any, writing: Writing) -> Any:
    try:
        return form.form.write(value, writing)
    except Mismatch as error:
        raise InternalError(f"a plan cannot be encoded: {class_.__name__}.{form.name}: {error}") from error


def _payload_of(payload: bytes) -> _Payload:
    if len(payload) > MOST_BYTES:
        raise DataError(f"an encoded plan is larger than {MOST_BYTES} bytes: {len(payload)}")
    try:
        written = _DECODER.decode(payload)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"an encoded plan is malformed: {error}") from error
    if written.version != _VERSION:
        raise DataError(
            f"an encoded plan is of another version: {written.version}, not {_VERSION}",
            hint="run the same release on all nodes",
        )
    return written


def _read_class(written: _WrittenClass) -> tuple[type, tuple[FieldForm, ...]]:
    class_ = CLASSES.get(written.name)
    if class_ is None:
        raise DataError(f"an encoded plan has a class that nobody knows: {shown(written.name)}", hint=_SAME_RELEASE)
    forms = forms_of(class_)
    known = tuple(form.name for form in forms)
    if written.fields != known:
        wrong = next((name for name in (*written.fields, *known) if (name in known) != (name in written.fields)), None)
        what = "its fields in another order" if wrong is None else f"a field too much or too few: {shown(wrong)}"
        raise DataError(f"an encoded plan has the class {written.name} with {what}", hint=_SAME_RELEASE)
    return class_, forms


_SAME_RELEASE: Final = "run the same release on all nodes"


def _read_node(
    number: int, row: list[Any], classes: tuple[tuple[type, tuple[FieldForm, ...]], ...], reading: Reading
) -> Any:
    if not row or type(row[0]) is not int or not 0 <= row[0] < len(classes):
        raise DataError(f"an encoded plan has a part without a class: part {number}: {shown(row[:1])}")
    class_, forms = classes[row[0]]
    if len(row) != len(forms) + 1:
        raise DataError(
            f"an encoded plan has a part with too many or too few values: part {number}, {class_.__name__}: "
            f"{len(row) - 1} of {len(forms)}"
        )
    values = []
    for place, form in enumerate(forms, start=1):
        try:
            values.append(form.form.read(row[place], reading))
        except Mismatch as error:
            raise DataError(
                f"an encoded plan is malformed: part {number}, {class_.__name__}.{form.name}: {error}"
            ) from error
    return class_(*values)


def _operator_at(number: int, reading: Reading) -> Any:
    if number >= len(reading.nodes) or type(reading.nodes[number]) not in OPERATORS:
        raise DataError(f"an encoded plan is malformed: its part {number} is no operator")
    return reading.nodes[number]


def _is_too_large(depth: int, size: int) -> bool:
    return depth > MOST_DEEP or size > MOST_NODES_OF_TREE


def _require_bounded(reading: Reading, roots: tuple[int, ...]) -> None:
    total = sum(reading.trees.sizes[root] for root in roots)
    if total > MOST_NODES_OF_TREE:
        raise DataError(f"an encoded plan is too large: {total} parts")


def _table_for(reference: TableReference, tables: Mapping[TableReference, Table]) -> Table:
    table = tables.get(reference)
    if table is None:
        raise DataError(f"a plan came without one of its tables: {shown(reference.name)}")
    if TableReference.of(table) != reference:
        raise DataError(
            f"a table is not the one that was planned with: {shown(reference.name)}", hint="run the statement again"
        )
    return table


def _write_table(reference: TableReference) -> _WrittenTable:
    return _WrittenTable(
        reference.name,
        tuple(_WrittenField(field.name, write_type(field.type), field.nullable) for field in reference.schema),
        tuple(_WrittenFile(version.path, version.size, version.mtime_ns) for version in reference.versions),
    )


def _read_table(written: _WrittenTable) -> TableReference:
    return TableReference(
        written.name,
        tuple(Field(field.name, read_type(field.type), field.nullable) for field in written.schema),
        tuple(FileVersion(file.path, file.size, file.mtime_ns) for file in written.versions),
    )
