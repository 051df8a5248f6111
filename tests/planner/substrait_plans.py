"""Substrait messages by hand, in few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from substrait import algebra_pb2, plan_pb2, type_pb2

Rel, Expression, Type = algebra_pb2.Rel, algebra_pb2.Expression, type_pb2.Type

I64 = Type(i64=Type.I64(nullability=Type.NULLABILITY_NULLABLE))
I32 = Type(i32=Type.I32(nullability=Type.NULLABILITY_NULLABLE))
BOOL = Type(bool=Type.Boolean(nullability=Type.NULLABILITY_NULLABLE))
STRING = Type(string=Type.String(nullability=Type.NULLABILITY_NULLABLE))


def schema(**columns: type_pb2.Type) -> type_pb2.NamedStruct:
    return type_pb2.NamedStruct(names=list(columns), struct=Type.Struct(types=list(columns.values())))


def read(table: str, base: type_pb2.NamedStruct, **more: Any) -> algebra_pb2.Rel:
    named = algebra_pb2.ReadRel.NamedTable(names=table.split("."))
    return Rel(read=algebra_pb2.ReadRel(named_table=named, base_schema=base, **more))


def mask(*fields: int) -> algebra_pb2.Expression.MaskExpression:
    items = [Expression.MaskExpression.StructItem(field=field) for field in fields]
    return Expression.MaskExpression(select=Expression.MaskExpression.StructSelect(struct_items=items))


def field(index: int) -> algebra_pb2.Expression:
    segment = Expression.ReferenceSegment(struct_field=Expression.ReferenceSegment.StructField(field=index))
    root = Expression.FieldReference.RootReference()
    return Expression(selection=Expression.FieldReference(direct_reference=segment, root_reference=root))


def literal(**value: Any) -> algebra_pb2.Expression:
    return Expression(literal=Expression.Literal(**value))


def call(
    anchor: int, *arguments: algebra_pb2.Expression, output: type_pb2.Type | None = None
) -> algebra_pb2.Expression:
    given = [algebra_pb2.FunctionArgument(value=argument) for argument in arguments]
    function = Expression.ScalarFunction(function_reference=anchor, arguments=given, output_type=output)
    return Expression(scalar_function=function)


def emit(*positions: int) -> algebra_pb2.RelCommon:
    return algebra_pb2.RelCommon(emit=algebra_pb2.RelCommon.Emit(output_mapping=positions))


def filter_(below: algebra_pb2.Rel, condition: algebra_pb2.Expression) -> algebra_pb2.Rel:
    return Rel(filter=algebra_pb2.FilterRel(input=below, condition=condition))


def project(below: algebra_pb2.Rel, *expressions: algebra_pb2.Expression, **more: Any) -> algebra_pb2.Rel:
    return Rel(project=algebra_pb2.ProjectRel(input=below, expressions=expressions, **more))


def join(
    left: algebra_pb2.Rel, right: algebra_pb2.Rel, kind: str, condition: algebra_pb2.Expression | None = None
) -> algebra_pb2.Rel:
    type_ = algebra_pb2.JoinRel.JoinType.Value(f"JOIN_TYPE_{kind}")
    return Rel(join=algebra_pb2.JoinRel(left=left, right=right, type=type_, expression=condition))


def measure(anchor: int, *arguments: algebra_pb2.Expression, **more: Any) -> algebra_pb2.AggregateRel.Measure:
    given = [algebra_pb2.FunctionArgument(value=argument) for argument in arguments]
    condition = more.pop("filter", None)
    function = algebra_pb2.AggregateFunction(function_reference=anchor, arguments=given, **more)
    return algebra_pb2.AggregateRel.Measure(measure=function, filter=condition)


def aggregate(below: algebra_pb2.Rel, **more: Any) -> algebra_pb2.Rel:
    return Rel(aggregate=algebra_pb2.AggregateRel(input=below, **more))


def plan(root: algebra_pb2.Rel, names: Sequence[str], functions: Sequence[str] = (), producer: str = "other") -> bytes:
    """The bytes; `functions[i]` is declared under the anchor i."""
    message = plan_pb2.Plan(version=plan_pb2.Version(producer=producer))
    for anchor, name in enumerate(functions):
        declared = message.extensions.add().extension_function
        declared.function_anchor, declared.name = anchor, name
    message.relations.add(root=algebra_pb2.RelRoot(input=root, names=names))
    return message.SerializeToString()
