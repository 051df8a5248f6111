"""Names for columns that are selected twice.

DataFusion refuses a SELECT with two columns of one name, and its names for expressions leave casts out:
`CAST(d AS INT)` and `CAST(d AS DOUBLE)` are both `d` there, as is the `d` of an ORDER BY. What has a cast and no name
in the text is given one, and so is the second of two columns: what is written, with a number behind where that is the
same. Where aggregates, groups or what a subquery of IN puts out have the same name, casts and columns are put in
COALESCE, of which they are the only operand: that is in the name and changes no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pystachio.planner.sql.text import Kind, Token

_LIST_ENDS: Final = (
    *("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "FETCH"),
    *("UNION", "INTERSECT", "EXCEPT", "MINUS", "QUALIFY", "WINDOW", "INTO"),
)
_NO_NAMES: Final = ("NULL", "TRUE", "FALSE", "UNKNOWN", "END")
"""What an expression may end with, and is no name of it."""
_BEFORE_NO_NAME: Final = ("IS", "NOT", "AND", "OR", "LIKE", "ILIKE", "IN", "BETWEEN", "FROM", "DISTINCT", "ALL", "CASE")

_TYPE_ENDS: Final = (("DOUBLE", "PRECISION"), ("TIME", "ZONE"), ("CHARACTER", "VARYING"), ("CHAR", "VARYING"))


def numbered(sql: str, tokens: Sequence[Token]) -> str:
    """The text with names for those that have none and are selected again; the same object when there are none."""
    taken = {_plain(token).lower() for token in tokens if token.kind in (Kind.WORD, Kind.NAME)}
    insertions: list[tuple[int, str]] = []
    for number, token in enumerate(tokens):
        if token.word == "SELECT":
            insertions += _names(sql, _items(tokens, number + 1), taken)
    return _inserted(sql, insertions) if insertions else sql


def told_apart(sql: str, tokens: Sequence[Token]) -> str:
    """The text with each CAST to a type in as many COALESCE as there are types before it, and one; the same object
    when there is none, or they are there already."""
    insertions: list[tuple[int, str]] = []
    types: dict[tuple[str, ...], int] = {}
    for number, token in enumerate(tokens[:-1]):
        if token.word not in ("CAST", "TRY_CAST") or tokens[number + 1].text != "(":
            continue
        if number > 1 and tokens[number - 2].word == "COALESCE":
            return sql
        end = _behind_parentheses(tokens, number + 1)
        last_as = max((p for p in range(number, end) if tokens[p].word == "AS"), default=number)
        type_ = tuple(token.text for token in tokens[last_as + 1 : end - 1])
        times = types.setdefault(type_, len(types) + 1)
        insertions += [(token.start, "coalesce(" * times), (tokens[end - 1].end, ")" * times)]
    return _inserted(sql, insertions) if insertions else sql


def of_subqueries(sql: str, tokens: Sequence[Token]) -> str:
    """The text with the columns that subqueries of IN put out in COALESCE; the same object when there are none."""
    insertions: list[tuple[int, str]] = []
    for number in range(len(tokens) - 3):
        if tokens[number].word != "IN" or tokens[number + 1].text != "(" or tokens[number + 2].word != "SELECT":
            continue
        items = _items(tokens, number + 3)
        if len(items) == 1 and _is_column(items[0]):
            insertions += [(items[0][0].start, "coalesce("), (items[0][-1].end, ")")]
    return _inserted(sql, insertions) if insertions else sql


def _inserted(sql: str, insertions: Sequence[tuple[int, str]]) -> str:
    parts, at = [], 0
    for offset, text in sorted(insertions, key=lambda insertion: insertion[0]):
        parts += [sql[at:offset], text]
        at = offset
    return "".join((*parts, sql[at:]))


def _names(sql: str, items: Sequence[Sequence[Token]], taken: set[str]) -> list[tuple[int, str]]:
    """What to insert where. A name that stands anywhere in the statement is not made: it would mean this column."""
    insertions = []
    met: dict[tuple[str, ...], set[str]] = {}
    for item in items:
        if not item or item[-1].text == "*" or _is_named(item):
            continue
        base = _base(sql, item)
        words = tuple(token.text for token in item if token.text not in ("(", ")"))
        bare = _without_casts(item)
        written = met.setdefault((base,) if _is_column(item) else bare, set())
        is_first, is_other_text = not written, base not in written and not _is_column(item)
        written.add(base)
        if is_first and bare == words:
            continue
        name, count = base, 0
        while name.lower() in taken or not (count or is_other_text):
            count += 1
            name = f"{base}_{count}"
        taken.add(name.lower())
        insertions.append((item[-1].end, ' AS "' + name.replace('"', '""') + '"'))
    return insertions


def _items(tokens: Sequence[Token], start: int) -> list[list[Token]]:
    """What a SELECT lists."""
    while start < len(tokens) and tokens[start].word in ("DISTINCT", "ALL"):
        start += 1
    if start < len(tokens) and tokens[start].word == "ON":
        start = _behind_parentheses(tokens, start + 1)
    items: list[list[Token]] = [[]]
    depth = 0
    for number in range(start, len(tokens)):
        token = tokens[number]
        if token.kind is Kind.SYMBOL:
            depth += (token.text in "([{") - (token.text in ")]}")
        if depth < 0 or (depth == 0 and token.word in _LIST_ENDS and tokens[number - 1].word != "DISTINCT"):
            break
        if depth == 0 and token.text == ",":
            items.append([])
        else:
            items[-1].append(token)
    return items


def _is_named(item: Sequence[Token]) -> bool:
    """With AS, or by a name behind the expression."""
    if len(item) < 2 or item[-1].kind not in (Kind.WORD, Kind.NAME) or item[-1].word in _NO_NAMES:
        return False
    before = item[-2]
    if before.kind in (Kind.STRING, Kind.NUMBER):
        return not (len(item) > 2 and item[-3].word == "INTERVAL")
    if (before.text, item[-1].text) in _TYPE_ENDS:
        return False
    if before.kind is Kind.SYMBOL:
        return before.text in (")", "]")
    return before.word not in _BEFORE_NO_NAME


def _without_casts(item: Sequence[Token]) -> tuple[str, ...]:
    """The expression's words and signs, but for casts and parentheses."""
    kept: list[str] = []
    opened: list[bool] = []
    """For each parenthesis whether it is a cast's."""
    number = 0
    while number < len(item):
        token = item[number]
        if token.text == "::":
            number = _behind_type(item, number + 1)
            continue
        if token.text == "(":
            opened.append(number > 0 and item[number - 1].word in ("CAST", "TRY_CAST"))
            if opened[-1]:
                kept.pop()
        elif token.text == ")":
            if opened:
                opened.pop()
        elif token.word == "AS" and opened and opened[-1]:
            number = _behind_type(item, number + 1)
            continue
        else:
            kept.append(token.text)
        number += 1
    return tuple(kept)


def _behind_type(item: Sequence[Token], number: int) -> int:
    """The position behind `word word (1, 2)`, or as much of it as is there."""
    while number < len(item) and item[number].kind in (Kind.WORD, Kind.NAME):
        number += 1
    return _behind_parentheses(item, number)


def _behind_parentheses(tokens: Sequence[Token], number: int) -> int:
    """The position behind those that begin at this one, if any do."""
    depth = 0
    while number < len(tokens):
        depth += (tokens[number].text == "(") - (tokens[number].text == ")")
        if depth == 0 and tokens[number].text != ")":
            return number
        number += 1
        if depth == 0:
            break
    return number


def _base(sql: str, item: Sequence[Token]) -> str:
    """A column's name, or the text of an expression."""
    if _is_column(item):
        return _plain(item[-1]).lower() if item[-1].kind is Kind.WORD else _plain(item[-1])
    return " ".join(sql[item[0].start : item[-1].end].split())


def _is_column(item: Sequence[Token]) -> bool:
    names, dots = item[::2], item[1::2]
    return all(token.kind in (Kind.WORD, Kind.NAME) for token in names) and all(token.text == "." for token in dots)


def _plain(token: Token) -> str:
    return token.text[1:-1].replace('""', '"') if token.kind is Kind.NAME else token.text
