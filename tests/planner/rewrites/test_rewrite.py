"""Rewritten plans mean the same, and have the shape that the engine is fast on."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pystachio.operators.batch import Field, Schema
from pystachio.operators.expressions import (
    Call,
    Expression,
    FieldReference,
    IfThen,
    InList,
    JoinKind,
    Literal,
    conjuncts,
)
from pystachio.planner.logical import Aggregate, Filter, Join, Limit, LogicalPlan, Project, Read, Sort, UnionAll, Values
from pystachio.planner.rewrites.fold import FALSE, NULL, TRUE, fold, fold_condition
from pystachio.planner.rewrites.rewrite import simplify, simplify_plan
from tests.planner.interpreter import Tables, multiset, rows_of, value
from tests.planner.random_plans import random_predicate, random_query, random_tables

INTEGER, BOOL = pa.int64(), pa.bool_()
X, Y, Z = (FieldReference(position, INTEGER) for position in range(3))
T: Schema = tuple(Field(name, INTEGER) for name in "abc")
U: Schema = tuple(Field(name, INTEGER) for name in "xyz")
READ_T, READ_U = Read("t", (0, 1, 2), T), Read("u", (0, 1, 2), U)


def number(n: int) -> Literal:
    return Literal(n, INTEGER)


def call(function: str, *arguments: Expression) -> Call:
    return Call(function, arguments, BOOL)


def field(position: int) -> FieldReference:
    return FieldReference(position, INTEGER)


ONE, TWO, THREE = call("equal", X, number(1)), call("equal", Y, number(2)), call("equal", Z, number(3))


@pytest.mark.parametrize("seed", range(400))
def test_random_plans_mean_the_same(seed: int) -> None:
    chance = random.Random(seed)
    tables = random_tables(chance)
    query = random_query(chance, tables)
    rewritten = simplify(query)
    assert [f.type for f in rewritten.root.schema] == [f.type for f in query.root.schema]
    assert multiset(rows_of(rewritten.root, tables)) == multiset(rows_of(query.root, tables))


@pytest.mark.parametrize("seed", range(200))
def test_filters_over_random_plans_mean_the_same(seed: int) -> None:
    chance = random.Random(10_000 + seed)
    tables = random_tables(chance)
    plan = random_query(chance, tables).root
    for _ in range(3):
        plan = Filter(plan, random_predicate(chance, plan.schema))
    assert multiset(rows_of(simplify_plan(plan), tables)) == multiset(rows_of(plan, tables))


@pytest.mark.parametrize("seed", range(100))
def test_rewriting_twice_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    once = simplify(random_query(chance, random_tables(chance)))
    assert simplify(once) == once


# Expressions


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("and", ONE, TRUE), ONE),
        (call("and", ONE, FALSE), FALSE),
        (call("and", ONE, NULL), call("and", ONE, NULL)),
        (call("or", ONE, TRUE), TRUE),
        (call("or", ONE, FALSE), ONE),
        (call("and", ONE, call("and", TWO, ONE)), call("and", ONE, TWO)),
        (call("not", call("not", ONE)), ONE),
        (call("not", call("lt", X, Y)), call("gte", X, Y)),
        (call("not", call("is_null", X)), call("is_not_null", X)),
        (call("equal", number(1), X), ONE),
        (call("lt", number(1), X), call("gt", X, number(1))),
        (call("lt", number(1), number(2)), TRUE),
        (call("lt", number(1), Literal(None, INTEGER)), NULL),
        (call("is_null", number(1)), FALSE),
        (InList(X, (number(1),), BOOL), ONE),
        (InList(X, (number(1), number(1), number(2)), BOOL), InList(X, (number(1), number(2)), BOOL)),
        (call("or", ONE, call("equal", X, number(2))), InList(X, (number(1), number(2)), BOOL)),
        (
            call("or", ONE, call("or", TWO, InList(X, (number(5), number(1)), BOOL))),
            call("or", InList(X, (number(1), number(5)), BOOL), TWO),
        ),
        (call("or", call("and", ONE, TWO), call("and", ONE, THREE)), call("and", ONE, call("or", TWO, THREE))),
        (call("or", call("and", ONE, TWO), ONE), ONE),
    ],
)
def test_folding(expression: Expression, expected: Expression) -> None:
    assert fold(expression) == expected


def test_floats_are_not_mirrored_under_not() -> None:
    """NOT a < b holds for NaN, a >= b does not."""
    a, b = FieldReference(0, pa.float64()), FieldReference(1, pa.float64())
    assert fold(call("not", call("lt", a, b))) == call("not", call("lt", a, b))


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (call("and", ONE, NULL), FALSE),
        (call("or", ONE, NULL), ONE),
        (call("or", call("and", ONE, NULL), TWO), TWO),
        (call("not", call("and", ONE, NULL)), call("not_equal", X, number(1))),
        (InList(X, (number(1), Literal(None, INTEGER)), BOOL), ONE),
        (call("equal", X, X), call("is_not_null", X)),
        (IfThen(((ONE, TRUE), (TWO, FALSE)), NULL, BOOL), ONE),
        (IfThen(((ONE, FALSE), (TWO, TRUE)), NULL, BOOL), IfThen(((ONE, FALSE), (TWO, TRUE)), NULL, BOOL)),
    ],
)
def test_null_is_false_where_only_true_counts(predicate: Expression, expected: Expression) -> None:
    assert fold_condition(predicate) == expected


def test_random_expressions_keep_their_value() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        predicate = random_predicate(chance, T)
        if chance.random() < 0.5:
            predicate = Call(chance.choice(("and", "or")), (predicate, random_predicate(chance, T)), BOOL)
        if chance.random() < 0.3:
            predicate = Call("not", (predicate,), BOOL)
        row = tuple(chance.choice((None, 0, 1, 2, 3)) for _ in range(3))
        assert value(fold(predicate), row) is value(predicate, row)
        assert (value(fold_condition(predicate), row) is True) == (value(predicate, row) is True)


# Where predicates go


def inner(left: LogicalPlan, right: LogicalPlan, *, kind: JoinKind = JoinKind.INNER) -> Join:
    return Join(left, right, kind, (), (), ())


def test_filters_end_in_the_read() -> None:
    plan = Filter(Filter(READ_T, ONE), call("and", TWO, ONE))
    assert simplify_plan(plan) == Read("t", (0, 1, 2), T, call("and", ONE, TWO))


def test_a_cross_join_under_an_equality_gets_keys() -> None:
    plan = Filter(
        inner(READ_T, READ_U), call("and", call("equal", field(4), field(0)), call("equal", field(5), number(1)))
    )
    joined = simplify_plan(plan)
    assert isinstance(joined, Join)
    assert (joined.left_keys, joined.right_keys, joined.residual) == ((0,), (1,), None)
    assert isinstance(joined.right, Read)
    assert joined.right.predicate == call("equal", field(2), number(1))


def test_a_constant_for_a_key_holds_on_both_sides() -> None:
    plan = Filter(inner(READ_T, READ_U), call("and", call("equal", field(0), field(3)), ONE))
    joined = simplify_plan(plan)
    assert isinstance(joined, Join)
    assert isinstance(joined.right, Read)
    assert joined.right.predicate == ONE


def test_an_or_over_both_sides_says_something_about_each() -> None:
    alternatives = call(
        "or",
        call("and", ONE, call("equal", field(3), number(7))),
        call("and", TWO, call("equal", field(3), number(8))),
    )
    joined = simplify_plan(Filter(inner(READ_T, READ_U), alternatives))
    assert isinstance(joined, Join)
    assert joined.residual == alternatives
    assert isinstance(joined.left, Read)
    assert isinstance(joined.right, Read)
    assert joined.left.predicate == call("or", ONE, TWO)
    assert joined.right.predicate == InList(X, (number(7), number(8)), BOOL)


RIGHT_SIDE, LEFT_SIDE = call("gt", field(4), number(0)), call("gt", field(1), number(0))


@pytest.mark.parametrize(
    ("kind", "predicate", "expected"),
    [
        (JoinKind.LEFT, RIGHT_SIDE, JoinKind.INNER),
        (JoinKind.LEFT, LEFT_SIDE, JoinKind.LEFT),
        (JoinKind.LEFT, call("is_null", field(4)), JoinKind.LEFT),
        (JoinKind.LEFT, call("is_not_null", field(4)), JoinKind.INNER),
        (JoinKind.LEFT, call("or", RIGHT_SIDE, LEFT_SIDE), JoinKind.LEFT),
        (JoinKind.LEFT, call("not", RIGHT_SIDE), JoinKind.INNER),
        (JoinKind.LEFT, call("is_not_true", RIGHT_SIDE), JoinKind.LEFT),
        (JoinKind.RIGHT, LEFT_SIDE, JoinKind.INNER),
        (JoinKind.RIGHT, RIGHT_SIDE, JoinKind.RIGHT),
        (JoinKind.FULL, LEFT_SIDE, JoinKind.LEFT),
        (JoinKind.FULL, RIGHT_SIDE, JoinKind.RIGHT),
        (JoinKind.FULL, call("and", LEFT_SIDE, RIGHT_SIDE), JoinKind.INNER),
        (JoinKind.FULL, call("or", LEFT_SIDE, RIGHT_SIDE), JoinKind.FULL),
    ],
)
def test_outer_joins_under_filters(kind: JoinKind, predicate: Expression, expected: JoinKind) -> None:
    joined: LogicalPlan = Join(READ_T, READ_U, kind, (0,), (0,), (False,))
    joined = simplify_plan(Filter(joined, predicate))
    while isinstance(joined, Filter):
        joined = joined.input
    assert isinstance(joined, Join)
    assert joined.kind is expected


NEVER_NULL: Schema = tuple(Field(name, INTEGER, False) for name in "xyz")


@pytest.mark.parametrize(
    ("joined", "predicate", "expected"),
    [
        (Join(READ_T, READ_U, JoinKind.LEFT, (0,), (0,), (False,)), field(3), JoinKind.ANTI),
        (Join(READ_T, READ_U, JoinKind.LEFT, (0,), (0,), (True,)), field(3), JoinKind.LEFT),
        (Join(READ_T, READ_U, JoinKind.LEFT, (0,), (0,), (False,), call("gt", Y, field(5))), field(5), JoinKind.ANTI),
        (Join(READ_T, READ_U, JoinKind.LEFT, (0,), (0,), (False,), call("gt", Y, field(5))), field(4), JoinKind.LEFT),
        (
            Join(READ_T, Read("u", (0, 1, 2), NEVER_NULL), JoinKind.LEFT, (0,), (0,), (False,)),
            field(4),
            JoinKind.ANTI,
        ),
        (Join(READ_T, READ_U, JoinKind.LEFT, (0,), (0,), (False,)), X, JoinKind.LEFT),
        (Join(READ_T, READ_U, JoinKind.RIGHT, (0,), (0,), (False,)), X, JoinKind.ANTI),
        (Join(READ_T, READ_U, JoinKind.RIGHT, (0, 1), (0, 1), (False, True)), Y, JoinKind.RIGHT),
        (Join(READ_T, READ_U, JoinKind.RIGHT, (0, 1), (0, 1), (False, True)), X, JoinKind.ANTI),
        (Join(READ_T, READ_U, JoinKind.FULL, (0,), (0,), (False,)), X, JoinKind.FULL),
    ],
    ids=[
        "key",
        "NULL is equal",
        "compared",
        "any field",
        "never NULL",
        "of the kept side",
        "right",
        "right, NULL is equal",
        "right, several keys",
        "full",
    ],
)
def test_only_rows_without_a_partner(joined: Join, predicate: Expression, expected: JoinKind) -> None:
    """NULL in what every partner has a value of: no partner. The rows are those of the filter over the outer join."""
    filtered = Filter(joined, call("is_null", predicate))
    simpler = simplify_plan(filtered)
    found = simpler
    while isinstance(found, Filter | Project):
        found = found.input
    assert isinstance(found, Join)
    assert found.kind is expected
    assert [f.type for f in simpler.schema] == [f.type for f in filtered.schema]
    chance = random.Random(7)
    for _ in range(40):
        contents = {
            name: [tuple(chance.choice(values) for _ in range(3)) for _ in range(chance.randrange(12))]
            for name, values in (
                ("t", [None, 1, 2, 3, 4]),
                ("u", [1, 2, 3] if joined.right.schema is NEVER_NULL else [None, 1, 2, 3]),
            )
        }
        tables = Tables({"t": T, "u": joined.right.schema}, contents)
        assert multiset(rows_of(simpler, tables)) == multiset(rows_of(filtered, tables))


@pytest.mark.parametrize(
    ("condition", "kind"),
    [(field(3), JoinKind.SEMI), (call("not", field(3)), JoinKind.ANTI), (call("is_not_true", field(3)), JoinKind.ANTI)],
)
def test_a_filter_on_a_mark_is_a_semi_or_an_anti_join(condition: Expression, kind: JoinKind) -> None:
    marked = Join(READ_T, READ_U, JoinKind.MARK, (0,), (0,), (False,))
    mark = FieldReference(3, BOOL)
    condition = mark if isinstance(condition, FieldReference) else Call(condition.function, (mark,), BOOL)  # type: ignore[union-attr]
    plan = simplify_plan(Filter(marked, condition))
    assert isinstance(plan, Project)
    assert isinstance(plan.input, Join)
    assert plan.input.kind is kind


def test_predicates_on_keys_go_below_an_aggregation() -> None:
    grouped = Aggregate(READ_T, (1,), (), (T[1],))
    assert simplify_plan(Filter(grouped, ONE)) == Aggregate(Read("t", (0, 1, 2), T, TWO_AS_ONE), (1,), (), (T[1],))


TWO_AS_ONE = call("equal", Y, number(1))


def test_predicates_stay_above_where_there_is_always_a_row() -> None:
    empty_key = Aggregate(READ_T, (), (), ())
    undefined = Call("divide", (number(1), number(0)), INTEGER)
    plan = simplify_plan(Filter(empty_key, call("equal", undefined, number(2))))
    assert isinstance(plan, Filter)
    rollup = Aggregate(READ_T, (0,), (), (T[0], Field("set", pa.int32())), ((0,), ()))
    assert isinstance(simplify_plan(Filter(rollup, ONE)), Filter)


def test_predicates_stay_above_a_limit() -> None:
    plan = Filter(Limit(READ_T, 0, 3), ONE)
    assert simplify_plan(plan) == plan


def test_predicates_go_into_every_part_of_a_union() -> None:
    plan = simplify_plan(Filter(UnionAll((READ_T, READ_U), T), ONE))
    assert isinstance(plan, UnionAll)
    assert [part.predicate for part in plan.inputs if isinstance(part, Read)] == [ONE, ONE]


# Shapes


def test_nothing_is_empty_all_the_way_up() -> None:
    nothing = Filter(READ_U, FALSE)
    assert simplify_plan(Sort(inner(READ_T, nothing), ())) == Values((), T + U)
    assert simplify_plan(Filter(READ_T, call("equal", number(1), number(2)))) == Values((), T)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (JoinKind.INNER, []),
        (JoinKind.SEMI, []),
        (JoinKind.RIGHT, []),
        (JoinKind.LEFT, [(1, 2, 3, None, None, None)]),
        (JoinKind.FULL, [(1, 2, 3, None, None, None)]),
        (JoinKind.ANTI, [(1, 2, 3)]),
        (JoinKind.MARK, [(1, 2, 3, False)]),
    ],
)
def test_joins_with_nothing_are_no_joins(kind: JoinKind, expected: list[tuple[object, ...]]) -> None:
    one_row = Values(((1, 2, 3),), T)
    plan = simplify_plan(inner(one_row, Filter(READ_U, FALSE), kind=kind))
    assert not isinstance(plan, Join)
    from tests.planner.interpreter import Tables

    assert rows_of(plan, Tables({"t": T, "u": U}, {"t": [], "u": []})) == expected


def test_projections_merge_unless_work_would_double() -> None:
    total = Call("add", (X, Y), INTEGER)
    below = Project(READ_T, (total,), T[:1])
    once = simplify_plan(Project(below, (Call("add", (X, number(1)), INTEGER),), T[:1]))
    assert isinstance(once, Project)
    assert once.input == READ_T
    twice = simplify_plan(Project(below, (Call("add", (X, X), INTEGER),), T[:1]))
    assert isinstance(twice, Project)
    assert twice.input == below


def test_a_limit_meets_its_sort_below_a_projection() -> None:
    plan = simplify_plan(Limit(Project(Sort(READ_T, ()), (Y,), T[1:2]), 0, 5))
    assert isinstance(plan, Project)
    assert plan.input == Limit(Sort(READ_T, ()), 0, 5)


def test_limits_of_limits_are_one() -> None:
    assert simplify_plan(Limit(Limit(READ_T, 2, 10), 3, 20)) == Limit(READ_T, 5, 7)
    assert simplify_plan(Limit(READ_T, 0, 0)) == Values((), T)
    assert simplify_plan(Limit(READ_T, 0, None)) == READ_T


def test_a_projection_of_a_read_is_a_narrower_read() -> None:
    assert simplify_plan(Project(READ_T, (Z, X), (T[2], T[0]))) == Read("t", (2, 0), (T[2], T[0]))


def test_equal_sub_plans_stay_equal() -> None:
    part = Aggregate(Filter(inner(READ_T, READ_U), call("equal", field(0), field(3))), (0,), (), T[:1])
    joined = simplify_plan(Join(part, part, JoinKind.INNER, (0,), (0,), (False,)))
    assert isinstance(joined, Join)
    assert joined.left == joined.right


def test_all_conjuncts_arrive() -> None:
    conditions = [call("lt", field(i % 3), number(i)) for i in range(500)]
    plan = simplify_plan(Filter(READ_T, Call("and", tuple(conditions), BOOL)))
    assert isinstance(plan, Read)
    assert len(conjuncts(plan.predicate)) == 500
