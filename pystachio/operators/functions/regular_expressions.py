"""Functions of regular expressions: RE2's by Arrow, the simpler ones by our own matcher, which is quicker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import torch

from pystachio.errors import InvalidRequest
from pystachio.operators.column import BytesColumn, Column, FixedColumn
from pystachio.operators.functions.text import or_else
from pystachio.operators.kernels.regular_expressions import compile_expression


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
    return _checked(lambda: pc.replace_substring_regex(values, expression, replacement, max_replacements=limit))


def _checked(run: Callable[[], pa.Array]) -> pa.Array:
    try:
        return run()
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"invalid regular expression: {error}") from error


REGEXP_LIKE: Final = or_else(_matches_quickly, _regexp_matches)
REGEXP_REPLACE: Final = or_else(_replaced_quickly, _regexp_replace)
