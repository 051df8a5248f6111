"""The matcher in C against RE2 (whether there is a match) and Python's `re` (where, and what the groups are)."""

from __future__ import annotations

import random
import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pystachio.operators.arrow import column_from_arrow, large_array
from pystachio.operators.column import BytesColumn
from pystachio.operators.kernels import native
from pystachio.operators.kernels.regular_expressions import compile_expression

pytestmark = pytest.mark.skipif(native.library() is None, reason="the C library is not built")

ATOMS = (
    *("a", "b", "ab", "é", "[ab]", "[^a]", ".", r"\d", r"\W", r"\s", "-", r"\.", "(a)", "(?:b)", "(a|b)", "(ab|a|)"),
    *("(?:a|bé)", "(a(b)?)", "[a-c]", "(.)", "/", "[]a]", "[^-b]", r"[\d.]"),
)
REPLACEMENTS = ("X", r"<\0>", r"\1-\2", "\\\\", r"é\1", "")


def random_pattern(r: random.Random, depth: int = 0) -> str:
    pattern = ""
    for _ in range(r.randrange(5)):
        atom = r.choice(ATOMS) if r.random() < 0.9 or depth > 2 else f"({random_pattern(r, depth + 1)})"
        pattern += atom + r.choice(["", "", "", "*", "+", "?", "*?", "+?", "??"])
    if r.random() < 0.15:
        pattern += "|" + r.choice(ATOMS)
    if depth:
        return pattern
    return ("^" if r.random() < 0.25 else "") + pattern + ("$" if r.random() < 0.25 else "")


def column_of(texts: list[str]) -> BytesColumn:
    column = column_from_arrow(pa.array(texts, pa.large_string()))
    assert isinstance(column, BytesColumn)
    return column


def replaced(pattern: str, text: str, replacement: str) -> str:
    found = re.search(re.sub(r"\$$", r"\\Z", pattern), text, re.ASCII)
    if found is None:
        return text
    return text[: found.start()] + found.expand(replacement.replace(r"\0", r"\g<0>")) + text[found.end() :]


@pytest.mark.parametrize("seed", range(30))
def test_random_expressions(seed: int) -> None:
    r = random.Random(seed)
    texts = ["".join(r.choice("aabbcé/ .1\n-😀") for _ in range(r.randrange(12))) for _ in range(60)]
    column = column_of(texts)
    known = 0
    for _ in range(100):
        pattern, replacement = random_pattern(r), r.choice(REPLACEMENTS)
        expression = compile_expression(pattern)
        if expression is None:
            continue
        known += 1
        spans = expression.spans(column)
        assert spans is not None
        expected = pc.match_substring_regex(pa.array(texts), pattern).to_pylist()
        assert (spans[:, 0] >= 0).tolist() == expected, pattern
        result = expression.replace_first(column, replacement)
        if result is not None:
            assert large_array(result).to_pylist() == [replaced(pattern, text, replacement) for text in texts], pattern
    assert known > 30


@pytest.mark.parametrize(
    "pattern",
    [
        "a{2}",
        "(a)*",
        "(?i)a",
        r"\ba",
        "a**",
        "[[:alpha:]]",
        "[é]",
        "(",
        ")",
        "a^",
        "$a",
        "\\",
        "[a",
        "[b-a]",
        r"\1",
        "*",
    ],
)
def test_what_is_left_to_re2(pattern: str) -> None:
    assert compile_expression(pattern) is None


def test_replacements_that_mean_nothing() -> None:
    expression = compile_expression("(a)")
    assert expression is not None
    for replacement in (r"\2", r"\x", "\\"):
        assert expression.replace_first(column_of(["a"]), replacement) is None


def test_a_text_that_takes_too_long_is_given_up() -> None:
    expression = compile_expression("^" + "a?.*" * 8 + "b$")
    assert expression is not None
    assert expression.spans(column_of(["a" * 2000])) is None
    assert expression.spans(column_of(["ab"])) is not None
    lazy = compile_expression(".*?b")
    assert lazy is not None
    assert lazy.spans(column_of(["a" * 50_000])) is None


def test_bytes_that_are_no_text_match_only_themselves() -> None:
    column = BytesColumn(pa.string(), column_of(["abc"]).offsets, column_of(["abc"]).data.clone())
    column.data[1] = 0xFF
    any_two = compile_expression("^a.")
    assert any_two is not None
    spans = any_two.spans(column)
    assert spans is not None
    assert spans[0, 0] == -1


def test_no_rows_and_sliced_rows() -> None:
    expression = compile_expression("b+")
    assert expression is not None
    empty = expression.replace_first(column_of([]), "x")
    assert empty is not None
    assert len(empty) == 0
    whole = column_of(["abb", "b", "cb"])
    part = BytesColumn(whole.type, whole.offsets[1:], whole.data)
    result = expression.replace_first(part, "x")
    assert result is not None
    assert large_array(result).to_pylist() == ["x", "cx"]
