"""Functions of strings against DuckDB (LIKE: with DataFusion's backslash as escape character named)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pystachio.errors import DataError, InvalidRequest
from pystachio.operators.arrow import batch_from_arrow, column_to_arrow
from pystachio.operators.evaluate import evaluate, select
from pystachio.operators.expressions import Call, FieldReference, InList
from pystachio.operators.functions import beginnings
from pystachio.operators.functions.registry import lookup
from pystachio.operators.kernels import native
from tests.operators.functions.oracle import call, cast, check, col, lit, ours, tables

PATTERNS = [
    "abc",
    "a%",
    "%c",
    "%o%",
    "_b_",
    "%special%requests%",
    "%\n%",
    "line%two",
    "50\\%%",
    "%\\_%",
    "",
    "%",
    "%%",
    "_",
    "%é",
    "äöü%",
    "____",
    "a_c%",
    "%a%b%c%",
    "%.%",
    "(%",
    "%,y,%",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_like(pattern: str) -> None:
    quoted = pattern.replace("'", "''")
    check(call("like", col("s"), lit(pattern)), f"s like '{quoted}' escape '\\'")
    check(call("not", call("like", col("s"), lit(pattern))), f"s not like '{quoted}' escape '\\'")
    check(call("ilike", col("s"), lit(pattern.upper())), f"s ilike '{quoted.upper()}' escape '\\'")


def test_like_with_other_escapes() -> None:
    check(call("like", col("s"), lit("50#%%"), lit("#")), "s like '50#%%' escape '#'")
    check(call("like", col("s"), lit("back\\slash"), lit("")), "s like 'back\\slash'")
    check(call("like", col("s"), col("t"), lit("")), "s like t")
    check(call("like", lit("abc"), col("t"), lit("")), "'abc' like t")


def test_a_pattern_that_ends_with_its_escape_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="escape"):
        ours(call("like", col("s"), lit("abc\\")), tables()["nullable"])


@pytest.mark.parametrize("start", [1, 2, 0, -1, -5, 100])
@pytest.mark.parametrize("length", [None, 0, 1, 3, 7, 100])
def test_substring(start: int, length: int | None) -> None:
    """The standard's: positions before the first character count. DuckDB counts negative starts from the end."""
    arguments = [lit(start)] + ([] if length is None else [lit(length)])
    found = ours(call("substring", col("s"), *arguments), tables()["nullable"])
    texts = tables()["nullable"]["s"].to_pylist()
    end = None if length is None else max(start + length - 1, 0)
    assert found == [None if text is None else text[max(start - 1, 0) : end] for text in texts]


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (call("substring", col("s"), lit(2), lit(3)), "substring(s, 2, 3)"),
        (
            call("substring", col("s"), call("abs", call("add", col("j"), lit(5)))),
            "case when abs(j+5) = 0 then s else substring(s, abs(j + 5)) end",
        ),
        (call("starts_with", col("s"), lit("a")), "starts_with(s, 'a')"),
        (call("starts_with", col("s"), col("t")), "starts_with(s, t)"),
        (call("ends_with", col("s"), lit("c")), "ends_with(s, 'c')"),
        (call("contains", col("s"), lit("o")), "contains(s, 'o')"),
        (call("contains", col("s"), col("t")), "contains(s, t)"),
        (call("char_length", col("s")), "length(s)"),
        (call("octet_length", col("s")), "strlen(s)"),
        (call("upper", col("t")), "upper(t)"),
        (call("lower", col("s")), "lower(s)"),
        (call("reverse", col("s")), "reverse(s)"),
        (call("trim", col("s")), "trim(s)"),
        (call("ltrim", col("s")), "ltrim(s)"),
        (call("rtrim", col("s"), lit("ec")), "rtrim(s, 'ec')"),
        (call("left", col("s"), lit(3)), "left(s, 3)"),
        (call("left", col("s"), lit(-2)), "left(s, -2)"),
        (call("right", col("s"), lit(3)), "right(s, 3)"),
        (call("right", col("s"), lit(-2)), "right(s, -2)"),
        (call("right", col("s"), lit(0)), "right(s, 0)"),
        (call("lpad", col("s"), lit(6), lit("*")), "lpad(s, 6, '*')"),
        (call("rpad", col("s"), lit(7), lit("xyz")), "rpad(s, 7, 'xyz')"),
        (call("lpad", col("s"), lit(7), lit("xyz")), "lpad(s, 7, 'xyz')"),
        (call("repeat", col("t"), lit(3)), "repeat(t, 3)"),
        (call("replace", col("s"), lit("a"), lit("--")), "replace(s, 'a', '--')"),
        (call("replace", col("s"), lit("line one\n"), lit("")), "replace(s, 'line one\n', '')"),
        (call("translate", col("s"), lit("abl"), lit("xy")), "translate(s, 'abl', 'xy')"),
        (call("split_part", col("s"), lit(","), lit(2)), "split_part(s, ',', 2)"),
        (call("split_part", col("s"), lit(" "), lit(-1)), "split_part(s, ' ', -1)"),
        (call("split_part", col("s"), lit(" "), lit(9)), "split_part(s, ' ', 9)"),
        (call("strpos", col("s"), lit("o")), "strpos(s, 'o')"),
        (call("strpos", col("s"), lit("ü")), "strpos(s, 'ü')"),
        (call("strpos", col("s"), lit("é")), "strpos(s, 'é')"),
        (call("strpos", col("s"), lit("")), "strpos(s, '')"),
        (call("strpos", col("s"), col("t")), "strpos(s, t)"),
        (call("ascii", col("s")), "ascii(s)"),
        (call("chr", lit(228)), "chr(228)"),
        (call("chr", call("add", col("u"), lit(40), type_=pa.int32())), "chr(u::int + 40)"),
        (call("concat", col("s"), lit("-"), col("t")), "concat(s, '-', t)"),
        (call("concat", col("s"), lit(None, pa.string())), "concat(s, null)"),
        (call("concat_operator", col("s"), lit("-"), col("t")), "s || '-' || t"),
        (call("concat_operator", lit("x"), col("t")), "'x' || t"),
        (call("concat_ws", lit("/"), col("s"), col("t")), "concat_ws('/', s, t)"),
        (call("regexp_like", col("s"), lit("^[a-z]+$")), "regexp_matches(s, '^[a-z]+$')"),
        (call("regexp_replace", col("s"), lit("[aeo]"), lit("<>")), "regexp_replace(s, '[aeo]', '<>')"),
        (call("regexp_replace", col("s"), lit("[aeo]"), lit("<>"), lit("g")), "regexp_replace(s, '[aeo]', '<>', 'g')"),
        (call("equal", call("substring", col("t"), lit(1), lit(1)), lit("a")), "substring(t, 1, 1) = 'a'"),
        (call("char_length", call("concat_operator", call("upper", col("t")), col("s"))), "length(upper(t) || s)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_functions(expression: Call, sql: str) -> None:
    check(expression, sql)


def test_a_wrong_regular_expression_is_the_requests_fault() -> None:
    with pytest.raises(InvalidRequest, match="regular expression"):
        ours(call("regexp_like", col("s"), lit("(")), tables()["nullable"])


def test_an_unknown_function_is_named_with_its_neighbour() -> None:
    with pytest.raises(Exception, match="did you mean char_length"):
        lookup("charlength")


def test_strings_of_other_types() -> None:
    check(call("concat", cast(col("i"), pa.string()), col("s")), "concat(i, s)")


@pytest.mark.parametrize("function", ["repeat", "lpad"])
def test_a_slip_in_a_length_is_an_error_and_not_the_end_of_memory(function: str) -> None:
    with pytest.raises(DataError, match="bytes"):
        ours(call(function, col("s"), lit(2**31)), tables()["nullable"])


def test_bytes_that_are_no_text_are_an_error() -> None:
    broken = pa.table({"x": pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())})
    with pytest.raises(DataError):
        ours(call("upper", FieldReference(0, pa.string())), broken)


BEGINNINGS = [
    ["a", "abc"],
    ["äö", "a"],
    [""],
    ["x,y", "50%", "Hel", "aaa"],
    ["longer than that"],
    [chr(i) for i in range(65, 123)],
]


@pytest.mark.parametrize("length", [0, 1, 3, 7, 8, 100])
@pytest.mark.parametrize("texts", BEGINNINGS)
def test_beginnings_among_constants(length: int, texts: list[str]) -> None:
    """Of plain texts and codes: a character is not always a byte, and texts may be shorter."""
    beginning = call("substring", col("s"), lit(1), lit(length))
    options = ", ".join(f"'{text}'" for text in texts)
    check(InList(beginning, tuple(map(lit, texts)), pa.bool_()), f"substring(s, 1, {length}) in ({options})")
    check(call("equal", beginning, lit(texts[0])), f"substring(s, 1, {length}) = '{texts[0]}'")
    check(call("equal", lit(texts[0]), beginning), f"'{texts[0]}' = substring(s, 1, {length})")
    check(call("not", call("equal", beginning, lit(texts[0]))), f"not substring(s, 1, {length}) = '{texts[0]}'")


def test_beginnings_are_compared_where_texts_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.library() is None:
        pytest.skip("the C library is not built")
    looked: list[int] = []
    compare = beginnings.match_beginnings
    monkeypatch.setattr(
        beginnings, "match_beginnings", lambda *given: looked.append(len(given[0]) - 1) or compare(*given)
    )
    texts = pa.array([None, "", "1", "13", "13-5", "1é", "é3", "99"] * 3)
    batch = batch_from_arrow(pa.record_batch({"s": texts, "n": range(len(texts))}))
    among = InList(call("substring", FieldReference(0, pa.string()), lit(1), lit(2)), (lit("13"), lit("1")), pa.bool_())
    few = call("lt", FieldReference(1, pa.int64()), lit(8))
    assert (
        column_to_arrow(evaluate(among, batch)).to_pylist() == [None, False, True, True, True, False, False, False] * 3
    )
    found = select(call("and", few, among), batch)
    assert found is not None
    assert found.tolist() == [2, 3, 4]
    assert looked == [24, 24], "of all rows each time: none is gathered for it"
