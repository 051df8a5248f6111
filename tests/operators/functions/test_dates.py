"""Dates and times against DuckDB."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pystachio.errors import DataError
from pystachio.operators.expressions import Call
from pystachio.operators.kernels import dates
from tests.operators.functions.oracle import call, check, col, lit, ours, tables

DATE_PARTS = ["year", "month", "day", "quarter", "week", "isoyear", "dow", "isodow", "doy", "decade", "century"]
TIME_PARTS = ["hour", "minute", "second", "millisecond", "microsecond"]
DAYS = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))


@pytest.mark.parametrize("part", [*DATE_PARTS, "epoch"])
def test_parts_of_dates(part: str) -> None:
    check(call("date_part", lit(part), col("day")), f"date_part('{part}', day)")


@pytest.mark.parametrize("part", [*DATE_PARTS, *TIME_PARTS])
def test_parts_of_timestamps(part: str) -> None:
    check(call("date_part", lit(part), col("moment")), f"date_part('{part}', moment)")


def test_epoch_and_clock() -> None:
    check(call("date_part", lit("epoch"), col("moment"), type_=pa.float64()), "epoch(moment)")
    check(call("date_part", lit("hour"), col("clock")), "hour(clock)")
    check(call("date_part", lit("second"), col("clock")), "second(clock)")


@pytest.mark.parametrize("unit", ["day", "week", "month", "quarter", "year", "decade", "hour", "minute", "second"])
def test_truncation(unit: str) -> None:
    check(call("date_trunc", lit(unit), col("moment")), f"date_trunc('{unit}', moment)")
    check(call("date_trunc", lit(unit), col("day"), type_=pa.timestamp("us")), f"date_trunc('{unit}', day)::timestamp")


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (call("add", col("day"), lit((1, 0, 0))), "(day + interval 1 month)::date"),
        (call("subtract", col("day"), lit((13, 0, 0))), "(day - interval 13 month)::date"),
        (call("add", lit((0, 90, 0)), col("day")), "(day + interval 90 day)::date"),
        (
            call("add", col("moment"), lit((1, 2, 3_000_000_000))),
            "moment + interval 1 month + interval 2 day + interval 3 second",
        ),
        (call("subtract", col("moment"), lit((12, 0, 0))), "moment - interval 1 year"),
        (call("add", col("day"), lit(3), type_=pa.date32()), "day + 3"),
        (call("subtract", col("day"), lit(3), type_=pa.date32()), "day - 3"),
        (call("add", col("day"), col("i"), type_=pa.date32()), "day + i"),
        (call("subtract", col("day"), col("other_day")), "day - other_day"),
        (call("subtract", col("day"), lit(dt.date(2000, 1, 1))), "day - date '2000-01-01'"),
        (call("subtract", col("moment"), col("moment")), "moment - moment"),
        (call("subtract", col("moment"), col("day")), "moment - day"),
        (
            call("add", call("subtract", col("moment"), col("day")), col("day"), type_=pa.timestamp("us")),
            "moment + (day - day) * interval 1 day",
        ),
        (call("last_day", col("day")), "last_day(day)"),
        (call("make_date", lit(2024), lit(2), lit(29)), "make_date(2024, 2, 29)"),
        (call("make_date", call("date_part", lit("year"), col("day")), lit(1), lit(1)), "make_date(year(day), 1, 1)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arithmetic(expression: Call, sql: str) -> None:
    check(expression, sql)


def test_a_date_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(DataError):
        ours(call("make_date", lit(2023), lit(2), lit(29)), tables()["nullable"])


@given(DAYS, st.integers(-1000, 1000))
def test_calendar(day: dt.date, months: int) -> None:
    number = torch.tensor([(day - dt.date(1970, 1, 1)).days])
    assert tuple(part.item() for part in dates.civil_from_days(number)) == (day.year, day.month, day.day)
    assert dates.days_from_civil(dates.civil_from_days(number)).item() == number.item()
    assert dates.weekday(number).item() == day.weekday()
    assert tuple(part.item() for part in dates.iso_week(number)) == tuple(day.isocalendar())[:2]
    moved = dates.civil_from_days(dates.add_months(number, months))
    assert moved.year.item() * 12 + moved.month.item() == day.year * 12 + day.month + months
    assert moved.day.item() in (day.day, dates.days_in_month(moved.year, moved.month).item())
