"""Functions that DataFusion's plans call and the registry lacks, said in other expressions.

Those in `CONSTANT_CALLS` have constants for arguments or are Unsupported: DataFusion itself computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from pystachio.errors import InvalidRequest
from pystachio.operators.expressions import Call, Cast, Expression, IfThen, Literal
from pystachio.operators.functions.units import SECONDS_PER_DAY, TICKS_PER_SECOND
from pystachio.planner.substrait.calls import typed_alike

ConstantCall = Callable[[str, Sequence[Literal]], Literal | None]
"""The value of a function of constants, by the name that DataFusion has for it; None where it has none."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOW: Final = _words("now current_date today current_time current_timestamp")
_CASTS: Final = _words("arrow_cast arrow_try_cast")
_FROM_TEXT: Final = _words(
    "to_date to_timestamp to_timestamp_seconds to_timestamp_millis to_timestamp_micros to_timestamp_nanos"
)
# Each result is about as large as the arguments.
CONSTANT_CALLS: Final = _FROM_TEXT | _words(
    "arrow_typeof cot date_bin decode digest encode factorial find_in_set from_unixtime iszero lcm levenshtein "
    "make_time md5 nanvl overlay pi regexp_count regexp_instr sha224 sha256 sha384 sha512 substr_index to_char to_hex "
    "to_local_time to_time to_unixtime version"
)
_NANOSECONDS_PER_DAY: Final = SECONDS_PER_DAY * TICKS_PER_SECOND["ns"]


def translated(
    name: str,
    arguments: tuple[Expression, ...],
    declared: pa.DataType | None,
    moment: int | None,
    constant_call: ConstantCall | None,
) -> Expression | None:
    """The call in other words; None where it has none. `moment`: what is now, in ns since 1970 UTC."""
    if name in _NOW and not arguments and moment is not None and declared is not None:
        return _now(moment, declared)
    if name in _CASTS and len(arguments) == 2 and declared is not None:
        return Cast(arguments[0], declared, name == "arrow_try_cast")
    if name in _FROM_TEXT and len(arguments) == 1 and pa.types.is_string(arguments[0].type) and declared is not None:
        return Cast(arguments[0], declared)
    if name == "nvl2" and len(arguments) == 3:
        value, otherwise = typed_alike(arguments[1:])
        present = Call("is_not_null", arguments[:1], pa.bool_())
        return IfThen(((present, value),), otherwise, value.type)
    if name not in CONSTANT_CALLS or constant_call is None:
        return None
    literals = [argument for argument in arguments if isinstance(argument, Literal)]
    return constant_call(name, literals) if len(literals) == len(arguments) else None


def _now(moment: int, type_: pa.DataType) -> Literal:
    if pa.types.is_date32(type_):
        return Literal(moment // _NANOSECONDS_PER_DAY, type_)
    if pa.types.is_time(type_):
        return Literal(_ticks(moment % _NANOSECONDS_PER_DAY, type_.unit), type_)
    if pa.types.is_timestamp(type_):
        return Literal(_ticks(moment, type_.unit), type_)
    raise InvalidRequest(f"now as {type_}")


def _ticks(nanoseconds: int, unit: str) -> int:
    return nanoseconds * TICKS_PER_SECOND[unit] // TICKS_PER_SECOND["ns"]
