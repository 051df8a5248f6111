"""LIKE patterns and SQL substrings on Arrow strings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from pystachio.errors import InvalidRequest
from pystachio.operators.arrow import column_from_arrow
from pystachio.operators.column import BytesColumn
from pystachio.operators.kernels.substrings import match_pieces


class Wildcard(StrEnum):
    """What a pattern holds besides text."""

    ANY = "%"
    ONE = "_"


@dataclass(frozen=True, slots=True)
class Text:
    """Characters that stand for themselves."""

    characters: str


Pattern = tuple[Text | Wildcard, ...]


@lru_cache(maxsize=64)
def parse_like(pattern: str, escape: str | None) -> Pattern:
    """A LIKE pattern as text and wildcards; neighbouring texts are joined and repeated % collapsed.

    Raises InvalidRequest when the pattern ends with the escape character.
    """
    parts: list[Text | Wildcard] = []
    characters = iter(pattern)
    for character in characters:
        token: Text | Wildcard
        if escape is not None and character == escape:
            following = next(characters, None)
            if following is None:
                raise InvalidRequest("a LIKE pattern ends with its escape character")
            token = Text(following)
        elif character in (Wildcard.ANY, Wildcard.ONE):
            token = Wildcard(character)
        else:
            token = Text(character)
        match parts, token:
            case [*_, Text(before)], Text(after):
                parts[-1] = Text(before + after)
            case [*_, Wildcard.ANY], Wildcard.ANY:
                pass
            case _:
                parts.append(token)
    return tuple(parts)


def match_like(values: pa.Array, pattern: Pattern, *, ignore_case: bool = False) -> pa.Array:
    """Whether each string of a large_string array matches: plain searches where they do, else regular expressions."""
    match pattern:
        case ():
            return pc.equal(pc.binary_length(values), 0)
        case (Wildcard.ANY,):
            return pc.greater_equal(pc.binary_length(values), 0)
        case (Text(text),) if not ignore_case:
            return pc.equal(values, pa.scalar(text, values.type))
        case (Text(text), Wildcard.ANY):
            return pc.starts_with(values, text, ignore_case=ignore_case)
        case (Wildcard.ANY, Text(text)):
            return pc.ends_with(values, text, ignore_case=ignore_case)
        case _ if Wildcard.ONE not in pattern and not ignore_case:
            return _match_pieces(values, pattern)
        case _:
            return pc.match_substring_regex(values, _regular_expression(pattern), ignore_case=ignore_case)


def _match_pieces(values: pa.Array, pattern: Pattern) -> pa.Array:
    """Text between % signs, by one search of all bytes for each."""
    column = column_from_arrow(values)
    assert isinstance(column, BytesColumn)
    texts = [part.characters.encode() if isinstance(part, Text) else None for part in pattern]
    prefix, suffix = texts[0] or b"", texts[-1] or b""
    pieces = [text for text in texts[1 if prefix else 0 : -1 if suffix else None] if text is not None]
    matches = match_pieces(column.offsets.numpy(), column.data.numpy(), prefix, pieces, suffix)
    missing = None if values.null_count == 0 else values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(matches, mask=missing)


def _regular_expression(pattern: Pattern) -> str:
    """An RE2 expression; (?s) lets wildcards cross lines. Outer % are left out: the search is not anchored there."""
    inner = pattern[1 if pattern[0] is Wildcard.ANY else 0 : -1 if pattern[-1] is Wildcard.ANY else None]
    body = "".join(
        re.escape(part.characters) if isinstance(part, Text) else ".*?" if part is Wildcard.ANY else "."
        for part in inner
    )
    start = "" if pattern[0] is Wildcard.ANY else r"\A"
    end = "" if pattern[-1] is Wildcard.ANY else r"\z"
    return f"(?s){start}{body}{end}"


def substring(values: pa.Array, start: int, length: int | None) -> pa.Array:
    """Characters from position `start` (from 1) on; positions before the first count against the length (SQL)."""
    first = max(start - 1, 0)
    stop = None if length is None else max(start - 1 + length, first)
    return pc.utf8_slice_codeunits(values, first, stop)
