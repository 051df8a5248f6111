"""Substrait bytes to a logical plan.

The bytes come from DataFusion (see `planner.sql`) or from anybody else, so nothing in them is trusted: whatever is
unknown is Unsupported, whatever contradicts itself is InvalidRequest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from substrait import algebra_pb2, plan_pb2

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.batch import Field, Schema
from pystachio.planner.logical import LogicalPlan, Project, Query
from pystachio.planner.substrait.datafusion_functions import ConstantCall
from pystachio.planner.substrait.functions import declared_functions
from pystachio.planner.substrait.literals import read_literal
from pystachio.planner.substrait.reading import Reading
from pystachio.planner.substrait.relations import read_relation
from pystachio.planner.substrait.wire import parse

_MOST_BYTES: Final = 64 << 20


def read_plan(
    data: bytes,
    tables: Mapping[str, Schema],
    null_aware: Sequence[bool | None] = (),
    written_decimals: Collection[pa.DataType] | None = None,
    *,
    moment: int | None = None,
    constant_call: ConstantCall | None = None,
) -> tuple[Query, tuple[str, ...]]:
    """The query that a Substrait plan stands for, and the names of its columns.

    `null_aware` says for each join, in pre-order, whether it stands for [NOT] IN (see `Reading`); Substrait itself
    cannot express that. `written_decimals` are the decimal types that the statement casts to: other casts of floats to
    decimals are DataFusion's, for comparisons and results of both kinds; they round, or fail on large values, so the
    decimals become floats instead. None: all casts are meant. `moment` is what `now()` means, in ns since 1970 UTC.
    `constant_call` computes functions of constants that only DataFusion has. Raises InvalidRequest, Unsupported,
    NotFound.
    """
    if len(data) > _MOST_BYTES:
        raise InvalidRequest(f"a Substrait plan of {len(data)} bytes; at most {_MOST_BYTES} are read")
    plan = parse(data)
    roots = [relation for relation in plan.relations if relation.WhichOneof("rel_type") is not None]
    if not roots:
        raise InvalidRequest("a Substrait plan without relations")
    shared = [relation.rel if relation.HasField("rel") else relation.root.input for relation in roots]
    reading = Reading(
        tables=tables,
        functions=declared_functions(plan),
        parameters={p.parameter_anchor: read_literal(p.value) for p in plan.parameter_bindings},
        null_aware=null_aware,
        is_datafusion=plan.version.producer.lower().startswith("datafusion"),
        shared=shared,
        read_relation=read_relation,
        written_decimals=written_decimals,
        moment=moment,
        constant_call=constant_call,
    )
    top, names = _root(roots)
    root = read_relation(top, reading)
    if names is None:
        names = tuple(f.name or f"column{position}" for position, f in enumerate(root.schema))
    if len(names) != len(root.schema):
        raise InvalidRequest(f"a plan with {len(root.schema)} columns and {len(names)} names")
    return Query(_named(root, names), tuple(reading.scalars)), names


def _root(relations: Sequence[plan_pb2.PlanRel]) -> tuple[algebra_pb2.Rel, tuple[str, ...] | None]:
    roots = [relation.root for relation in relations if relation.HasField("root")]
    if len(roots) > 1:
        raise Unsupported(f"a Substrait plan with {len(roots)} roots")
    if roots:
        return roots[0].input, tuple(roots[0].names)
    if len(relations) > 1:
        raise InvalidRequest("a Substrait plan with several relations and no root")
    return relations[0].rel, None


def _named(plan: LogicalPlan, names: tuple[str, ...]) -> LogicalPlan:
    if not isinstance(plan, Project):
        return plan
    return replace(plan, schema=tuple(Field(n, f.type, f.nullable) for n, f in zip(names, plan.schema, strict=True)))
