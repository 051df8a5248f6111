"""Columns that are named without quotation marks, spelt as the tables spell them.

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
_CASTS: Final = words("CAST TRY_CAST SAFE_CAST")


def quoted(name: str) -> str:
    """A name as one identifier, dots and capitals included."""
    return '"' + name.replace('"', '""') + '"'


def spelt_as_known(sql: str, tokens: Sequence[Token], known: Iterable[str]) -> str:
    """The text with quotation marks around those of the `known` names that need them to be found.

    Where several differ in their capitals only, the one without any is meant, or else it must be written in quotation
    marks. The columns of NATURAL joins are not named at all: a text with one stays as it is.
    """
    if any(token.word == "NATURAL" for token in tokens):
        return sql
    spellings: dict[str, str | None] = {}
    for name in known:
        key = name.casefold()
        before = spellings.get(key, name)
        if before == name or _is_folded(name):
            spellings[key] = name
        elif before is None or not _is_folded(before):
            spellings[key] = None
    wanted = {key: found for key, found in spellings.items() if found is not None and not _is_folded(found)}
    parts, at = [], 0
    for number, token in enumerate(tokens):
        if token.kind is not Kind.WORD:
            continue
        spelling = wanted.get(sql[token.start : token.end].casefold())
        if spelling is not None and _may_be_name(tokens, number):
            parts.append(sql[at : token.start] + quoted(spelling))
            at = token.end
    return "".join((*parts, sql[at:])) if parts else sql


def _is_folded(name: str) -> bool:
    """Whether the name is found when it is written without quotation marks: DataFusion folds ASCII only."""
    return not any("A" <= c <= "Z" for c in name)


def _may_be_name(tokens: Sequence[Token], number: int) -> bool:
    """Whether the word is no function's, and nothing that SQL has this word for.

    New names (`as year`) count as well: what is spelt here must be spelt so wherever it is meant.
    """
    word = tokens[number].word
    before = tokens[number - 1] if number else None
    behind = tokens[number + 1] if number + 1 < len(tokens) else None
    if before is not None and before.text == ".":
        return True
    if word in _WORDS or (behind is not None and behind.text == "("):
        return False
    return not (word in _TYPES_AND_UNITS and _is_type_or_unit(tokens, number, before, behind))


def _is_type_or_unit(tokens: Sequence[Token], number: int, before: Token | None, behind: Token | None) -> bool:
    """`date '2000-01-01'`, `timestamp with time zone`, `x::date`, `cast(x as date)`, `interval '1' day`,
    `extract(day from x)`."""
    if behind is not None and (behind.kind is Kind.STRING or behind.word in ("WITH", "WITHOUT")):
        return True
    if before is None:
        return False
    earlier = tokens[number - 2].text if number > 1 else ""
    if before.text in ("::", "TO") or earlier == "::":
        return True
    if before.kind in (Kind.STRING, Kind.NUMBER, Kind.PLACEHOLDER):
        return earlier == "INTERVAL"
    return (before.text == "(" and earlier == "EXTRACT") or _is_casts(tokens, number)


def _is_casts(tokens: Sequence[Token], number: int) -> bool:
    """Whether the token is part of the type that something is cast to."""
    depth, names_type = 0, False
    for at in range(number - 1, 0, -1):
        depth += (tokens[at].text == ")") - (tokens[at].text == "(")
        if depth < 0:
            return names_type and tokens[at - 1].word in _CASTS
        names_type = names_type or (depth == 0 and tokens[at].word == "AS")
    return False
