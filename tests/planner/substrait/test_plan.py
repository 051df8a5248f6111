"""Plans of other producers: their function names, joins, groupings, sets and tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from substrait import algebra_pb2

from pystachio.errors import InvalidRequest, NotFound, PystachioError, Unsupported
from pystachio.operators.batch import Field
from pystachio.operators.expressions import Call, Cast, FieldReference, IfThen, InList, JoinKind, Literal
from pystachio.planner.logical import Aggregate, Filter, Join, Limit, LogicalPlan, Project, Read, Sort, UnionAll, Values
from pystachio.planner.substrait.plan import read_plan
from tests.planner.interpreter import Tables, rows_of
from tests.planner.substrait_plans import (
    BOOL,
    I32,
    I64,
    STRING,
    Expression,
    Rel,
    Type,
    aggregate,
    call,
    emit,
    field,
    filter_,
    join,
    literal,
    mask,
    measure,
    plan,
    project,
    read,
    schema,
)

NESTED = pa.list_(pa.int32())
TABLES = {
    "t": (Field("a", pa.int64()), Field("b", pa.int64()), Field("s", pa.string()), Field("n", NESTED)),
    "u": (Field("x", pa.int64(), False), Field("y", pa.int64(), False)),
}
T, U = schema(a=I64, b=I64, s=STRING), schema(x=I64, y=I64)
READ_T, READ_U = read("t", T), read("u", U)

A, B = FieldReference(0, pa.int64()), FieldReference(1, pa.int64())

CONTENTS = Tables(
    {"t": TABLES["t"], "u": TABLES["u"]},
    {"t": [(1, 10, "p", None), (2, None, "q", None), (None, 30, None, None)], "u": [(1, 5), (1, 6), (4, 7)]},
)


def root(relation: algebra_pb2.Rel, width: int, functions: tuple[str, ...] = (), **more: Any) -> LogicalPlan:
    query, names = read_plan(plan(relation, [f"c{i}" for i in range(width)], functions, **more), TABLES)
    assert len(names) == width
    return query.root


def test_columns_are_matched_by_name() -> None:
    found = root(read("db.t", schema(b=I64, A=I64)), 2)
    assert rows_of(found, CONTENTS) == [(10, 1), (None, 2), (30, None)]


def test_projection_and_filter_of_a_read() -> None:
    condition = call(0, field(1), literal(i64=3))
    found = root(read("t", T, projection=mask(0), filter=condition, best_effort_filter=condition), 1, ("gt:any_any",))
    assert isinstance(found, Project)
    assert found.expressions == (FieldReference(0, pa.int64()),)
    assert isinstance(found.input, Read)
    assert found.input.columns == (0, 1)
    assert isinstance(found.input.predicate, Call)
    assert found.input.predicate.function == "gt"


def test_a_best_effort_filter_alone_filters_nothing() -> None:
    found = root(read("t", T, best_effort_filter=call(0, field(1), literal(i64=3))), 3, ("gt",))
    assert isinstance(found, Read)
    assert found.predicate is None


def test_columns_of_unknown_types_matter_only_when_used() -> None:
    listed = Type(list=Type.List(type=I32))
    with_list = schema(a=I64, n=listed)
    assert isinstance(root(read("t", with_list, projection=mask(0)), 1), Read)
    with pytest.raises(Unsupported, match="the column n of the type list"):
        root(read("t", with_list, projection=mask(1)), 1)


def test_a_column_of_another_width_is_cast() -> None:
    found = root(read("t", schema(a=I32)), 1)
    assert isinstance(found, Project)
    assert found.expressions == (Cast(FieldReference(0, pa.int64()), pa.int32()),)


@pytest.mark.parametrize(
    ("relation", "error", "text"),
    [
        (read("nosuch", T), NotFound, "no table named nosuch"),
        (read("t", schema(c=I64)), NotFound, "no column named c"),
        (read("t", schema(a=STRING)), InvalidRequest, "the plan expects string"),
        (read("t", T, projection=mask(7)), InvalidRequest, "projection"),
        (project(READ_T, field(9)), InvalidRequest, "the field 9 of a relation with 3 fields"),
        (project(READ_T, field(0), common=emit(17)), InvalidRequest, "output mapping"),
        (filter_(READ_T, field(0)), InvalidRequest, "must be boolean"),
        (filter_(READ_T, call(7, field(0))), InvalidRequest, "declares no function"),
        (Rel(), InvalidRequest, "without a kind"),
        (Rel(write=algebra_pb2.WriteRel()), Unsupported, "the Substrait relation write"),
        (Rel(extension_leaf=algebra_pb2.ExtensionLeafRel()), Unsupported, "extension_leaf"),
        (Rel(exchange=algebra_pb2.ExchangeRel()), Unsupported, "exchange"),
        (read("t", schema(a=Type(uuid=Type.UUID()))), Unsupported, "the type uuid"),
        (join(READ_T, READ_U, "LEFT_SINGLE"), Unsupported, "the join type left_single"),
        (join(READ_T, READ_U, "UNSPECIFIED"), Unsupported, "the join type unspecified"),
    ],
)
def test_refused(relation: algebra_pb2.Rel, error: type[PystachioError], text: str) -> None:
    with pytest.raises(error, match=text):
        root(relation, 3, ("equal",))


# Names of functions


@pytest.mark.parametrize("name", ["equal", "equal:any_any", "EQUAL:any1_any1", "=", "eq"])
def test_one_function_by_many_names(name: str) -> None:
    found = root(project(READ_T, call(0, field(0), field(1), output=BOOL), common=emit(3)), 1, (name,))
    assert isinstance(found, Project)
    assert found.expressions == (Call("equal", (A, B), pa.bool_()),)


@pytest.mark.parametrize(
    ("names", "expression", "expected"),
    [
        (("between:any_any_any",), call(0, field(0), literal(i64=1), literal(i64=2)), "and"),
        (("not_like",), call(0, field(2), literal(string="x%")), "not"),
        (("str_concat",), call(0, field(2), field(2)), "concat_operator"),
        (("concat:str_str",), call(0, field(2), field(2)), "concat_operator"),
        (("mod:i64_i64",), call(0, field(0), field(1)), "modulus"),
        (("substr",), call(0, field(2), literal(i64=1), literal(i64=2)), "substring"),
        (("is_unknown",), call(0, field(0)), "is_null"),
        (("equal_null_safe",), call(0, field(0), field(1)), "is_not_distinct_from"),
    ],
)
def test_canonical_names(names: tuple[str, ...], expression: algebra_pb2.Expression, expected: str) -> None:
    found = root(project(READ_T, expression, common=emit(3)), 1, names)
    assert isinstance(found, Project)
    (made,) = found.expressions
    assert isinstance(made, Call)
    assert made.function == expected


def test_missing_result_types_are_derived() -> None:
    total = call(0, field(0), literal(i64=1))
    found = root(project(READ_T, total, common=emit(3)), 1, ("add:i64_i64",))
    assert [f.type for f in found.schema] == [pa.int64()]


def test_extract_takes_its_unit_as_an_enumeration() -> None:
    dates = {"d": (Field("day", pa.date32()),)}
    part = Expression.ScalarFunction(function_reference=0, output_type=I64)
    part.arguments.add(enum="YEAR")
    part.arguments.add(value=field(0))
    base = schema(day=Type(date=Type.Date(nullability=Type.NULLABILITY_NULLABLE)))
    relation = project(read("d", base), Expression(scalar_function=part), common=emit(1))
    query, _ = read_plan(plan(relation, ["year"], ("extract:req_date",)), dates)
    assert isinstance(query.root, Project)
    (made,) = query.root.expressions
    assert made == Call("date_part", (Literal("year", pa.string()), FieldReference(0, pa.date32())), pa.int64())


def test_base_of_a_logarithm_comes_first() -> None:
    fp64 = Type(fp64=Type.FP64(nullability=Type.NULLABILITY_NULLABLE))
    tables = {"f": (Field("v", pa.float64()),)}
    relation = project(read("f", schema(v=fp64)), call(0, field(0), literal(fp64=2.0)), common=emit(1))
    query, _ = read_plan(plan(relation, ["l"], ("logb",)), tables)
    assert isinstance(query.root, Project)
    (made,) = query.root.expressions
    assert made == Call("log", (Literal(2.0, pa.float64()), FieldReference(0, pa.float64())), pa.float64())


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("and", (field(0), field(1)), "an operand of AND must be boolean"),
        ("not", (field(0),), "takes a boolean"),
        ("add", (field(0), field(2)), "arithmetic"),
        ("equal", (field(0), field(2)), "do not go together"),
        ("equal", (field(0),), "takes 2 arguments, not 1"),
        ("like", (field(0), field(2)), "takes a string"),
        ("upper", (field(0),), "takes a string"),
        ("like", (field(2), field(0)), "takes a string, not int64"),
        ("substring", (field(2), field(2)), "takes an integer, not string"),
        ("split_part", (field(2), field(2), field(2)), "takes an integer, not string"),
        ("extract", (literal(string="year"), field(2)), "takes a date or time, not string"),
        ("make_date", (field(0), field(0), field(2)), "takes an integer, not string"),
    ],
)
def test_arguments_that_do_not_fit(name: str, arguments: tuple[algebra_pb2.Expression, ...], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        root(project(READ_T, call(0, *arguments)), 4, (name,))


def test_a_result_type_that_the_function_cannot_have() -> None:
    with pytest.raises(InvalidRequest, match="is bool, not string"):
        root(project(READ_T, call(0, field(0), field(1), output=STRING)), 4, ("equal",))


def test_unknown_functions_are_named() -> None:
    with pytest.raises(Unsupported, match="the function frobnicate"):
        root(project(READ_T, call(0, field(0))), 4, ("frobnicate:i64",))


# Joins

ON = call(0, field(0), field(3), output=BOOL)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("INNER", [(1, 10, "p", 1, 5), (1, 10, "p", 1, 6)]),
        ("LEFT", [(1, 10, "p", 1, 5), (1, 10, "p", 1, 6), (2, None, "q", None, None), (None, 30, None, None, None)]),
        ("RIGHT", [(1, 10, "p", 1, 5), (1, 10, "p", 1, 6), (None, None, None, 4, 7)]),
        ("LEFT_SEMI", [(1, 10, "p")]),
        ("LEFT_ANTI", [(2, None, "q"), (None, 30, None)]),
        ("RIGHT_SEMI", [(1, 5), (1, 6)]),
        ("RIGHT_ANTI", [(4, 7)]),
        ("LEFT_MARK", [(1, 10, "p", True), (2, None, "q", False), (None, 30, None, False)]),
        ("RIGHT_MARK", [(1, 5, True), (1, 6, True), (4, 7, False)]),
    ],
)
@pytest.mark.parametrize("form", ["logical", "nested loop", "hash", "hash, older"])
def test_joins(kind: str, expected: list[tuple[Any, ...]], form: str) -> None:
    name = f"JOIN_TYPE_{kind}"
    keys = {"left": field(0).selection, "right": field(0).selection}
    equal = algebra_pb2.ComparisonJoinKey.ComparisonType(simple="SIMPLE_COMPARISON_TYPE_EQ")
    match form:
        case "logical":
            relation = join(READ_T, READ_U, kind, ON)
        case "nested loop":
            relation = Rel(
                nested_loop_join=algebra_pb2.NestedLoopJoinRel(left=READ_T, right=READ_U, type=name, expression=ON)
            )
        case "hash":
            pairs = [algebra_pb2.ComparisonJoinKey(comparison=equal, **keys)]
            relation = Rel(hash_join=algebra_pb2.HashJoinRel(left=READ_T, right=READ_U, type=name, keys=pairs))
        case _:
            older = {"left_keys": [keys["left"]], "right_keys": [keys["right"]]}
            relation = Rel(hash_join=algebra_pb2.HashJoinRel(left=READ_T, right=READ_U, type=name, **older))
    found = root(relation, len(expected[0]), ("equal",))
    assert sorted(rows_of(found, CONTENTS), key=repr) == sorted(expected, key=repr)


def test_conditions_become_keys_residual_and_filters() -> None:
    condition = call(
        2,
        call(2, ON, call(1, field(1), field(4))),
        call(2, call(1, field(1), literal(i64=3)), call(1, field(4), literal(i64=4))),
    )
    found = root(join(READ_T, READ_U, "INNER", condition), 5, ("equal", "gt", "and"))
    assert isinstance(found, Join)
    assert (found.left_keys, found.right_keys) == ((0,), (0,))
    assert isinstance(found.left, Filter)
    assert isinstance(found.right, Filter)
    assert found.residual == Call("gt", (FieldReference(1, pa.int64()), FieldReference(4, pa.int64())), pa.bool_())


def test_computed_keys_leave_the_fields_as_they_were() -> None:
    condition = call(0, call(1, field(0), literal(i64=1)), call(1, field(3), field(4)))
    found = root(join(READ_T, READ_U, "LEFT", condition), 5, ("equal", "add"))
    assert isinstance(found, Project)
    assert [e.index for e in found.expressions if isinstance(e, FieldReference)] == [0, 1, 2, 4, 5]
    assert isinstance(found.input, Join)
    assert (found.input.left_keys, found.input.right_keys) == ((3,), (2,))


def test_null_safe_keys() -> None:
    found = root(join(READ_T, READ_U, "INNER", ON), 5, ("equal_null_safe",))
    assert isinstance(found, Join)
    assert found.null_equal == (True,)


def test_cross() -> None:
    found = root(Rel(cross=algebra_pb2.CrossRel(left=READ_T, right=READ_U)), 5)
    assert isinstance(found, Join)
    assert (found.kind, found.left_keys, found.residual) == (JoinKind.INNER, (), None)


# Aggregates


@pytest.mark.parametrize("style", ["references", "older"])
def test_grouping_sets(style: str) -> None:
    grouping = algebra_pb2.AggregateRel.Grouping
    if style == "references":
        sets = [grouping(expression_references=chosen) for chosen in ([0, 1], [0], [])]
        more: dict[str, Any] = {"grouping_expressions": [field(0), field(1)]}
    else:
        sets = [grouping(grouping_expressions=chosen) for chosen in ([field(0), field(1)], [field(0)], [])]
        more = {}
    relation = aggregate(READ_T, groupings=sets, measures=[measure(0, field(1))], **more)
    found = root(relation, 4, ("sum:i64",))
    assert isinstance(found, Aggregate)
    assert (found.keys, found.grouping_sets) == ((0, 1), ((0, 1), (0,), ()))
    assert [f.type for f in found.schema] == [pa.int64(), pa.int64(), pa.int64(), pa.int32()]


def test_arguments_filters_and_keys_that_are_expressions_become_fields() -> None:
    doubled = call(1, field(0), literal(i64=2))
    positive = call(2, field(1), literal(i64=0))
    groupings = [algebra_pb2.AggregateRel.Grouping(expression_references=[0])]
    distinct = measure(0, field(1), invocation="AGGREGATION_INVOCATION_DISTINCT")
    measures = [measure(0, doubled, filter=positive), distinct]
    relation = aggregate(READ_T, groupings=groupings, grouping_expressions=[doubled], measures=measures)
    found = root(relation, 3, ("sum", "multiply", "gt"))
    assert isinstance(found, Aggregate)
    assert found.keys == (3,)
    assert [(c.arguments, c.filter, c.distinct) for c in found.calls] == [((3,), 4, False), ((1,), None, True)]
    assert isinstance(found.input, Project)


@pytest.mark.parametrize(
    ("argument", "expected"), [((), ()), ((literal(i64=1),), ()), ((field(0),), (0,)), ((literal(null=I64),), (3,))]
)
def test_count(argument: tuple[algebra_pb2.Expression, ...], expected: tuple[int, ...]) -> None:
    found = root(aggregate(READ_T, measures=[measure(0, *argument)]), 1, ("count:any",))
    assert isinstance(found, Aggregate)
    assert found.calls[0].arguments == expected
    assert not found.schema[0].nullable


def test_sum0_is_zero_for_no_rows() -> None:
    nothing = filter_(READ_T, literal(boolean=False))
    assert rows_of(root(aggregate(nothing, measures=[measure(0, field(0))]), 1, ("$sum0:i64",)), CONTENTS) == [(0,)]


@pytest.mark.parametrize(
    ("function", "more", "text"),
    [
        ("median", {}, "the aggregate function median"),
        ("sum", {"phase": "AGGREGATION_PHASE_INITIAL_TO_INTERMEDIATE"}, "a part of the aggregate sum"),
    ],
)
def test_unsupported_aggregates(function: str, more: dict[str, Any], text: str) -> None:
    with pytest.raises(Unsupported, match=text):
        root(aggregate(READ_T, measures=[measure(0, field(0), **more)]), 1, (function,))


# Sets, sorts, fetches, values


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("UNION_ALL", [(1,), (2,), (None,), (1,), (1,), (4,)]),
        ("UNION_DISTINCT", [(1,), (2,), (None,), (4,)]),
        ("INTERSECTION_PRIMARY", [(1,)]),
        ("INTERSECTION_MULTISET", [(1,)]),
        ("MINUS_PRIMARY", [(2,), (None,)]),
    ],
)
def test_sets(operation: str, expected: list[tuple[Any, ...]]) -> None:
    inputs = [read("t", schema(a=I64)), read("u", schema(x=I64))]
    found = root(Rel(set=algebra_pb2.SetRel(inputs=inputs, op=f"SET_OP_{operation}")), 1)
    assert sorted(rows_of(found, CONTENTS), key=repr) == sorted(expected, key=repr)


def test_unions_of_unions_are_one() -> None:
    inner = Rel(set=algebra_pb2.SetRel(inputs=[READ_U, READ_U], op="SET_OP_UNION_ALL"))
    found = root(Rel(set=algebra_pb2.SetRel(inputs=[inner, READ_U], op="SET_OP_UNION_ALL")), 2)
    assert isinstance(found, UnionAll)
    assert len(found.inputs) == 3


@pytest.mark.parametrize(
    "operation", ["MINUS_PRIMARY_ALL", "INTERSECTION_MULTISET_ALL", "MINUS_MULTISET", "UNSPECIFIED"]
)
def test_unsupported_sets(operation: str) -> None:
    with pytest.raises(Unsupported, match=operation.lower()):
        root(Rel(set=algebra_pb2.SetRel(inputs=[READ_U, READ_U], op=f"SET_OP_{operation}")), 2)


def test_a_sort_by_an_expression_keeps_the_fields() -> None:
    direction = "SORT_DIRECTION_DESC_NULLS_FIRST"
    sorts = [algebra_pb2.SortField(expr=call(0, field(0), field(1)), direction=direction)]
    found = root(Rel(sort=algebra_pb2.SortRel(input=READ_U, sorts=sorts)), 2, ("add",))
    assert rows_of(found, CONTENTS) == [(4, 7), (1, 6), (1, 5)]
    assert isinstance(found, Project)
    assert isinstance(found.input, Sort)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"offset": 1, "count": 1}, (1, 1)),
        ({"offset": 2, "count": -1}, (2, None)),
        ({"offset_expr": literal(i64=1), "count_expr": literal(i64=5)}, (1, 5)),
        ({"offset": 1, "count_expr": literal(null=I64)}, (1, None)),
    ],
)
def test_fetch(more: dict[str, Any], expected: tuple[int, int | None]) -> None:
    found = root(Rel(fetch=algebra_pb2.FetchRel(input=READ_U, **more)), 2)
    assert isinstance(found, Limit)
    assert (found.offset, found.count) == expected


def test_negative_counts_of_rows_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="negative offset"):
        root(Rel(fetch=algebra_pb2.FetchRel(input=READ_U, offset=-3)), 2)


@pytest.mark.parametrize("style", ["literals", "expressions", "computed"])
def test_values(style: str) -> None:
    one, null = Expression.Literal(i64=1), Expression.Literal(null=I64)
    match style:
        case "literals":
            table = algebra_pb2.ReadRel.VirtualTable(values=[Expression.Literal.Struct(fields=[one, null])])
        case "expressions":
            fields = [Expression(literal=one), Expression(literal=null)]
            table = algebra_pb2.ReadRel.VirtualTable(expressions=[Expression.Nested.Struct(fields=fields)])
        case _:
            fields = [call(0, literal(i64=3), literal(i64=2)), Expression(literal=null)]
            table = algebra_pb2.ReadRel.VirtualTable(expressions=[Expression.Nested.Struct(fields=fields)])
    found = root(Rel(read=algebra_pb2.ReadRel(virtual_table=table, base_schema=U)), 2, ("subtract",))
    assert isinstance(found, Values)
    assert rows_of(found, CONTENTS) == [(1, None)]


# Expressions


def test_lists_cases_and_switches() -> None:
    one, two = literal(i64=1), literal(i64=2)
    in_list = Expression(singular_or_list=Expression.SingularOrList(value=field(0), options=[one, two]))
    switch = Expression.SwitchExpression(match=field(0))
    switch.ifs.add(**{"if": one.literal, "then": two})
    rows = Expression.MultiOrList(value=[field(0), field(1)])
    rows.options.add(fields=[one, literal(i64=10)])
    relation = project(
        READ_T, in_list, Expression(switch_expression=switch), Expression(multi_or_list=rows), common=emit(3, 4, 5)
    )
    found = root(relation, 3)
    assert isinstance(found, Project)
    assert [type(e) for e in found.expressions] == [InList, IfThen, Call]
    assert rows_of(found, CONTENTS) == [(True, 2, True), (True, None, False), (None, None, False)]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"i8": -1, "type_variation_reference": 1}, Literal(255, pa.uint8())),
        ({"i64": -1, "type_variation_reference": 1}, Literal(2**64 - 1, pa.uint64())),
        ({"string": "x", "type_variation_reference": 2}, Literal("x", pa.string())),
        ({"var_char": {"value": "x", "length": 3}}, Literal("x", pa.string())),
        ({"fixed_char": "x "}, Literal("x ", pa.string())),
        ({"date": 10}, Literal(10, pa.date32())),
        ({"precision_timestamp": {"precision": 3, "value": 7}}, Literal(7, pa.timestamp("ms"))),
        ({"precision_timestamp_tz": {"precision": 9, "value": 7}}, Literal(7, pa.timestamp("ns", "UTC"))),
        ({"timestamp": 7}, Literal(7, pa.timestamp("us"))),
        ({"precision_time": {"precision": 0, "value": 7}}, Literal(7, pa.time32("s"))),
        ({"interval_year_to_month": {"years": 1, "months": 2}}, Literal((14, 0, 0), pa.month_day_nano_interval())),
        (
            {"interval_day_to_second": {"days": 1, "seconds": 2, "precision": 3, "subseconds": 4}},
            Literal((0, 1, 2_004_000_000), pa.month_day_nano_interval()),
        ),
        (
            {"interval_day_to_second": {"days": 1, "seconds": 2, "precision": 3}, "type_variation_reference": 1},
            Literal(86_402_000, pa.duration("ms")),
        ),
        (
            {"decimal": {"value": (-5).to_bytes(16, "little", signed=True), "precision": 3, "scale": 1}},
            Literal(-5, pa.decimal128(3, 1)),
        ),
        ({"null": I64}, Literal(None, pa.int64())),
    ],
)
def test_literals(message: dict[str, Any], expected: Literal) -> None:
    found = root(project(READ_T, literal(**message), common=emit(3)), 1)
    assert isinstance(found, Project)
    assert found.expressions == (expected,)


@pytest.mark.parametrize(
    "message",
    [
        {"i8": 300},
        {"decimal": {"value": b"1234", "precision": 3, "scale": 1}},
        {"decimal": {"value": (5000).to_bytes(16, "little"), "precision": 3, "scale": 1}},
        {"decimal": {"value": bytes(16), "precision": 50, "scale": 1}},
        {"list": {"values": []}},
        {"uuid": bytes(16)},
        {"precision_timestamp": {"precision": 4, "value": 7}},
    ],
)
def test_literals_that_cannot_be(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        root(project(READ_T, literal(**message)), 4)


def subquery(**kind: Any) -> algebra_pb2.Expression:
    return Expression(subquery=Expression.Subquery(**kind))


U_X = read("u", schema(x=I64))
SUBQUERIES = [
    (subquery(set_predicate={"predicate_op": "PREDICATE_OP_EXISTS", "tuples": READ_U}), [1, 2, None]),
    (subquery(in_predicate={"needles": [field(0)], "haystack": U_X}), [1]),
    (call(1, subquery(in_predicate={"needles": [field(0)], "haystack": U_X})), [2]),
    (
        subquery(
            set_comparison={
                "reduction_op": "REDUCTION_OP_ANY",
                "comparison_op": "COMPARISON_OP_GT",
                "left": field(0),
                "right": U_X,
            }
        ),
        [2],
    ),
    (
        subquery(
            set_comparison={
                "reduction_op": "REDUCTION_OP_ALL",
                "comparison_op": "COMPARISON_OP_LT",
                "left": field(0),
                "right": U_X,
            }
        ),
        [],
    ),
    (call(0, field(0), literal(i64=2)), [2]),
]


@pytest.mark.parametrize(("condition", "expected"), SUBQUERIES)
def test_subquery_predicates(condition: algebra_pb2.Expression, expected: list[int | None]) -> None:
    from tests.planner.sql_oracle import interpreted

    query, _ = read_plan(plan(filter_(READ_T, condition), ["a", "b", "s"], ("equal", "not")), TABLES)
    assert sorted((row[0] for row in interpreted(query, CONTENTS).elements()), key=repr) == sorted(expected, key=repr)


def test_equal_scalar_subqueries_are_one() -> None:
    top = aggregate(U_X, measures=[measure(1, field(0))])
    scalar = subquery(scalar={"input": top})
    query, _ = read_plan(plan(project(READ_T, scalar, scalar), list("abcde"), ("equal", "max")), TABLES)
    assert len(query.scalars) == 1


def test_outer_references_are_refused() -> None:
    segment = field(0).selection.direct_reference
    outer = Expression(selection=Expression.FieldReference(direct_reference=segment, outer_reference={"steps_out": 1}))
    inner = filter_(READ_U, call(0, field(0), outer))
    exists = subquery(set_predicate={"predicate_op": "PREDICATE_OP_EXISTS", "tuples": inner})
    with pytest.raises(Unsupported, match="correlated"):
        root(filter_(READ_T, exists), 3, ("equal",))


def test_window_functions_are_named() -> None:
    window = Expression(window_function=Expression.WindowFunction(function_reference=0))
    with pytest.raises(Unsupported, match="the window function rank"):
        root(project(READ_T, window), 4, ("rank",))


def test_casts() -> None:
    unsigned = Type(i16=Type.I16(type_variation_reference=1))
    made = Expression.Cast(type=unsigned, input=field(0), failure_behavior="FAILURE_BEHAVIOR_RETURN_NULL")
    found = root(project(READ_T, Expression(cast=made), common=emit(3)), 1)
    assert isinstance(found, Project)
    assert found.expressions == (Cast(A, pa.uint16(), True),)
