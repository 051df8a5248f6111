from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio
from pystachio.errors import NotFound
from pystachio.planner.sql.names import spelt_as_known
from pystachio.planner.sql.text import tokenize

KNOWN = ["Hits", "UserID", "Date", "Count", "url", "First", "Größe", 'Odd"Name']


@pytest.mark.parametrize(
    ("written", "spelt"),
    [
        ("select userid, USERID from hits h", 'select "UserID", "UserID" from "Hits" h'),
        ("select h.userid, \"userid\", 'userid' -- userid", 'select h."UserID", "userid", \'userid\' -- userid'),
        ("select count(*), count from hits", 'select count(*), "Count" from "Hits"'),
        ("select URL, größe", 'select URL, "Größe"'),
        ("order by x nulls first", "order by x nulls first"),
        ("select t.first", 'select t."First"'),
        ("where date >= date '2020-01-01' and date < 3", 'where "Date" >= date \'2020-01-01\' and "Date" < 3'),
        ("cast(date as date), x::date, (date)", 'cast("Date" as date), x::date, ("Date")'),
        ("nothing known", "nothing known"),
        (
            "extract(date from date) like date, interval '1' date",
            'extract(date from "Date") like "Date", interval \'1\' date',
        ),
        ("select userid from hits natural join b", "select userid from hits natural join b"),
    ],
)
def test_names_are_spelt_as_they_are_known(written: str, spelt: str) -> None:
    assert spelt_as_known(written, tokenize(written), KNOWN) == spelt


def test_of_names_that_differ_in_capitals_the_folded_one_is_meant() -> None:
    for known in (["UserID", "userid"], ["userid", "UserID", "USERID"], ["UserID", "USERID"]):
        assert spelt_as_known("select UserId", tokenize("select UserId"), known) == "select UserId"


@pytest.fixture
def session(tmp_path: Path) -> Any:
    table = pa.table({"UserID": [1, 2, 3], "Year": [2019, 2020, 2020], "k": [1, 1, 2], "Count": [5, 6, 7]})
    pq.write_table(table, tmp_path / "hits.parquet")
    with pystachio.connect(threads=1, chunk_cache=False) as opened:
        opened.register("Hits", tmp_path / "hits.parquet")
        yield opened


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select UserID from Hits where userid > 1 order by USERID", [{"UserID": 2}, {"UserID": 3}]),
        ("select year, count(*) as n from hits group by Year having Year > 2019", [{"Year": 2020, "n": 2}]),
        ("with Few as (select UserID u, k from hits where k = 1) select max(few.U) m from FEW", [{"m": 2}]),
        ('select max(count) as Count from hits h where h."UserID" in (select userid from hits)', [{"Count": 7}]),
        ("select userid as id from hits order by ID desc limit 1", [{"id": 3}]),
        # What means something as it is written means that.
        ('select -"Year" as year, "UserID" from "Hits" order by year limit 1', [{"year": -2020, "UserID": 2}]),
        ('with c as (select "Year" + 1 as year from hits) select max(year) as m from c', [{"m": 2021}]),
        ('select max("UserID") as userid from hits', [{"userid": 3}]),
        ("with hits(userid) as (select 77) select h.userid from hits h", [{"userid": 77}]),
        # New names are the column's, too.
        ("select -Year as year, UserID from hits order by year, 2 limit 1", [{"Year": -2020, "UserID": 2}]),
        ("select -Year year, UserID from hits order by year, 2 limit 1", [{"Year": -2020, "UserID": 2}]),
        ("select sum(Year) as year, k from hits group by k order by year desc limit 1", [{"Year": 4039, "k": 1}]),
    ],
)
def test_statements_need_no_quotation_marks(session: Any, sql: str, rows: list[dict[str, int]]) -> None:
    assert session.sql(sql).to_arrow().to_pylist() == rows


def test_a_name_that_nobody_knows_is_not_found(session: Any) -> None:
    with pytest.raises(NotFound, match="userident"):
        session.sql("select UserIdent from hits")
    with pytest.raises(NotFound):
        session.sql('select "userid" from hits')


def test_where_two_tables_differ_in_capitals_the_hint_is_of_the_right_one(session: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"userid": [1]}), tmp_path / "other.parquet")
    session.register("other", tmp_path / "other.parquet")
    with pytest.raises(NotFound) as caught:
        session.sql("select h.userid, other.userid from hits h join other on true")
    assert caught.value.hint == 'did you mean h."UserID"?'
    assert session.sql('select h."UserID" from hits h join other on true').to_arrow().num_rows == 3
