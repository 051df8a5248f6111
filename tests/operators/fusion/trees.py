"""Random typed expressions over the columns of `table`."""

from __future__ import annotations

import random
from typing import Any, Final

import pyarrow as pa

from pystachio.operators.batch import Batch, Schema
from pystachio.operators.column import Dictionary
from pystachio.operators.expressions import Cast, Expression, IfThen, InList
from pystachio.operators.functions.registry import result_type
from tests.operators.fusion.chains import (
    WORDS,
    batch_of,
    booleans,
    call,
    codes,
    floats,
    integers,
    lit,
    plain,
    ref,
    schema_of,
)

INT: Final = pa.int64()
PRICE: Final = pa.decimal128(12, 2)
RATE: Final = pa.decimal128(9, 4)
WIDE: Final = pa.decimal128(38, 2)
FLOAT: Final = pa.float64()
DAY: Final = pa.date32()
MOMENT: Final = pa.timestamp("us")
TEXT: Final = pa.string()
FLAG: Final = pa.bool_()

TYPES: Final = (INT, INT, pa.int32(), PRICE, RATE, FLOAT, DAY, FLAG, FLAG, TEXT, TEXT, WIDE, MOMENT, INT)
SCHEMA: Final[Schema] = schema_of(*TYPES)


def table(r: random.Random, rows: int, dictionary: Dictionary, *, nulls: float, shift: int = 0) -> Batch:
    """A batch of SCHEMA; `shift` moves its ranges."""

    def share() -> float:
        return nulls if r.random() < 0.7 else 0.0

    def known() -> bool:
        return r.random() < 0.5

    low = shift
    return batch_of(
        integers(r, INT, rows, low - 5, low + 9, nulls=share(), known=known()),
        integers(r, INT, rows, r.choice((-(2**63), -(2**40), 0)), r.choice((2**33, 2**63 - 1)), nulls=share()),
        integers(r, pa.int32(), rows, 0, low + 300, nulls=share(), known=known()),
        integers(r, PRICE, rows, -100, low * 7 + 99_999, nulls=share(), known=known()),
        integers(r, RATE, rows, 0, 1000, nulls=share()),
        floats(r, rows, share()),
        integers(r, DAY, rows, 9000 + low, 9400 + low, nulls=share(), known=known()),
        booleans(r, rows, share()),
        booleans(r, rows, share()),
        codes(r, rows, dictionary, share()),
        plain(r, rows, TEXT, WORDS, share()),
        plain(r, rows, WIDE, [10**30, -5, 7], share()),
        integers(r, MOMENT, rows, 0, 2**50, nulls=share()),
        integers(r, INT, rows, 0, 1, nulls=share()),
    )


class Trees:
    """Expressions of a wanted type, at most so deep. `literal_nulls`: how often a constant is NULL."""

    def __init__(self, r: random.Random, literal_nulls: float = 0.05) -> None:
        self.r = r
        self.literal_nulls = literal_nulls

    def of(self, type_: pa.DataType, depth: int) -> Expression:
        if type_ == FLAG:
            return self.flag(depth)
        if type_ == INT:
            return self.int(depth)
        if type_ == FLOAT:
            return self.float(depth)
        if type_ == DAY:
            return self.pick(lambda: ref(SCHEMA, 6), lambda: self.constant(DAY))
        if type_ == TEXT:
            return self.text(depth)
        return self.decimal(depth)

    def pick(self, *makers: Any) -> Expression:
        made: Expression = self.r.choice(makers)()
        return made

    def constant(self, type_: pa.DataType) -> Expression:
        if self.r.random() < self.literal_nulls:
            return lit(None, type_)
        r = self.r
        if type_ == FLAG:
            return lit(r.random() < 0.5, type_)
        if type_ == FLOAT:
            return lit(r.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), -50.25]), type_)
        if type_ == DAY:
            return lit(r.randint(8990, 9410), type_)
        if type_ == MOMENT:
            return lit(r.choice([0, 9100 * 86_400_000_000, 2**49 + 1]), type_)
        if type_ == TEXT:
            return lit(r.choice(WORDS), type_)
        return lit(r.choice([0, 1, -1, 5, 7, 100, 1234, 2**31, -(2**63), 2**63 - 1]), type_)

    def number(self, depth: int) -> Expression:
        return self.pick(lambda: self.int(depth), lambda: self.decimal(depth))

    def flag(self, depth: int) -> Expression:
        simple = (lambda: ref(SCHEMA, 7), lambda: ref(SCHEMA, 8), lambda: self.constant(FLAG))
        if depth == 0:
            return self.pick(*simple)
        d = depth - 1
        compare = ("equal", "not_equal", "lt", "lte", "gt", "gte")

        def compared(left: Any, right: Any) -> Any:
            return lambda: call(self.r.choice(compare), left(), right())

        def listed() -> Expression:
            type_ = self.r.choice([INT, TEXT, DAY, PRICE])
            operand = ref(SCHEMA, 3) if type_ == PRICE else self.of(type_, d)
            options = tuple(self.constant(type_) for _ in range(self.r.choice([1, 3, 9])))
            return InList(operand, options, FLAG)

        return self.pick(
            *simple,
            compared(lambda: self.number(d), lambda: self.number(d)),
            compared(lambda: self.number(d), lambda: self.constant(self.r.choice([INT, PRICE, RATE]))),
            compared(lambda: self.constant(INT), lambda: self.int(d)),
            compared(lambda: self.float(d), lambda: self.float(d)),
            compared(lambda: ref(SCHEMA, 6), lambda: self.of(DAY, d)),
            compared(lambda: ref(SCHEMA, 6), lambda: self.constant(MOMENT)),
            compared(lambda: ref(SCHEMA, 12), lambda: self.pick(lambda: ref(SCHEMA, 6), lambda: self.constant(MOMENT))),
            compared(lambda: self.text(d), lambda: self.text(d)),
            compared(lambda: self.flag(d), lambda: self.flag(d)),
            listed,
            listed,
            lambda: call("and", *(self.flag(d) for _ in range(self.r.choice([2, 3])))),
            lambda: call("or", *(self.flag(d) for _ in range(self.r.choice([2, 3])))),
            lambda: call("not", self.flag(d)),
            lambda: call(self.r.choice(["is_null", "is_not_null"]), self.number(d)),
            lambda: call(self.r.choice(["is_null", "is_not_null"]), ref(SCHEMA, self.r.randrange(len(SCHEMA)))),
            lambda: call(
                self.r.choice(["is_distinct_from", "is_not_distinct_from"]), ref(SCHEMA, 0), self.constant(INT)
            ),
            lambda: call("like", ref(SCHEMA, self.r.choice([9, 9, 10])), lit(self.r.choice(["%a%", "a_", "z%"]), TEXT)),
            lambda: self.choice(FLAG, d),
        )

    def int(self, depth: int) -> Expression:
        simple = (
            lambda: ref(SCHEMA, 0),
            lambda: ref(SCHEMA, 1),
            lambda: ref(SCHEMA, 13),
            lambda: Cast(ref(SCHEMA, 2), INT),
            lambda: self.constant(INT),
        )
        if depth == 0:
            return self.pick(*simple)
        d = depth - 1
        return self.pick(
            *simple,
            lambda: call(self.r.choice(["add", "subtract", "multiply"]), self.int(d), self.int(d), type_=INT),
            lambda: call("add", ref(SCHEMA, 0), self.int(d), type_=INT),
            lambda: call("coalesce", self.int(d), self.int(d), type_=INT),
            lambda: call("nullif", ref(SCHEMA, 0), self.constant(INT), type_=INT),
            lambda: call("char_length", self.text(d), type_=INT),
            lambda: call("date_part", lit("year", TEXT), self.of(DAY, d), type_=INT),
            lambda: self.choice(INT, d),
            lambda: Cast(self.text(0), INT, null_on_failure=True),
        )

    def decimal(self, depth: int) -> Expression:
        if depth == 0:
            return self.pick(lambda: ref(SCHEMA, 3), lambda: ref(SCHEMA, 4))
        d = depth - 1

        def arithmetic() -> Expression:
            function = self.r.choice(["add", "subtract", "multiply"])
            pair = (self.decimal(d), self.decimal(d))
            return call(function, *pair, type_=result_type(function, [side.type for side in pair]))

        return self.pick(
            lambda: self.decimal(0),
            arithmetic,
            arithmetic,
            lambda: Cast(self.int(0), pa.decimal128(25, 3)),
            lambda: self.choice(PRICE, d),
            lambda: Cast(self.decimal(0), pa.decimal128(20, 5)),
        )

    def float(self, depth: int) -> Expression:
        if depth == 0:
            return self.pick(lambda: ref(SCHEMA, 5), lambda: self.constant(FLOAT))
        d = depth - 1
        return self.pick(
            lambda: self.float(0),
            lambda: call(
                self.r.choice(["add", "subtract", "multiply", "divide"]), self.float(d), self.float(d), type_=FLOAT
            ),
            lambda: Cast(self.number(d), FLOAT),
            lambda: self.choice(FLOAT, d),
        )

    def text(self, depth: int) -> Expression:
        simple = (lambda: ref(SCHEMA, 9), lambda: ref(SCHEMA, 9), lambda: ref(SCHEMA, 10), lambda: self.constant(TEXT))
        if depth == 0:
            return self.pick(*simple)
        return self.pick(
            *simple,
            lambda: call("upper", ref(SCHEMA, 9), type_=TEXT),
            lambda: call("coalesce", ref(SCHEMA, 9), self.constant(TEXT), type_=TEXT),
        )

    def choice(self, type_: pa.DataType, depth: int) -> Expression:
        def then() -> Expression:
            if type_ == PRICE:
                return self.pick(lambda: ref(SCHEMA, 3), lambda: self.constant(PRICE))
            return self.of(type_, depth)

        clauses = tuple((self.flag(depth), then()) for _ in range(self.r.choice([1, 2])))
        return IfThen(clauses, then(), type_)
