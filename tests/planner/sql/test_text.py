from __future__ import annotations

import pytest

from pystachio.planner.sql.text import Kind, pointed_at, position_of, tokenize

CASES = [
    ("select a", [(Kind.WORD, "SELECT"), (Kind.WORD, "A")]),
    ("'it''s'", [(Kind.STRING, "'it''s'")]),
    (r"E'a\'b' c", [(Kind.STRING, r"E'a\'b'"), (Kind.WORD, "C")]),
    (r"'a\' b", [(Kind.STRING, r"'a\'"), (Kind.WORD, "B")]),
    ('"or" `and`', [(Kind.NAME, '"or"'), (Kind.NAME, "`and`")]),
    ("$$ or $$ $t$ '$$' $t$", [(Kind.STRING, "$$ or $$"), (Kind.STRING, "$t$ '$$' $t$")]),
    ("$1 ? $2", [(Kind.PLACEHOLDER, "$1"), (Kind.PLACEHOLDER, "?"), (Kind.PLACEHOLDER, "$2")]),
    ("1.5e-3 .5 1.", [(Kind.NUMBER, "1.5e-3"), (Kind.NUMBER, ".5"), (Kind.NUMBER, "1.")]),
    ("a -- or b\n c", [(Kind.WORD, "A"), (Kind.WORD, "C")]),
    ("a /* x /* y */ or */ b", [(Kind.WORD, "A"), (Kind.WORD, "B")]),
    ("a /* never closed", [(Kind.WORD, "A")]),
    ("'never closed", [(Kind.STRING, "'never closed")]),
    ("a<>b::c", [(Kind.WORD, "A"), (Kind.SYMBOL, "<>"), (Kind.WORD, "B"), (Kind.SYMBOL, "::"), (Kind.WORD, "C")]),
    ("größe", [(Kind.WORD, "GRÖSSE")]),
    ("", []),
]


@pytest.mark.parametrize(("sql", "expected"), CASES)
def test_tokens(sql: str, expected: list[tuple[Kind, str]]) -> None:
    assert [(token.kind, token.text) for token in tokenize(sql)] == expected


def test_tokens_know_where_they_stand() -> None:
    sql = "select a,\n  'x y' from t"
    assert [sql[token.start : token.end] for token in tokenize(sql)] == ["select", "a", ",", "'x y'", "from", "t"]
    assert position_of(sql, sql.index("'x")) == (2, 3)


def test_ten_million_characters_of_string_are_one_token() -> None:
    assert len(tokenize("'" + "x''" * 3_000_000 + "'")) == 1


def test_the_caret_stands_under_the_column_of_a_long_line() -> None:
    line = "select " + "a, " * 200 + "! from t"
    source, caret = pointed_at(line, 1, line.index("!") + 1).split("\n")
    assert source[caret.index("^")] == "!"
    assert len(source) < 150
