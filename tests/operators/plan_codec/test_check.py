"""Bytes that no planner made are refused: malformed, too large, or a plan that cannot run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pystachio.cli import tpch
from pystachio.errors import DataError, Unsupported
from pystachio.operators.aggregation.aggregate import Aggregate
from pystachio.operators.aggregation.partial import PartialAggregate
from pystachio.operators.aggregation.plan import Outcome
from pystachio.operators.batch import Field
from pystachio.operators.exchanges.exchange import Exchange, ExchangeKind
from pystachio.operators.expressions import (
    Call,
    Expression,
    FieldReference,
    JoinKind,
    Literal,
    ScalarSubquery,
    SortKey,
)
from pystachio.operators.filter import Filter
from pystachio.operators.joins.join import Join
from pystachio.operators.limit import Limit
from pystachio.operators.pipeline import PhysicalPlan
from pystachio.operators.plan_codec import codec as plan_codec
from pystachio.operators.plan_codec.codec import MOST_DEEP, decode_plan, encode_plan, tables_of
from pystachio.operators.scans.scan import Scan, ScanFilter
from pystachio.operators.scans.scan_top_n import ScanTopN
from pystachio.operators.sort import Sort
from pystachio.operators.spool import Spool
from pystachio.operators.top_n import TopN
from pystachio.operators.union_all import UnionAll
from pystachio.planner.explain import render
from tests.operators.payload_edits import edit
from tests.operators.plan_sources import Planning, over_business, over_traps, rows_of


@pytest.fixture(scope="module")
def business(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planning]:
    with over_business(tmp_path_factory.mktemp("tpch")) as planning:
        yield planning


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planning]:
    with over_traps(tmp_path_factory.mktemp("traps")) as planning:
        yield planning


# What is wrong in a plan that was well formed.
INCONSISTENT: Mapping[str, tuple[PhysicalPlan, str]] = {
    "a field that is not there": (
        PhysicalPlan(Filter(rows_of(pa.bool_(), True), FieldReference(1, pa.bool_())), (), ("a",)),
        "Filter: a field that is not there: 1 of 1",
    ),
    "a field of another type": (
        PhysicalPlan(Filter(rows_of(pa.int8(), 1), FieldReference(0, pa.bool_())), (), ("a",)),
        "the field 0 is int8, not bool",
    ),
    "no predicate": (
        PhysicalPlan(Filter(rows_of(pa.int8(), 1), FieldReference(0, pa.int8())), (), ("a",)),
        "a predicate of the type int8",
    ),
    "a function": (
        PhysicalPlan(Filter(rows_of(pa.int8(), 1), Call("system", (), pa.bool_())), (), ("a",)),
        "a function that nobody knows: 'system'",
    ),
    "a scalar": (
        PhysicalPlan(Filter(rows_of(pa.int8(), 1), ScalarSubquery(0, pa.bool_())), (), ("a",)),
        "a scalar subquery that is not there or not yet: 0 of 0",
    ),
    "a constant": (PhysicalPlan(rows_of(pa.int8(), 128), (), ("a",)), "cannot hold: 128"),
    "a constant of another kind": (PhysicalPlan(rows_of(pa.int8(), "1"), (), ("a",)), "cannot hold: '1'"),
    "names": (PhysicalPlan(rows_of(pa.int8(), 1), (), ("a", "b")), "2 names for 1 columns"),
    "consumers": (PhysicalPlan(Spool(rows_of(pa.int8(), 1), 2), (), ("a",)), "2 consumers of which 1"),
    "an offset": (PhysicalPlan(Limit(rows_of(pa.int8(), 1), -1, None), (), ("a",)), "Limit: a count out of range"),
    "a union": (
        PhysicalPlan(UnionAll((rows_of(pa.int8(), 1),), (Field("a", pa.int16()),)), (), ("a",)),
        "UnionAll: an input: types",
    ),
}


@pytest.mark.parametrize("name", INCONSISTENT)
def test_plans_that_cannot_run_are_refused(name: str) -> None:
    plan, message = INCONSISTENT[name]
    with pytest.raises(DataError, match="inconsistent") as raised:
        decode_plan(encode_plan(plan), {})
    assert message in raised.value.message


def test_plans_that_are_too_deep_are_refused() -> None:
    operator: Any = rows_of(pa.int8(), 1)
    for _ in range(MOST_DEEP + 1):
        operator = Limit(operator, 0, None)
    require_too_large(PhysicalPlan(operator, (), ("a",)))


def test_a_tree_that_is_small_only_because_its_parts_are_shared_is_refused() -> None:
    expression: Expression = Literal(True, pa.bool_())
    for _ in range(100):
        expression = Call("and", (expression, expression), pa.bool_())
    plan = PhysicalPlan(Filter(rows_of(pa.int8(), 1), expression), (), ("a",))
    require_too_large(plan)


def require_too_large(plan: PhysicalPlan) -> None:
    """On both sides."""
    with pytest.raises(Unsupported, match="deep"):
        encode_plan(plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_codec, "_is_too_large", lambda *_: False)
        payload = encode_plan(plan)
    with pytest.raises(DataError, match="too deep or too large"):
        decode_plan(payload, {})


def payload_with(place: int, value: Any) -> bytes:
    raw = msgspec.msgpack.decode(encode_plan(PhysicalPlan(Limit(rows_of(pa.int8(), 1), 0, 3), (), ("a",))))
    raw[place] = value
    return msgspec.msgpack.encode(raw)


def test_malformed_payloads_name_what_is_wrong() -> None:
    known: Any = msgspec.msgpack.decode(payload_with(0, 1))
    rows = known[4]
    strange = [["os.system", ["command"]], *known[3][1:]]
    other_fields = [[name, [*fields, "more"]] for name, fields in known[3]]
    for place, value, message in [
        (0, 2, "another version: 2"),
        (2, [["decimal128", 99, 0]], "a type that nobody knows"),
        (2, [["list", "list"]], "a type that nobody knows"),
        (3, strange, "a class that nobody knows: 'os.system'"),
        (3, other_fields, "'more'"),
        (4, [*rows[:-1], [99]], "without a class"),
        (4, [*rows[:-1], rows[-1][:-1]], "too many or too few values"),
        (4, [*rows[:-1], [*rows[-1][:-1], "3"]], "Limit.count: expected an integer"),
        (4, [*rows[:-1], [*rows[-1][:-1], True]], "Limit.count: expected an integer"),
        (4, [*rows[:-1], [rows[-1][0], len(rows) - 1, *rows[-1][2:]]], "Limit.input: expected one of the"),
        (4, [*rows[:-1], [rows[-1][0], 0, *rows[-1][2:]]], "Limit.input: expected an operator"),
        (5, 0, "is no operator"),
        (5, 1000, "is no operator"),
    ]:
        with pytest.raises(DataError) as raised:
            decode_plan(payload_with(place, value), {})
        assert message in raised.value.message, (place, value)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\xc0", b"\x98\x01" + b"\xdd\x7f\xff\xff\xff", bytes(9 << 20)],
)
def test_bytes_that_are_no_payload_are_refused(payload: bytes) -> None:
    for read in (tables_of, partial(decode_plan, tables={})):
        with pytest.raises(DataError):
            read(payload)


@pytest.mark.parametrize("number", ["q01", "q05", "q08", "q16", "q21", "q22"])
def test_damaged_payloads_are_plans_or_data_errors(business: Planning, number: str) -> None:
    payload = encode_plan(business.plan(tpch.statements()[number]))
    rng = random.Random(number)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(payload)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if rng.random() < 0.1:
            del damaged[rng.randrange(len(damaged)) :]
        try:
            plan = decode_plan(bytes(damaged), business.tables)
        except DataError:
            refused += 1
        else:
            assert render(plan)
            assert [operator.schema for operator in plan.operators]
            assert decode_plan(encode_plan(plan), business.tables)
    assert refused > 500


@pytest.mark.parametrize("number", ["q02", "q05", "q13", "q16", "q21"])
def test_edited_payloads_are_plans_or_data_errors(business: Planning, number: str) -> None:
    payload = encode_plan(business.plan(tpch.statements()[number]))
    rng = random.Random(number)
    refused = 0
    for _ in range(500):
        raw = msgspec.msgpack.decode(payload)
        for _ in range(rng.choice((1, 1, 2, 3))):
            edit(raw, rng)
        try:
            plan = decode_plan(msgspec.msgpack.encode(raw), business.tables)
        except DataError:
            refused += 1
        else:
            assert render(plan)
    assert refused > 300


def one(plan: PhysicalPlan, class_: type) -> Any:
    return next(operator for operator in plan.operators if type(operator) is class_)


def test_operators_that_do_not_fit_their_inputs_are_refused(traps: Planning) -> None:
    sql = "select name, sum(price), count(distinct word) from facts f join dimension d on f.key = d.key group by name"
    plan = traps.plan(sql)
    scan, join, partial_ = one(plan, Scan), one(plan, Join), one(plan, PartialAggregate)
    aggregate = one(plan, Aggregate)
    states = partial_.plan.states
    for operator, message in [
        (replace(scan, columns=(*scan.columns[1:], 99)), "Scan: columns: "),
        (replace(scan, columns=(-1, *scan.columns[1:])), "Scan: columns: "),
        (replace(scan, output=(len(scan.columns),)), "Scan: output: "),
        (replace(scan, filters=(ScanFilter(0, 99),)), "Scan: filters: "),
        (replace(scan, filters=(ScanFilter(99, 0),)), "a runtime filter that nobody makes: [99]"),
        (replace(scan, answered=()), "Scan: answered: 0 of 1 files"),
        (replace(scan, answered=((1, 0),)), "Scan: answered: not ascending"),
        (replace(scan, answered=((10**6,),)), "Scan: answered of "),
        (ScanTopN(scan, (SortKey(99, False, False),), 1, 0), "ScanTopN: keys: "),
        (ScanTopN(scan, (SortKey(0, False, False),), 2**63, 0), "ScanTopN: a count out of range"),
        (Sort(scan, ()), "Sort: no keys"),
        (Exchange(scan, ExchangeKind.SHUFFLE, 0), "Exchange: an exchange by keys without any"),
        (Exchange(scan, ExchangeKind.DEAL, 0, (0,)), "Exchange: an exchange by keys without any, or another with some"),
        (Exchange(scan, ExchangeKind.GATHER, 0, heavy=(1,)), "Exchange: heavy keys, and not an exchange by keys"),
        (Exchange(scan, ExchangeKind.SHUFFLE, 0, (0,), heavy=(1 << 63,)), "Exchange: a hash of more than 64 bits"),
        (Exchange(scan, ExchangeKind.SHUFFLE, 0, (0,), heavy=(1,) * 70_000), "Exchange: 70000 heavy keys"),
        (Exchange(scan, ExchangeKind.RANGE, 0), "Exchange: no keys"),
        (
            Exchange(scan, ExchangeKind.RANGE, 0, (), True, (SortKey(0, False, False),)),
            "Exchange: ranges of one node's",
        ),
        (Exchange(scan, ExchangeKind.BROADCAST, 0, (), False, (SortKey(0, False, False),)), "Exchange: an order, and"),
        (TopN(scan, (SortKey(0, False, False),), 1, -1), "TopN: a count out of range"),
        (replace(join, left_keys=(99,)), "Join: left_keys: "),
        (replace(join, right_keys=(-1,)), "Join: right_keys: "),
        (replace(join, right_keys=(), null_equal=()), "Join: keys, null_equal and runtime_filters differ"),
        (replace(join, output=(99,)), "Join: output: "),
        (replace(join, kind=JoinKind.SEMI, output=(len(join.left.schema),)), "Join: output: "),
        (replace(join, null_aware=True), "Join: null_aware"),
        (replace(partial_, plan=replace(partial_.plan, keys=(99,))), "PartialAggregate: keys: "),
        (replace(partial_, plan=replace(partial_.plan, sets=((1,),))), "PartialAggregate: sets: "),
        (
            replace(partial_, plan=replace(partial_.plan, states=(replace(states[0], arguments=(99,)), *states[1:]))),
            "PartialAggregate: states: ",
        ),
        (replace(partial_, plan=replace(partial_.plan, outcomes=(Outcome("sum", pa.int64(), (99,)),))), "outcomes: "),
        (replace(aggregate, input=scan), "Aggregate: "),
        (replace(aggregate, schema=aggregate.schema[1:]), "Aggregate: the result: "),
    ]:
        broken = PhysicalPlan(operator, (), tuple(field.name for field in fields_or_none(operator)))
        with pytest.raises(DataError, match="inconsistent") as raised:
            decode_plan(encode_plan(broken), traps.tables)
        assert message in raised.value.message


def fields_or_none(operator: Any) -> tuple[Field, ...]:
    try:
        return tuple(operator.schema)
    except IndexError:
        return ()
