"""Names without quotation marks, spelt as the tables spell them.

DataFusion folds such names to lower case, and finds no column `UserID` under `userid` or under `UserID`. Whoever writes
a name without quotation marks means the one that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pystachio.planner.sql.text import Kind, Token, words

_WORDS: Final = words(
    "ALL AND ANTI ANY AS ASC ASOF AT BETWEEN BOTH BY CASE CAST COLLATE CROSS CUBE CURRENT DESC DISTINCT ELSE END "
    "ESCAPE EXCEPT EXCLUDE EXISTS EXTRACT FALSE FETCH FILTER FIRST FOLLOWING FOR FROM FULL GROUP GROUPING HAVING "
    "ILIKE IN INNER INTERSECT INTERVAL INTO IS JOIN LAST LATERAL LEADING LEFT LIKE LIMIT MINUS NATURAL NOT NULL "
    "NULLS OFFSET ON ONLY OR ORDER ORDINALITY OUTER OVER OVERLAY PARTITION POSITION PRECEDING QUALIFY RANGE "
    "RECURSIVE REPLACE RIGHT RLIKE ROLLUP ROW ROWS SELECT SEMI SETS SIMILAR SOME SUBSTRING SYMMETRIC TABLE "
    "TABLESAMPLE THEN TIES TO TRAILING TRIM TRUE TRY_CAST UNBOUNDED UNION UNKNOWN UNNEST USING VALUES WHEN WHERE "
    "WINDOW WITH WITHIN WITHOUT ZONE"
)
"""They mean something of their own without quotation marks."""

_TYPES_AND_UNITS: Final = words(
    "BIGINT BINARY BLOB BOOL BOOLEAN BYTEA CENTURY CHAR CHARACTER DATE DATETIME DAY DAYS DEC DECADE DECIMAL DOUBLE "
    "DOW DOY EPOCH FLOAT FLOAT4 FLOAT8 HOUR HOURS INT INT2 INT4 INT8 INTEGER MICROSECOND MICROSECONDS MILLENNIUM "
    "MILLISECOND MILLISECONDS MINUTE MINUTES MONTH MONTHS NANOSECOND NANOSECONDS NUMERIC PRECISION QUARTER REAL "
    "SECOND SECONDS SMALLINT STRING TEXT TIME TIMESTAMP TIMESTAMPTZ TINYINT UNSIGNED VARBINARY VARCHAR VARYING WEEK "
    "WEEKS YEAR YEARS"
)
_BEFORE_VALUES: Final = words(
    "ALL AND BETWEEN BY CASE DISTINCT ELSE HAVING NOT ON OR SELECT THEN WHEN WHERE ( , + - * / % = <> != < <= > >= ||"
)


def quoted(name: str) -> str:
    """A name as one identifier, dots and capitals included."""
    return '"' + name.replace('"', '""') + '"'


def is_folded(name: str) -> bool:
    """Whether the name is found when it is written without quotation marks."""
    return name == _folded(name)


def spelt_as_known(sql: str, tokens: Sequence[Token], known: Iterable[str]) -> str:
    """The text with quotation marks around those of the `known` names that need them to be found.

    Where several differ in their capitals only, the one without any is meant, or else it must be written in quotation
    marks.
    """
    spellings: dict[str, str | None] = {}
    for name in known:
        key = name.casefold()
        before = spellings.get(key, name)
        if before == name or is_folded(name):
            spellings[key] = name
        elif before is None or not is_folded(before):
            spellings[key] = None
    wanted = {key: found for key, found in spellings.items() if found is not None and not is_folded(found)}
    parts, at = [], 0
    for number, token in enumerate(tokens):
        if token.kind is not Kind.WORD:
            continue
        spelling = wanted.get(sql[token.start : token.end].casefold())
        if spelling is not None and _may_be_name(tokens, number):
            parts.append(sql[at : token.start] + quoted(spelling))
            at = token.end
    return "".join((*parts, sql[at:])) if parts else sql


def _folded(name: str) -> str:
    """As DataFusion folds it: ASCII only."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


def _may_be_name(tokens: Sequence[Token], number: int) -> bool:
    """Whether the word is no function's, and nothing that SQL has this word for."""
    word = tokens[number].word
    before = tokens[number - 1] if number else None
    behind = tokens[number + 1] if number + 1 < len(tokens) else None
    if before is not None and before.text == ".":
        return True
    if behind is not None and behind.text == "(":
        return False
    if word in _TYPES_AND_UNITS:
        is_value = before is not None and before.text in _BEFORE_VALUES
        is_unit = before is not None and before.text == "(" and behind is not None and behind.word == "FROM"
        is_literal = behind is not None and (behind.kind is Kind.STRING or behind.word in ("WITH", "WITHOUT"))
        return is_value and not is_unit and not is_literal
    return word not in _WORDS
