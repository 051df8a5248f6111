"""Join: pairs of rows with equal keys. One side is built into an index, the other streams past it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pyarrow as pa

from pystachio.errors import InternalError
from pystachio.operators.batch import Batch, Field, Schema
from pystachio.operators.evaluate import bind_scalars
from pystachio.operators.expressions import Expression, JoinKind, ScalarSubquery, walk
from pystachio.operators.filter import Filter
from pystachio.operators.joins.build import BuildSide, build_side, publish
from pystachio.operators.joins.kept_builds import MOST_ROWS, find_build, keep_build, reserved
from pystachio.operators.joins.layout import JoinLayout
from pystachio.operators.joins.probe import JoinProbe
from pystachio.operators.operator import Operator
from pystachio.operators.project import Project
from pystachio.operators.scans.scan import Scan
from pystachio.operators.scans.units import is_unchanged
from pystachio.operators.spool import Spool
from pystachio.operators.table import Table
from pystachio.runtime.channels import Receiver
from pystachio.runtime.context import Context


@dataclass(slots=True, eq=False)
class _Known:
    """What is the same in all runs of a join: its schema, and how it is done unless scalars are in the residual."""

    schema: Schema | None = None
    layout: JoinLayout | None = None
    sources: tuple[Table, ...] = ()
    """The small tables that all rows of the build side come from, if that is so and it is worth keeping."""
    key: object = field(default_factory=object)
    """Of the build side that is kept."""
    has_run: bool = False
    """The build side of a join that runs once is not worth keeping."""


@dataclass(frozen=True, slots=True)
class Join:
    """Streaming over the side that is not `build`.

    Keys are positions in the left and in the right schema; `residual` is over left fields, then right fields. `output`
    lists what is put out: positions among left fields, then right fields, then (MARK) the mark. SEMI, ANTI and MARK
    put out left fields only. The mark is true or false, never NULL: whether a matching row exists.

    `null_aware` (ANTI, one key): NOT IN. A left row goes when any right row equals it or could, a NULL being unknown.

    `runtime_filters[i]` is the slot in which the values of key i are published once the build side is read, or None;
    `shares_filters`: as the parts of filters for all nodes (`filter_exchange`).
    """

    left: Operator
    right: Operator
    kind: JoinKind
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_equal: tuple[bool, ...]
    residual: Expression | None
    null_aware: bool
    build: Literal["left", "right"]
    output: tuple[int, ...]
    runtime_filters: tuple[int | None, ...]
    shares_filters: bool = False
    _known: _Known = field(default_factory=_Known, init=False, compare=False, repr=False)

    prefers_large_batches: ClassVar[bool] = True

    @property
    def inputs(self) -> tuple[Operator, ...]:
        """The streamed side, then the build side."""
        return (self.left, self.right) if self.build == "right" else (self.right, self.left)

    @property
    def schema(self) -> Schema:
        if self._known.schema is None:
            self._known.schema = self._make_schema()
        return self._known.schema

    def _make_schema(self) -> Schema:
        left, right = self.left.schema, self.right.schema
        if self.kind in (JoinKind.RIGHT, JoinKind.FULL):
            left = tuple(Field(field.name, field.type, True) for field in left)
        if self.kind in (JoinKind.LEFT, JoinKind.FULL):
            right = tuple(Field(field.name, field.type, True) for field in right)
        fields = (*left, *right, Field("mark", pa.bool_(), False))
        return tuple(fields[position] for position in self.output)

    def label(self) -> str:
        left, right = self.left.schema, self.right.schema
        keys = [f"{left[a].name} = {right[b].name}" for a, b in zip(self.left_keys, self.right_keys, strict=True)]
        kind = "not in" if self.null_aware else self.kind.value
        condition = " on " + " and ".join(keys) if keys else " by inequalities" if self._compares_in_order() else ""
        return f"Join {kind}{condition}{' with residual' if self.residual is not None else ''} build={self.build}"

    def _compares_in_order(self) -> bool:
        return self.residual is not None and self._layout(self.residual).inequalities is not None

    async def open(self, ctx: Context, builds: tuple[Receiver[Batch], ...]) -> JoinProbe:
        """Reads the build side under a reservation, publishes its runtime filters and indexes it."""
        residual = None if self.residual is None else await bind_scalars(ctx, self.residual)
        layout = self._known.layout if residual is self.residual else None
        if layout is None:
            layout = self._layout(residual)
            if residual is self.residual:
                self._known.layout = layout
                if not layout.flags_matches and not self.shares_filters:
                    self._known.sources = small_tables_below(self.inputs[1])
        began = ctx.clock.now()
        side, filters = await build_side(
            ctx,
            builds[0],
            layout,
            schema=self.inputs[1].schema,
            null_equal=self.null_equal,
            filter_slots=self.runtime_filters,
            shares_filters=self.shares_filters,
        )
        if (
            self._known.sources
            and self._known.has_run
            and not keep_build(ctx, self._known.key, side, filters, ctx.clock.now() - began)
        ):
            self._known.sources = ()
        self._known.has_run = True
        return self._probe(ctx, layout, side)

    def reopen(self, ctx: Context) -> JoinProbe | None:
        """The same without reading: of what an earlier run has kept, if that is there, its tables are as they were, and
        there is room for it."""
        known = self._known
        if not known.sources or known.layout is None:
            return None
        kept = find_build(ctx, known.key)
        if kept is None or not all(map(is_unchanged, known.sources)):
            return None
        side = reserved(ctx, kept)
        if side is None:
            return None
        publish(ctx, self.runtime_filters, kept.filters)
        ctx.metrics.count("rows stored by an earlier run", side.rows.length)
        return self._probe(ctx, known.layout, side)

    def _probe(self, ctx: Context, layout: JoinLayout, side: BuildSide) -> JoinProbe:
        return JoinProbe(layout, side, self.inputs[0].schema, ctx.settings.batch_rows, ctx.stream.device)

    def _layout(self, residual: Expression | None) -> JoinLayout:
        self._check_keys()
        return JoinLayout.of(
            self.kind,
            left_width=len(self.left.schema),
            left_keys=self.left_keys,
            right_keys=self.right_keys,
            residual=residual,
            null_aware=self.null_aware,
            build=self.build,
            output=self.output,
        )

    def _check_keys(self) -> None:
        if self.null_aware and (self.kind is not JoinKind.ANTI or len(self.left_keys) != 1):
            raise InternalError("a null-aware join must be an anti join with one key")
        for left, right in zip(self.left_keys, self.right_keys, strict=True):
            first, second = self.left.schema[left].type, self.right.schema[right].type
            if not is_comparable(first, second):
                raise InternalError(f"the two sides of a join key have different types: {first}, {second}")


def small_tables_below(build: Operator) -> tuple[Table, ...]:
    """The tables that alone say what rows a build side has, whatever run it is; none where something else does, or
    where they are not small."""
    tables: list[Table] = []
    published: set[int | None] = set()
    awaited: set[int] = set()
    waiting = [build]
    while waiting:
        operator = waiting.pop()
        waiting += operator.inputs
        expressions: tuple[Expression | None, ...] = ()
        match operator:
            case Filter(predicate=predicate):
                expressions = (predicate,)
            case Project(expressions=expressions):
                pass
            case Spool():
                pass
            case Scan(table=table, predicate=predicate, filters=filters, answered=None):
                expressions = (predicate,)
                tables.append(table)
                awaited.update(used.slot for used in filters)
            case Join(residual=residual, runtime_filters=slots, shares_filters=False):
                expressions = (residual,)
                published.update(slots)
            case _:
                return ()
        if any(isinstance(node, ScalarSubquery) for each in expressions if each is not None for node in walk(each)):
            return ()
    # A filter goes to scans that the join streams, so that none of these is awaited anywhere else.
    is_small = sum(table.rows for table in tables) <= MOST_ROWS
    return tuple(tables) if is_small and awaited <= published else ()


def is_comparable(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether equal values of the two types are stored as equal numbers."""
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        return bool(left.scale == right.scale)
    families = (pa.types.is_integer, pa.types.is_floating)
    return bool(left == right or any(family(left) and family(right) for family in families))
