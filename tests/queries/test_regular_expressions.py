"""Regular expressions with backslashes and assertions: RE2's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystachio

TEXTS = ["a\\b", "%", "axb", "xab", "ab", "a\\", "b", "", "bab", "a b", None]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("patterns") / "f.parquet"
    pq.write_table(pa.table({"s": TEXTS}), path)
    return path


@pytest.fixture(scope="module")
def session(path: Path) -> Iterator[pystachio.Session]:
    with pystachio.connect(threads=1) as session:
        session.register("f", path)
        yield session


def oracle(path: Path, sql: str) -> list[object]:
    return [row[0] for row in duckdb.connect().execute(sql.replace(" from f", f" from '{path}'")).fetchall()]


@pytest.mark.parametrize(
    "pattern", [r"\\", r"\\b", r"a\\", r"^a\\", "a.b", r"^\\$", "x(a|b)", r"[\\]", r"(a\\|x)", "%"]
)
def test_a_literal_backslash_is_one(session: pystachio.Session, path: Path, pattern: str) -> None:
    wanted = oracle(path, f"select s from f where regexp_matches(s, '{pattern}')")
    others = oracle(path, f"select s from f where not regexp_matches(s, '{pattern}')")
    for condition, expected in (
        (f"regexp_like(s, '{pattern}')", wanted),
        (f"regexp_like(concat(s, ''), '{pattern}')", wanted),
        (f"s ~ '{pattern}'", wanted),
        (f"s !~ '{pattern}'", others),
    ):
        assert session.sql(f"select s from f where {condition}").to_arrow().column(0).to_pylist() == expected


def test_a_literal_backslash_in_a_parameter_is_one(session: pystachio.Session) -> None:
    for sql, parameters in (
        ("select s from f where regexp_like(s, $1)", [r"a\\b"]),
        ("select s from f where s <> ? and s ~ ?", ["a", r"a\\b"]),
    ):
        assert session.sql(sql, parameters=parameters).to_arrow()["s"].to_pylist() == ["a\\b"]
    sql = "select s from f where s <> $1 and regexp_like(s, $2)"
    assert session.sql(sql, parameters=[r"\\server", "^a"]).to_arrow().num_rows == 5


@pytest.mark.parametrize("pattern", ["^a", "b$", "^a(.*)b$", "(?i)A", "[$^]", r"a\$", "x|ab", r"\s", "(a|b)+", "a{1}b"])
def test_the_first_match_is_replaced(session: pystachio.Session, path: Path, pattern: str) -> None:
    sql = f"select regexp_replace(s, '{pattern}', 'X') from f"
    assert session.sql(sql).to_arrow().column(0).to_pylist() == oracle(path, sql)


@pytest.mark.parametrize(
    "pattern", ["(^a|ab){1}", "^a|a{1}b", "(?i)^A|AB", r"b\b|\Bab", r"\Bb", "(?m)^a", "a{1}$|ab", r"(b\B)|(a$)", r"b\B"]
)
@pytest.mark.parametrize("replacement", ["X", r"[\0]", r"<\1>", r"\\X"])
def test_what_looks_around_a_match(session: pystachio.Session, path: Path, pattern: str, replacement: str) -> None:
    if "\\1" in replacement and "(" not in pattern.replace("(?", ""):
        pattern = f"({pattern})"
    for flags in ("", ", 'g'"):
        sql = f"select regexp_replace(s, '{pattern}', '{replacement}'{flags}) from f"
        assert session.sql(sql).to_arrow().column(0).to_pylist() == oracle(path, sql)


def test_one_text_that_takes_long_changes_no_answer(tmp_path: Path) -> None:
    sql = "select regexp_replace(s, '^(.*),(.*),(.*),x|b$', 'X') as r from t"
    for texts in (["ab", "xab"], ["ab", "xab", "a," * 60 + "b"]):
        pq.write_table(pa.table({"s": texts}), tmp_path / "t.parquet")
        with pystachio.connect(threads=1) as session:
            session.register("t", tmp_path / "t.parquet")
            assert session.sql(sql).to_arrow().column(0).to_pylist()[:2] == ["aX", "xaX"]


def test_groups_in_groups(session: pystachio.Session) -> None:
    pattern = "(?:" * 300 + "a" + ")" * 300
    found = session.sql(f"select regexp_replace(s, '{pattern}', 'X') from f").to_arrow().column(0).to_pylist()
    assert found == [None if text is None else text.replace("a", "X", 1) for text in TEXTS]
