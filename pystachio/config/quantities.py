"""Quantities as people write them: sizes, rates, durations, paths; and as numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

_SECONDS: Mapping[str, float] = {
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}
_DURATION = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_SECONDS)})?\s*")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgtp])(i?b)?|b)?\s*", re.IGNORECASE)


def parse_size(value: object) -> object:
    """`"2GiB"`, `"1.5g"`, `"500MB"` or a number, in bytes. KB, MB, ... are powers of 1000; K, KiB, ... of 1024."""
    return _bytes(value, "not a size; write for example 2GiB, 500MB or a number of bytes")


def _bytes(value: object, problem: str) -> object:
    if isinstance(value, bool):
        raise ValueError(problem)
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(problem)
    number, prefix, suffix = match.groups()
    power = 0 if prefix is None else "kmgtp".index(prefix.lower()) + 1
    base = 1000 if suffix is not None and suffix.lower() == "b" else 1024
    size = float(number) * base**power
    if math.isinf(size):
        raise ValueError("more bytes than there are")
    return int(size)


def parse_size_or_auto(value: object) -> object:
    """`"auto"`, or a size of which 0 is one too."""
    size = value if value == "auto" else parse_size(value)
    if size != "auto" and (not isinstance(size, int) or size < 0):
        raise ValueError("not a size; write auto, 0, or for example 2GiB")
    return size


def parse_rate(value: object) -> object:
    """`"200MB/s"` or a number, in bytes per second."""
    size = value.strip().removesuffix("/s") if isinstance(value, str) else value
    return _bytes(size, "not a rate; write for example 200MB/s or a number of bytes per second")


def parse_duration(value: object) -> object:
    """`"100us"`, `"2.5ms"`, `"3s"`, `"5m"`, `"1h"`, `"7d"` or a number, in seconds."""
    if isinstance(value, bool):
        raise ValueError("not a duration")
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value)
    if match is None:
        raise ValueError("not a duration; write for example 100us, 20ms, 2s, 5m or a number of seconds")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def parse_count(value: object) -> object:
    """A number that is not True or False, which are numbers to Python."""
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


def _absolute(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path contains no NUL")
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise ValueError("no such user, or one without a home folder") from None


Count = Annotated[int, BeforeValidator(parse_count)]
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0, le=1 << 60)]
SizeOrAuto = Annotated[int | Literal["auto"], BeforeValidator(parse_size_or_auto)]
Rate = Annotated[float, BeforeValidator(parse_rate), Field(ge=1, le=1e13, allow_inf_nan=False)]
Duration = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=60, allow_inf_nan=False)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
