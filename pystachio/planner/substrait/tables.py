"""Substrait's read relations: registered tables by name, and rows that the plan itself holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import pyarrow as pa
from substrait import algebra_pb2, type_pb2

from pystachio.errors import InvalidRequest, NotFound, Unsupported
from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import (
    Cast,
    Expression,
    FieldReference,
    Literal,
    fields_of,
    transform,
)
from pystachio.planner.joins.condition import fields_for, select_fields
from pystachio.planner.logical import Filter, LogicalPlan, Project, Read, UnionAll, Values
from pystachio.planner.substrait.calls import cast, typed_alike
from pystachio.planner.substrait.expressions import Scope, read_condition, read_expression
from pystachio.planner.substrait.literals import read_literal
from pystachio.planner.substrait.reading import Reading
from pystachio.planner.substrait.types import is_plannable, read_type

_ONE_EMPTY_ROW = Values(((),), ())


def read_read(message: algebra_pb2.ReadRel, reading: Reading, depth: int) -> LogicalPlan:
    """A table's rows. A best-effort filter promises nothing, so it is left to the filter above that repeats it."""
    kind = message.WhichOneof("read_type")
    match kind:
        case "named_table":
            return _read_table(message, reading, depth)
        case "virtual_table":
            return _read_values(message, reading, depth)
        case None:
            raise InvalidRequest("a read relation without a source")
        case _:
            raise Unsupported(f"the Substrait source {kind}")


def _read_table(message: algebra_pb2.ReadRel, reading: Reading, depth: int) -> LogicalPlan:
    table = resolve_table(list(message.named_table.names), reading.tables)
    names = top_level_names(message.base_schema)
    positions = [_column(name, table, reading.tables[table]) for name in names]
    declared = _BaseFields(table, reading.tables[table], positions, message.base_schema.struct.types)
    wanted = _projected(message, len(names))
    predicate = None
    if message.HasField("filter"):
        predicate = read_condition(message.filter, _base_scope(declared, reading, depth))
    used = sorted({*wanted, *(frozenset() if predicate is None else fields_of(predicate))}, key=positions.__getitem__)
    return declared.read(used, wanted, predicate)


class _BaseFields:
    """The columns that a plan says a table has, matched by name with those it has.

    Types are looked at when a column is used: a table may have columns of types that the engine lacks.
    """

    def __init__(self, table: str, schema: Schema, positions: Sequence[int], types: Sequence[type_pb2.Type]) -> None:
        self.table, self.positions, self.types = table, positions, types
        self.registered = schema

    def field(self, index: int) -> Field:
        """The field as the table has it."""
        found = self.registered[self.positions[index]]
        if not is_plannable(found.type):
            raise Unsupported(f"the column {found.name} of the type {found.type}")
        return found

    def expression(self, index: int, position: int) -> Expression:
        """The field at `position` of a read, as the type that the plan expects."""
        found, expected = self.field(index), read_type(self.types[index])[0]
        reference = FieldReference(position, found.type)
        if found.type == expected:
            return reference
        named = f"the column {found.name} of the table {self.table}"
        problem = f"{named} is {found.type}, the plan expects {expected}"
        try:
            typed_alike((reference, Literal(None, expected), FieldReference(0, expected)))
        except InvalidRequest:
            raise InvalidRequest(problem) from None
        if _is_rounded(found.type, expected):
            raise InvalidRequest(problem, hint="make the plan anew for the table as it is now, or round in the plan")
        return Cast(reference, expected)

    def read(self, used: list[int], wanted: list[int], predicate: Expression | None) -> LogicalPlan:
        """A read of the columns `used`, filtered, projected to `wanted`."""
        expressions = {index: self.expression(index, position) for position, index in enumerate(used)}
        condition = None if predicate is None else _over_columns(predicate, expressions)
        columns = tuple(self.positions[index] for index in used)
        plan = Read(self.table, columns, tuple(self.registered[column] for column in columns), condition)
        outputs = tuple(expressions[index] for index in wanted)
        if [e.index if isinstance(e, FieldReference) else -1 for e in outputs] == list(range(len(used))):
            return plan
        names = [self.registered[self.positions[index]] for index in wanted]
        schema = tuple(Field(f.name, e.type, f.nullable) for f, e in zip(names, outputs))
        return Project(plan, outputs, schema)


def _is_rounded(stored: pa.DataType, expected: pa.DataType) -> bool:
    """Whether numbers would lose digits behind the point, and nobody would be told: too large ones fail a cast."""
    if pa.types.is_floating(stored):
        return not pa.types.is_floating(expected)
    if pa.types.is_decimal(stored):
        kept = expected.scale if pa.types.is_decimal(expected) else 0
        return not pa.types.is_floating(expected) and bool(kept < stored.scale)
    return False


def _over_columns(predicate: Expression, expressions: Mapping[int, Expression]) -> Expression:
    """A predicate over the base schema as one over the columns that are read."""

    def change(node: Expression) -> Expression:
        return expressions[node.index] if isinstance(node, FieldReference) else node

    return transform(predicate, change)


def _base_scope(declared: _BaseFields, reading: Reading, depth: int) -> Scope:
    """All columns of the base schema; those of types that the engine lacks cannot be compared with anything."""
    fields = []
    for index, position in enumerate(declared.positions):
        registered = declared.registered[position]
        supported = is_plannable(registered.type)
        type_ = read_type(declared.types[index])[0] if supported else registered.type
        fields.append(Field(registered.name, type_, registered.nullable))
    return Scope(Values((), tuple(fields)), reading, depth)


def _projected(message: algebra_pb2.ReadRel, count: int) -> list[int]:
    if not message.HasField("projection"):
        return list(range(count))
    items = message.projection.select.struct_items
    if any(item.HasField("child") for item in items):
        raise Unsupported("a projection inside a nested value")
    positions = [item.field for item in items]
    if any(not 0 <= position < count for position in positions):
        raise InvalidRequest(f"a projection of fields that the table's {count} columns do not have")
    return positions


def resolve_table(names: Sequence[str], tables: Mapping[str, Schema]) -> str:
    """The registered table that a qualified name means: as written, or by its last part."""
    if not names:
        raise InvalidRequest("a table without a name")
    for candidate in (".".join(names), names[-1]):
        if candidate in tables:
            return candidate
    folded = {name.lower(): name for name in tables}
    if names[-1].lower() in folded:
        return folded[names[-1].lower()]
    raise NotFound(f"no table named {names[-1]}", hint=nearest(names[-1], list(tables)))


def _column(name: str, table: str, schema: Schema) -> int:
    known = [f.name for f in schema]
    if name in known:
        return known.index(name)
    folded = [n.lower() for n in known]
    if name.lower() in folded:
        return folded.index(name.lower())
    raise NotFound(f"the table {table} has no column named {name}", hint=nearest(name, known))


def nearest(name: str, known: Sequence[str]) -> str | None:
    """A hint with the name that was probably meant."""
    near = get_close_matches(name.lower(), [k.lower() for k in known], n=1)
    return f"did you mean {next(k for k in known if k.lower() == near[0])}?" if near else None


def top_level_names(schema: type_pb2.NamedStruct) -> list[str]:
    """The names of the columns; Substrait lists those of nested fields among them, depth first."""
    names, at = [], 0
    for type_ in schema.struct.types:
        if at >= len(schema.names):
            raise InvalidRequest("a schema with fewer names than types")
        names.append(schema.names[at])
        at += 1 + _nested_names(type_)
    if at != len(schema.names):
        raise InvalidRequest("a schema with more names than types")
    return names


def _nested_names(type_: type_pb2.Type) -> int:
    count, waiting = 0, [type_]
    while waiting:
        message = waiting.pop()
        match message.WhichOneof("kind"):
            case "struct":
                count += len(message.struct.types)
                waiting.extend(message.struct.types)
            case "list":
                waiting.append(message.list.type)
            case "map":
                waiting.extend((message.map.key, message.map.value))
    return count


def _read_values(message: algebra_pb2.ReadRel, reading: Reading, depth: int) -> LogicalPlan:
    names = top_level_names(message.base_schema)
    table = message.virtual_table
    scope = Scope(_ONE_EMPTY_ROW, reading, depth)
    rows: list[tuple[Expression, ...]] = [tuple(read_literal(f) for f in row.fields) for row in table.values]
    rows += [tuple(read_expression(f, scope) for f in row.fields) for row in table.expressions]
    if any(len(row) != len(names) for row in rows):
        raise InvalidRequest(f"a row of a virtual table without exactly {len(names)} values")
    types = [_value_type(type_, [row[p] for row in rows]) for p, type_ in enumerate(message.base_schema.struct.types)]
    rows = [tuple(cast(value, type_) for value, type_ in zip(row, types)) for row in rows]
    plan = _values(names, types, rows) if all(_is_constant(row) for row in rows) else _computed(names, rows)
    predicate = None
    if message.HasField("filter"):
        predicate = read_condition(message.filter, Scope(plan, reading, depth))
    return _picked(plan, predicate, _projected(message, len(names)))


def _value_type(declared: type_pb2.Type, values: Sequence[Expression]) -> pa.DataType:
    if declared.WhichOneof("kind") != "user_defined":
        return read_type(declared)[0]
    known = [value.type for value in values if not (isinstance(value, Literal) and value.value is None)]
    return known[0] if known else pa.int32()


def _is_constant(row: Sequence[Expression]) -> bool:
    return all(isinstance(value, Literal) for value in row)


def _values(names: Sequence[str], types: Sequence[pa.DataType], rows: Sequence[tuple[Expression, ...]]) -> Values:
    encoded = tuple(tuple(value.value for value in row if isinstance(value, Literal)) for row in rows)
    nullable = [any(row[p] is None for row in encoded) for p in range(len(types))]
    return Values(encoded, tuple(Field(n, t, null) for n, t, null in zip(names, types, nullable)))


def _computed(names: Sequence[str], rows: Sequence[tuple[Expression, ...]]) -> LogicalPlan:
    """Rows of expressions: a projection of one empty row each."""
    parts = []
    for row in rows:
        schema = tuple(Field(name, f.type, True) for name, f in zip(names, fields_for(row, ())))
        parts.append(Project(_ONE_EMPTY_ROW, row, schema))
    return parts[0] if len(parts) == 1 else UnionAll(tuple(parts), parts[0].schema)


def _picked(plan: LogicalPlan, predicate: Expression | None, wanted: list[int]) -> LogicalPlan:
    return select_fields(plan if predicate is None else Filter(plan, predicate), wanted)
