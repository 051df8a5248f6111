"""Plans that say another type for a column than its table has by now."""

from __future__ import annotations

import pyarrow as pa
import pytest
from substrait.type_pb2 import Type

from pystachio.errors import InvalidRequest
from pystachio.operators.batch import Field
from pystachio.operators.expressions import Cast
from pystachio.planner.logical import Project
from pystachio.planner.substrait.plan import read_plan
from tests.planner.substrait_plans import I64, plan, read, schema


def decimal(precision: int, scale: int) -> Type:
    return Type(decimal=Type.Decimal(precision=precision, scale=scale, nullability=Type.NULLABILITY_NULLABLE))


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (pa.float64(), I64),
        (pa.float32(), decimal(38, 10)),
        (pa.decimal128(9, 2), I64),
        (pa.decimal128(9, 2), decimal(9, 1)),
    ],
)
def test_columns_that_a_plan_would_round_are_refused(stored: pa.DataType, expected: Type) -> None:
    """Their table has changed since the plan was made."""
    made = plan(read("f", schema(v=expected)), ["v"], ())
    with pytest.raises(InvalidRequest, match="the plan expects") as caught:
        read_plan(made, {"f": (Field("v", stored),)})
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(pa.decimal128(9, 2), decimal(15, 2)), (pa.decimal128(9, 2), decimal(9, 4)), (pa.int64(), decimal(19, 0))],
)
def test_columns_that_keep_their_digits_are_cast(stored: pa.DataType, expected: Type) -> None:
    query, _ = read_plan(plan(read("f", schema(v=expected)), ["v"], ()), {"f": (Field("v", stored),)})
    assert isinstance(query.root, Project)
    assert isinstance(query.root.expressions[0], Cast)
