"""Functions of regular expressions: RE2's by Arrow, the simpler ones by our own matcher, which is quicker."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.errors import InvalidRequest, Unsupported
from pystachio.operators.column import BytesColumn, Column, FixedColumn
from pystachio.operators.functions.text import or_else
from pystachio.operators.kernels.regular_expressions import compile_expression

_ESCAPES_AND_CLASSES: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_GROUP: Final = re.compile(r"\((?!\?)|\(\?P?<(?![=!])")
_REFERENCE: Final = re.compile(r"\\(\d)|\\.")
_MOST_REFERENCES: Final = 9
_ASSERTIONS: Final = ("\\b", "\\B", "\\A", "\\z")


def _matches_quickly(texts: BytesColumn, pattern: str, flags: str = "") -> Column | None:
    expression = None if _regular_flags(flags) else compile_expression(pattern)
    spans = None if expression is None else expression.spans(texts)
    return None if spans is None else FixedColumn(pa.bool_(), torch.from_numpy(spans[:, 0] >= 0))


def _replaced_quickly(texts: BytesColumn, pattern: str, replacement: str, flags: str = "") -> Column | None:
    if "g" in flags or _regular_flags(flags):
        return None
    expression = compile_expression(pattern)
    return None if expression is None else expression.replace_first(texts, replacement)


def _regular_flags(flags: str) -> str:
    known = {letter for letter in flags if letter in "ims"}
    return f"(?{''.join(sorted(known))})" if known else ""


def _regexp_matches(values: pa.Array, pattern: str, flags: str = "") -> pa.Array:
    return _checked(lambda: pc.match_substring_regex(values, _regular_flags(flags) + pattern))


def _regexp_replace(values: pa.Array, pattern: str, replacement: str, flags: str = "") -> pa.Array:
    limit = -1 if "g" in flags else 1
    expression = _regular_flags(flags) + pattern
    if limit == 1 and _looks_around(pattern, flags):
        # Arrow matches what it has found once more, by itself: let it find the whole text.
        expression, replacement = _of_whole_text(expression, replacement)
    return _checked(lambda: pc.replace_substring_regex(values, expression, replacement, max_replacements=limit))


def _looks_around(pattern: str, flags: str) -> bool:
    """Whether what is around a match decides about it, other than that it begins or ends there.

    To replace one match Arrow matches what was found once more, by itself.
    """
    if any(found.group() in _ASSERTIONS for found in _ESCAPES_AND_CLASSES.finditer(pattern)):
        return True
    bare = _ESCAPES_AND_CLASSES.sub("", pattern)
    if "|" not in bare and "m" not in flags and "(?" not in bare.replace("(?:", ""):
        bare = bare.removeprefix("^").removesuffix("$")
    return "^" in bare or "$" in bare


def _of_whole_text(expression: str, replacement: str) -> tuple[str, str]:
    """The same replacement of the first match, as one of the whole text."""
    groups = len(_GROUP.findall(_ESCAPES_AND_CLASSES.sub("", expression)))
    if groups + 3 > _MOST_REFERENCES:
        raise Unsupported(f"regexp_replace with {groups} groups in an expression that looks around a match")
    shifted = _REFERENCE.sub(lambda found: f"\\{int(found[1]) + 2}" if found[1] else found[0], replacement)
    return rf"\A((?s:.*?))({expression})((?s:.*))\z", rf"\1{shifted}\{groups + 3}"


def _checked(run: Callable[[], pa.Array]) -> pa.Array:
    try:
        return run()
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"invalid regular expression: {error}") from error


REGEXP_LIKE: Final = or_else(_matches_quickly, _regexp_matches)
REGEXP_REPLACE: Final = or_else(_replaced_quickly, _regexp_replace)
