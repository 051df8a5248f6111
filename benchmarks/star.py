"""A star schema: the thirteen statements of the Star Schema Benchmark over generated, skewed data with sparse keys."""

from __future__ import annotations

from benchmarks import star_data
from benchmarks.contest import contest
from benchmarks.engines import BUILDS_ANEW
from benchmarks.report import Report

GOAL = 0.7
"""Of DuckDB on its own file."""


def run(*, scale: float, quick: bool) -> Report:
    repetitions = 3 if quick else 5
    return contest(star_data.folder(scale), QUERIES, repetitions=repetitions, goal=GOAL, beside=(BUILDS_ANEW,))


def _revenue(where: str) -> str:
    return (
        "select sum(lo_extendedprice * lo_discount) as revenue from lineorder, date"
        f" where lo_orderdate = d_datekey and {where}"
    )


def _brands(where: str) -> str:
    return (
        "select sum(lo_revenue) as revenue, d_year, p_brand1 from lineorder, date, part, supplier"
        " where lo_orderdate = d_datekey and lo_partkey = p_partkey and lo_suppkey = s_suppkey"
        f" and {where} group by d_year, p_brand1 order by d_year, p_brand1"
    )


def _places(place: str, where: str) -> str:
    return (
        f"select c_{place}, s_{place}, d_year, sum(lo_revenue) as revenue from customer, lineorder, supplier, date"
        " where lo_custkey = c_custkey and lo_suppkey = s_suppkey and lo_orderdate = d_datekey"
        f" and {where} group by c_{place}, s_{place}, d_year order by d_year, revenue desc, c_{place}, s_{place}"
    )


def _profit(columns: str, where: str) -> str:
    return (
        f"select d_year, {columns}, sum(lo_revenue - lo_supplycost) as profit"
        " from date, customer, supplier, part, lineorder"
        " where lo_custkey = c_custkey and lo_suppkey = s_suppkey and lo_partkey = p_partkey"
        f" and lo_orderdate = d_datekey and {where} group by d_year, {columns} order by d_year, {columns}"
    )


_TWO_CITIES = (
    "c_city in ('UNITED KI1', 'UNITED KI5') and s_city in ('UNITED KI1', 'UNITED KI5') and c_nation = 'UNITED KINGDOM'"
)

QUERIES = {
    "1.1": _revenue("d_year = 1993 and lo_discount between 1 and 3 and lo_quantity < 25"),
    "1.2": _revenue("d_yearmonthnum = 199401 and lo_discount between 4 and 6 and lo_quantity between 26 and 35"),
    "1.3": _revenue(
        "d_weeknuminyear = 6 and d_year = 1994 and lo_discount between 5 and 7 and lo_quantity between 26 and 35"
    ),
    "2.1": _brands("p_category = 'MFGR#12' and s_region = 'AMERICA'"),
    "2.2": _brands("p_brand1 between 'MFGR#2221' and 'MFGR#2228' and s_region = 'ASIA'"),
    "2.3": _brands("p_brand1 = 'MFGR#2239' and s_region = 'EUROPE'"),
    "3.1": _places("nation", "c_region = 'ASIA' and s_region = 'ASIA' and d_year between 1992 and 1997"),
    "3.2": _places(
        "city", "c_nation = 'UNITED STATES' and s_nation = 'UNITED STATES' and d_year between 1992 and 1997"
    ),
    "3.3": _places("city", f"{_TWO_CITIES} and d_year between 1992 and 1997"),
    "3.4": _places("city", f"{_TWO_CITIES} and d_yearmonth = 'Dec1997'"),
    "4.1": _profit("c_nation", "c_region = 'AMERICA' and s_region = 'AMERICA' and p_mfgr in ('MFGR#1', 'MFGR#2')"),
    "4.2": _profit(
        "s_nation, p_category",
        "c_region = 'AMERICA' and s_region = 'AMERICA' and d_year in (1997, 1998) and p_mfgr in ('MFGR#1', 'MFGR#2')",
    ),
    "4.3": _profit(
        "s_city, p_brand1",
        "s_nation = 'UNITED STATES' and c_region = 'AMERICA' and d_year in (1997, 1998) and p_category = 'MFGR#14'",
    ),
}
