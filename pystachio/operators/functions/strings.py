"""Functions of strings. Lengths and positions count characters (code points), from 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pystachio.errors import DataError, InvalidRequest
from pystachio.operators.arrow import MAXIMUM_STRING_BYTES
from pystachio.operators.column import BytesColumn, Column, FixedColumn
from pystachio.operators.expressions import Literal
from pystachio.operators.functions.function import (
    Function,
    Invocation,
    Kernel,
    NullRule,
    Operand,
    always,
    same_as_first,
)
from pystachio.operators.functions.operands import column
from pystachio.operators.functions.regular_expressions import REGEXP_LIKE, REGEXP_REPLACE
from pystachio.operators.functions.text import from_array, on_text, or_else, text_of
from pystachio.operators.kernels import patterns
from pystachio.operators.kernels.texts import text_lengths

# Like PostgreSQL and DataFusion; a plan may name another escape character, or "" for none.
_DEFAULT_ESCAPE: Final = "\\"


def _like(ignore_case: bool) -> Callable[..., pa.Array]:
    def run(values: pa.Array, pattern: str, escape: str = _DEFAULT_ESCAPE) -> pa.Array:
        parsed = patterns.parse_like(pattern, escape or None)
        return patterns.match_like(values, parsed, ignore_case=ignore_case)

    return run


def _substring(values: pa.Array, start: int, length: int | None = None) -> pa.Array:
    if length is not None and length < 0:
        raise DataError(f"a substring of negative length: {length}")
    return patterns.substring(values, start, length)


def _contains(values: pa.Array, part: str) -> pa.Array:
    anything = patterns.Wildcard.ANY
    pattern = (anything, patterns.Text(part), anything) if part else (anything,)
    return patterns.match_like(values, pattern)


def _left(values: pa.Array, count: int) -> pa.Array:
    """A negative count leaves out that many characters at the end."""
    return pc.utf8_slice_codeunits(values, 0, count)


def _right(values: pa.Array, count: int) -> pa.Array:
    """A negative count leaves out that many characters at the start."""
    if count == 0:
        return pc.utf8_slice_codeunits(values, 0, 0)
    return pc.utf8_slice_codeunits(values, -count)


def _trim(both: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    def run(values: pa.Array, characters: str = " ") -> pa.Array:
        return both(values, characters)

    return run


def _replace(values: pa.Array, pattern: str, replacement: str) -> pa.Array:
    return values if pattern == "" else pc.replace_substring(values, pattern, replacement)


def _strpos(values: pa.Array, pattern: str) -> pa.Array:
    """0 when absent. Arrow finds bytes; what lies before them is counted in characters."""
    if pattern == "":
        return pa.array([1] * len(values), pa.int64())
    at = pc.find_substring(values, pattern)
    if pc.all(pc.equal(pc.binary_length(values), pc.utf8_length(values)), min_count=0).as_py() is not False:
        return pc.add(at, 1)
    before = pc.list_element(pc.split_pattern(values, pattern, max_splits=1), 0)
    return pc.if_else(pc.less(at, 0), 0, pc.add(pc.utf8_length(before), 1))


def _pad(pad: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    """To exactly `width` characters, cutting what is longer; a fill of several characters repeats."""

    def run(values: pa.Array, width: int, fill: str = " ") -> pa.Array:
        width = max(width, 0)
        _refuse_giants(width * len(values))
        cut = pc.utf8_slice_codeunits(values, 0, width)
        if len(fill) == 1:
            return pad(cut, width, fill)
        if fill == "":
            return cut
        missing = pc.subtract(width, pc.utf8_length(cut)).dictionary_encode()
        lengths = missing.dictionary.to_pylist()
        paddings = pa.array([(fill * (length // len(fill) + 1))[:length] for length in lengths], values.type)
        filler = paddings.take(missing.indices)
        parts = (filler, cut) if pad is pc.utf8_lpad else (cut, filler)
        return pc.binary_join_element_wise(*parts, pa.scalar("", values.type))

    return run


def _repeat(values: pa.Array, count: int) -> pa.Array:
    _refuse_giants(count * (pc.sum(pc.binary_length(values)).as_py() or 0))
    return pc.binary_repeat(values, max(count, 0))


def _refuse_giants(nbytes: int) -> None:
    """A slip in a length must not take the machine's memory."""
    if nbytes > MAXIMUM_STRING_BYTES:
        raise DataError(f"a batch of strings would hold more than {MAXIMUM_STRING_BYTES} bytes: {nbytes}")


def _split_part(values: pa.Array, separator: str, position: int) -> pa.Array:
    """The position-th part from 1, or from the end when negative; empty when there are not so many."""
    if position == 0:
        raise InvalidRequest("split_part counts parts from 1")
    if separator == "":
        return values if position in (1, -1) else pc.utf8_slice_codeunits(values, 0, 0)
    parts = pc.split_pattern(values, separator)
    count = pc.list_value_length(parts)
    wanted = pc.add(count, position) if position < 0 else pa.array([position - 1] * len(values), count.type)
    there = pc.and_(pc.greater_equal(wanted, 0), pc.less(wanted, count))
    flat = pc.add(parts.offsets.slice(0, len(values)).cast(pa.int64()), wanted.cast(pa.int64()))
    chosen = parts.values.take(pc.if_else(there, flat, pa.scalar(None, pa.int64())))
    return pc.if_else(pc.is_valid(values), pc.fill_null(chosen, ""), pa.scalar(None, values.type))


def _translate(values: pa.Array, source: str, target: str) -> pa.Array:
    mapping: dict[int, str | None] = {}
    for position, character in enumerate(source):
        mapping.setdefault(ord(character), target[position] if position < len(target) else None)
    return _each(lambda text: text.translate(mapping), pa.large_string())(values)


def _each(function: Callable[[Any], Any], type_: pa.DataType) -> Callable[..., pa.Array]:
    """A function that Arrow lacks, once per distinct value."""

    def run(values: pa.Array) -> pa.Array:
        encoded = values.dictionary_encode()
        results = pa.array([function(value) for value in encoded.dictionary.to_pylist()], type_)
        return results.take(encoded.indices)

    return run


def _join(separator: str, skip_nulls: bool) -> Kernel:
    """All arguments one after the other; NULL arguments are left out, or make the result NULL."""

    def kernel(invocation: Invocation) -> Operand:
        return _concatenate(invocation.arguments, pa.scalar(separator, pa.large_string()), skip_nulls, invocation)

    return kernel


def _join_with_separator(invocation: Invocation) -> Operand:
    separator, *parts = invocation.arguments
    if isinstance(separator, Literal) and separator.value is None:
        return Literal(None, invocation.type)
    joint = (
        pa.scalar(separator.value, pa.large_string())
        if isinstance(separator, Literal)
        else text_of(column(separator, invocation.rows, invocation.device))
    )
    return _concatenate(tuple(parts), joint, True, invocation)


def _concatenate(
    operands: Sequence[Operand], separator: pa.Array | pa.Scalar, skip_nulls: bool, invocation: Invocation
) -> Operand:
    arrays = [
        pa.scalar(operand.value, pa.large_string())
        if isinstance(operand, Literal)
        else text_of(operand).cast(pa.large_string())
        for operand in operands
    ]
    if skip_nulls:
        # Arrow drops rows in which all parts are NULL: there the first one is made empty.
        missing = reduce(pc.and_, [pc.is_null(array) for array in arrays])
        arrays[0] = pc.if_else(missing, pa.scalar("", pa.large_string()), arrays[0])
    handling = "skip" if skip_nulls else "emit_null"
    joined = pc.binary_join_element_wise(*arrays, separator, null_handling=handling)
    if isinstance(joined, pa.Scalar):
        return Literal(joined.as_py(), invocation.type)
    return from_array(joined, invocation)


def _lengths(texts: BytesColumn) -> Column | None:
    lengths = text_lengths(texts)
    return None if lengths is None else FixedColumn(pa.int64(), lengths)


def _octet_length(values: pa.Array) -> pa.Array:
    return pc.binary_length(values)


_TEXT: Final = always(pa.string())
_COUNT: Final = always(pa.int64())
_TRUTH: Final = always(pa.bool_())

FUNCTIONS: Final = (
    Function("like", _TRUTH, on_text(_like(False))),
    Function("ilike", _TRUTH, on_text(_like(True))),
    Function("starts_with", _TRUTH, on_text(lambda values, prefix: pc.starts_with(values, prefix))),
    Function("ends_with", _TRUTH, on_text(lambda values, suffix: pc.ends_with(values, suffix))),
    Function("contains", _TRUTH, on_text(_contains)),
    Function("regexp_like", _TRUTH, REGEXP_LIKE),
    Function("regexp_replace", _TEXT, REGEXP_REPLACE),
    Function("substring", same_as_first, on_text(_substring)),
    Function("left", same_as_first, on_text(_left)),
    Function("right", same_as_first, on_text(_right)),
    Function("char_length", _COUNT, or_else(_lengths, pc.utf8_length)),
    Function("octet_length", _COUNT, on_text(_octet_length)),
    Function("bit_length", _COUNT, on_text(lambda values: pc.multiply(pc.binary_length(values), 8))),
    Function("upper", same_as_first, on_text(pc.utf8_upper)),
    Function("lower", same_as_first, on_text(pc.utf8_lower)),
    Function("initcap", same_as_first, on_text(pc.utf8_title)),
    Function("reverse", same_as_first, on_text(pc.utf8_reverse)),
    Function("trim", same_as_first, on_text(_trim(pc.utf8_trim))),
    Function("ltrim", same_as_first, on_text(_trim(pc.utf8_ltrim))),
    Function("rtrim", same_as_first, on_text(_trim(pc.utf8_rtrim))),
    Function("lpad", same_as_first, on_text(_pad(pc.utf8_lpad))),
    Function("rpad", same_as_first, on_text(_pad(pc.utf8_rpad))),
    Function("repeat", same_as_first, on_text(_repeat)),
    Function("replace", same_as_first, on_text(_replace)),
    Function("translate", same_as_first, on_text(_translate)),
    Function("split_part", same_as_first, on_text(_split_part)),
    Function("strpos", _COUNT, on_text(_strpos)),
    Function(
        "ascii", _COUNT, on_text(_each(lambda text: None if text is None else ord(text[0]) if text else 0, pa.int64()))
    ),
    Function("chr", _TEXT, on_text(_each(lambda code: None if code is None else chr(code), pa.large_string()))),
    Function("concat", _TEXT, _join("", True), NullRule.OWN),
    Function("concat_operator", _TEXT, _join("", False), NullRule.OWN),
    Function("concat_ws", _TEXT, _join_with_separator, NullRule.OWN),
)
