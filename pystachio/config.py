"""The settings: one TOML file, environment variables `PYSTACHIO_...`, flags or keyword arguments; the last one wins.

Read once, at the door. The parts of the engine never see this module: their constructors take the values they need.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from pystachio import machine
from pystachio.errors import InvalidRequest, NotFound, Unauthorized, shown

ENVIRONMENT_PREFIX = "PYSTACHIO_"
CONFIG_VARIABLE = "PYSTACHIO_CONFIG"
"""Names the TOML file, where no argument does."""

MEMORY_FRACTION = 0.6
"""Of what the process may use: Python, torch and the page cache need the rest."""

_MOST_CHUNK_CACHE_BYTES = 64 << 30
_FREE_DISK_SHARE = 10

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "resources": ("memory", "device", "threads", "spill_dir"),
    "execution": ("batch_rows", "dictionary_codes", "direct_addressing", "fusion", "join_reordering", "tracing"),
    "cache": ("chunk_cache", "chunk_cache_dir", "chunk_cache_bytes"),
    "io": ("direct_io", "io_device", "io_policy", "emulated"),
    "node": ("control_socket",),
}
"""The tables of the TOML file. A key's name is the same there, in the environment and as a keyword argument."""

_MOST_BYTES = 1 << 20
"""Of the configuration file: a device or a pipe without end is not read forever."""

_SECONDS: Mapping[str, float] = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
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
    """`"100us"`, `"2.5ms"`, `"3s"`, `"5m"`, `"1h"` or a number, in seconds."""
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


def _cache_folder(environment: Mapping[str, str]) -> Path:
    """A user without a home folder has one among the temporary files."""
    folder = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "pystachio" if os.path.isabs(folder) else Path(tempfile.gettempdir()) / "pystachio-cache"


class EmulatedDisk(BaseModel):
    """A disk of this rate in bytes per second, latency in seconds and depth in place of the one below `path`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: AbsolutePath
    rate: Rate
    latency: Duration = 0.0
    depth: Count = Field(default=32, ge=1, le=4096)


class Settings(BaseModel):
    """Every setting with its type, default and meaning. Frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory: Size = Field(
        default_factory=lambda: int(machine.memory_limit() * MEMORY_FRACTION),
        description="bytes that running plans may hold together, for example 2GiB",
    )
    device: str = Field(default="auto", description="where operators run: auto (the CPU), cpu, cuda or cuda:N")
    threads: Count = Field(default_factory=machine.usable_cores, ge=1, le=1024, description="worker threads")
    spill_dir: AbsolutePath = Field(
        default_factory=lambda: Path(tempfile.gettempdir()), description="folder for what does not fit into memory"
    )
    batch_rows: Count = Field(default=262_144, ge=1, le=1 << 30, description="rows per batch that operators aim at")
    dictionary_codes: bool = Field(default=True, description="keep strings as dictionary codes")
    direct_addressing: bool = Field(default=True, description="join and group by address where the keys' range allows")
    fusion: bool = Field(
        default=True, description="run chains of operators as one compiled program where that is possible"
    )
    join_reordering: bool = Field(default=True, description="choose the order of joins by statistics")
    tracing: bool = Field(default=True, description="remember what operators and transfers did lately, for traces")
    chunk_cache: bool = Field(default=True, description="keep decoded columns for the queries to come")
    chunk_cache_dir: AbsolutePath = Field(
        default_factory=lambda: _cache_folder(os.environ), description="folder for decoded columns, for this user only"
    )
    chunk_cache_bytes: SizeOrAuto = Field(
        default="auto", description="bytes of decoded columns on disk: auto, or for example 20GiB; 0 for none"
    )
    direct_io: Literal["auto", "on", "off"] = Field(default="auto", description="read around the page cache")
    io_device: Literal["auto", "posix", "nvme"] = Field(default="auto", description="what moves bytes from disk")
    io_policy: Literal["pystachio", "strict", "fair", "fifo"] = Field(
        default="pystachio", description="the order of transfers; all but pystachio exist to compare"
    )
    emulated: tuple[EmulatedDisk, ...] = Field(
        default=(), description="slower disks in place of real ones: tables of path, rate, latency and depth"
    )
    control_socket: bool = Field(
        default=True, description="let `pystachio-node ps` and its kin see this process's plans"
    )

    def chunk_cache_limit(self) -> int:
        """Bytes that decoded columns may take on disk. `auto` is a tenth of what is free there now, at most 64 GiB."""
        if not self.chunk_cache:
            return 0
        if self.chunk_cache_bytes != "auto":
            return self.chunk_cache_bytes
        try:
            return min(_MOST_CHUNK_CACHE_BYTES, machine.free_disk(self.chunk_cache_dir) // _FREE_DISK_SHARE)
        except OSError:
            return 0

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if re.fullmatch(r"auto|cpu|cuda(:\d+)?", device) is None:
            raise ValueError("write auto, cpu, cuda or cuda:N")
        return device

    @field_validator("emulated", mode="before")
    @classmethod
    def _tables(cls, value: object) -> object:
        """The environment has room for text only: JSON."""
        if isinstance(value, dict):
            raise ValueError("one table where a list of tables belongs; in a file its name is [[io.emulated]]")
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value) if value.strip() else ()
        except (ValueError, RecursionError):
            raise ValueError('write a list of tables as JSON: [{"path": "/data", "rate": "200MB/s"}]') from None

    @field_validator("emulated")
    @classmethod
    def _each_path_once(cls, disks: tuple[EmulatedDisk, ...]) -> tuple[EmulatedDisk, ...]:
        paths = [disk.path for disk in disks]
        if len(set(paths)) < len(paths):
            raise ValueError("the same path twice")
        return disks


@dataclass(frozen=True, slots=True)
class Loaded:
    """`origins` says for every setting where its value came from, in words."""

    settings: Settings
    origins: Mapping[str, str]


def load(
    config: str | os.PathLike[str] | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    **arguments: object,
) -> Loaded:
    """Read the settings. An argument that is None counts as not given.

    `config` names the TOML file; without it `PYSTACHIO_CONFIG`, then `~/.config/pystachio/config.toml` if it exists.
    Raises InvalidRequest for an unknown name or a bad value, NotFound or Unauthorized for the file.
    """
    values: dict[str, object] = {}
    origins = dict.fromkeys(Settings.model_fields, "default")
    path = _config_path(config, environment)
    sources = [
        (f"file {path}", _from_file(path) if path is not None else {}),
        ("environment", _from_environment(environment)),
        ("argument", _from_arguments(arguments)),
    ]
    for origin, found in sources:
        values |= found
        origins |= dict.fromkeys(found, origin)
    try:
        return Loaded(Settings.model_validate(values), origins)
    except ValidationError as error:
        raise _invalid_value(error, origins) from None


def _config_path(config: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> Path | None:
    named = config if config is not None else environment.get(CONFIG_VARIABLE)
    if named:
        try:
            return Path(named).expanduser()
        except (TypeError, RuntimeError) as error:
            raise InvalidRequest(f"not the path of a configuration file: {shown(named)}: {error}") from None
    folder = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = Path(folder) / "pystachio" / "config.toml"
    return path if path.is_file() else None


def _from_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise InvalidRequest(f"the configuration file is longer than {_MOST_BYTES} bytes: {path}")
        document = tomllib.loads(text.decode("utf-8"))
    except FileNotFoundError:
        raise NotFound(f"no such configuration file: {path}") from None
    except PermissionError:
        raise Unauthorized(f"may not read the configuration file: {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the configuration file cannot be read: {path}: {error}") from None
    values: dict[str, object] = {}
    for section, content in document.items():
        if section not in SECTIONS or not isinstance(content, dict):
            raise _unknown(section, f"{path}", [f"[{name}]" for name in SECTIONS], _section_of(section))
        for key, value in content.items():
            if key not in SECTIONS[section]:
                raise _unknown(f"{section}.{key}", f"{path}", [f"{section}.{name}" for name in SECTIONS[section]])
            values[key] = value
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}": name for name in Settings.model_fields}
    values: dict[str, object] = {}
    for variable, text in environment.items():
        if variable in known:
            values[known[variable]] = text
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable != CONFIG_VARIABLE:
            raise _unknown(variable, "the environment", [*known, CONFIG_VARIABLE])
    return values


def _from_arguments(arguments: Mapping[str, object]) -> dict[str, object]:
    for name in arguments:
        if name not in Settings.model_fields:
            raise _unknown(name, "the arguments", list(Settings.model_fields))
    return {name: value for name, value in arguments.items() if value is not None}


def _section_of(name: str) -> str | None:
    """Where a key belongs that was written outside of every section."""
    return next((f"put it under [{section}]" for section, keys in SECTIONS.items() if name in keys), None)


def _unknown(name: str, where: str, known: list[str], hint: str | None = None) -> InvalidRequest:
    near = get_close_matches(name, known, n=1)
    hint = hint or (f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}")
    return InvalidRequest(f"unknown setting in {where}: {name}", hint=hint)


def _invalid_value(error: ValidationError, origins: Mapping[str, str]) -> InvalidRequest:
    problem: Any = error.errors(include_url=False)[0]
    name, *inside = (str(part) for part in problem["loc"])
    reason = problem["msg"].removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    if problem["type"] == "extra_forbidden":
        reason = f"no such key; known: {', '.join(EmulatedDisk.model_fields)}"
    meaning = Settings.model_fields[name].description
    return InvalidRequest(
        f"bad value for the setting {'.'.join([name, *inside])} ({origins[name]}): {shown(problem['input'])}: {reason}",
        hint=f"{name}: {meaning}",
    )
