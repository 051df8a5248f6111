"""The typed logical plan: what the query means, without how. Plain frozen data; equal sub-plans compare equal.

Fields are positions in the input's schema (a join's input is its left fields, then its right fields).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import AggregateCall, Expression, JoinKind, SortKey


@dataclass(frozen=True, slots=True)
class Read:
    """Rows of the registered table. `columns` are positions in the table's schema; `predicate` is over `columns`."""

    table: str
    columns: tuple[int, ...]
    schema: Schema
    predicate: Expression | None = None


@dataclass(frozen=True, slots=True)
class Values:
    """Constant rows, each a tuple of literal values in the encoding of `expressions.Literal`."""

    rows: tuple[tuple[Any, ...], ...]
    schema: Schema


@dataclass(frozen=True, slots=True)
class Filter:
    input: LogicalPlan
    predicate: Expression

    @property
    def schema(self) -> Schema:
        return self.input.schema


@dataclass(frozen=True, slots=True)
class Project:
    """One output field per expression."""

    input: LogicalPlan
    expressions: tuple[Expression, ...]
    schema: Schema


@dataclass(frozen=True, slots=True)
class Join:
    """Equality on pairs of fields (`left_keys[i]` of left, `right_keys[i]` of right; NULLs are equal where
    `null_equal[i]`) and `residual` over left fields then right fields. No keys: a nested-loop join.

    `null_aware` (ANTI only, one key): NOT IN semantics.
    """

    left: LogicalPlan
    right: LogicalPlan
    kind: JoinKind
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_equal: tuple[bool, ...]
    residual: Expression | None = None
    null_aware: bool = False

    @property
    def schema(self) -> Schema:
        return join_schema(self.left.schema, self.right.schema, self.kind)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One row per distinct value of the fields `keys` (NULLs are one group); keys first, then one field per call.

    No keys: exactly one row. Several `grouping_sets` (each a tuple of positions in `keys`) put NULL in the keys that
    a set leaves out and append an int32 field: the index of the set.
    """

    input: LogicalPlan
    keys: tuple[int, ...]
    calls: tuple[AggregateCall, ...]
    schema: Schema
    grouping_sets: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Sort:
    input: LogicalPlan
    keys: tuple[SortKey, ...]

    @property
    def schema(self) -> Schema:
        return self.input.schema


@dataclass(frozen=True, slots=True)
class Limit:
    """Skip `offset` rows, then at most `count` (None: all)."""

    input: LogicalPlan
    offset: int
    count: int | None

    @property
    def schema(self) -> Schema:
        return self.input.schema


@dataclass(frozen=True, slots=True)
class UnionAll:
    inputs: tuple[LogicalPlan, ...]
    schema: Schema


LogicalPlan = Read | Values | Filter | Project | Join | Aggregate | Sort | Limit | UnionAll


@dataclass(frozen=True, slots=True)
class Query:
    """A whole plan: `root`, and the scalar sub-plans that its expressions refer to by index.

    A scalar sub-plan has one column and at most one row, and may refer to those with a smaller index.
    """

    root: LogicalPlan
    scalars: tuple[LogicalPlan, ...] = ()


def join_schema(left: Schema, right: Schema, kind: JoinKind) -> Schema:
    """The fields a join puts out."""

    def nullable(schema: Schema) -> Schema:
        return tuple(Field(f.name, f.type, True) for f in schema)

    match kind:
        case JoinKind.INNER:
            return left + right
        case JoinKind.LEFT:
            return left + nullable(right)
        case JoinKind.RIGHT:
            return nullable(left) + right
        case JoinKind.FULL:
            return nullable(left) + nullable(right)
        case JoinKind.SEMI | JoinKind.ANTI:
            return left
        case JoinKind.MARK:
            return (*left, Field("mark", pa.bool_(), True))
