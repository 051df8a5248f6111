"""Functions of constants that only DataFusion has."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

from pystachio.errors import PystachioError
from pystachio.operators.expressions import Literal
from pystachio.planner.logical import Project
from pystachio.planner.sql.errors import from_datafusion
from pystachio.planner.substrait.plan import read_plan


def constant_call(name: str, arguments: Sequence[Literal]) -> Literal | None:
    """The function's value, as DataFusion computes it while it simplifies; None where that is no constant.

    Raises InvalidRequest for arguments that it does not take.
    """
    from datafusion.substrait import Producer

    sql = f'select "{name}"({", ".join(f"${number}" for number in range(1, len(arguments) + 1))})'
    values = {str(number): _scalar(argument) for number, argument in enumerate(arguments, 1)}
    try:
        plan = _calculator().sql(sql, param_values=values or None).optimized_logical_plan()
        query, _ = read_plan(Producer.to_substrait_plan(plan, _calculator()).encode(), {})
    except BaseException as error:
        if isinstance(error, PystachioError | KeyboardInterrupt | SystemExit):
            raise
        raise from_datafusion(error, sql, sql, ()) from None
    match query.root:
        case Project(expressions=(Literal() as found,)):
            return found
        case _:
            return None


@cache
def _calculator() -> Any:
    from datafusion import SessionContext

    return SessionContext()


def _scalar(literal: Literal) -> pa.Scalar:
    value, type_ = literal.value, literal.type
    if value is not None and pa.types.is_decimal(type_):
        digits = tuple(map(int, str(abs(value))))
        return pa.scalar(Decimal((int(value < 0), digits, -type_.scale)), type_)
    if value is not None and pa.types.is_interval(type_):
        return pa.scalar(pa.MonthDayNano(value), type_)
    return pa.scalar(value, type_)
