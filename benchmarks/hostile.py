"""Ten statements over tables that no trick helps with; none may take much longer than DuckDB on the same files."""

from __future__ import annotations

from benchmarks import hostile_data
from benchmarks.contest import contest
from benchmarks.report import Report

WORST = 1.5
"""Of DuckDB on the same Parquet files, for each statement."""


def run(*, scale: float, quick: bool) -> Report:
    return contest(hostile_data.folder(scale), QUERIES, repetitions=3 if quick else 5, worst_on_parquet=WORST)


def _chain() -> str:
    """A walk of as many steps as there are; each place is known only by a random 64-bit number."""
    steps = range(1, hostile_data.STEPS + 1)
    joins = (
        f" join step s{step} on s{step}.place = " + ("walk.start" if step == 1 else f"s{step - 1}.next")
        for step in steps
    )
    costs = " + ".join(f"s{step}.cost" for step in steps)
    return f"select count(*) as walks, sum({costs}) as cost, sum(paid) as paid from walk" + "".join(joins)


QUERIES = {
    "random join": "select kind, count(*) as c, sum(weight) as w from facts join dimension"
    " on facts.key = dimension.key group by kind order by kind",
    "outer join": "select count(*) as c, count(kind) as hits, sum(price) as p from facts left join dimension"
    " on facts.key = dimension.key and dimension.weight < 500",
    "text join": "select kind, count(*) as c, sum(size) as s from documents join dimension"
    " on documents.code = dimension.code group by kind order by kind",
    "null keys": "select half, count(*) as c, sum(amount) as s from facts group by half order by c desc, half limit 10",
    "heavy key": "select heavy, count(*) as c, sum(amount) as s, max(kind) as k from facts join dimension"
    " on heavy = dimension.key group by heavy order by c desc, heavy limit 10",
    "chain of 30": _chain(),
    "all groups": "select id, count(*) as c, sum(amount) as s, max(price) as p from facts group by id"
    " order by p desc, id limit 10",
    "like": "select count(*) as c, sum(size) as s from documents where body like '%ab%ipsum %cd%'",
    "distinct": "select small, count(distinct key) as k, count(distinct id) as i from facts group by small"
    " order by small",
    "wide top": "select small, price, amount, half, heavy, key, id from facts"
    " order by small desc, heavy, price desc, amount nulls first, half, key, id limit 100",
}
