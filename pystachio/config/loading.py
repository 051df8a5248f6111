"""Where the settings come from: a TOML file, the environment, arguments."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pystachio.config.cluster import CLUSTER_PREFIX, CLUSTER_SECTION, ClusterSettings, EmulatedNetwork
from pystachio.config.settings import SECTIONS, EmulatedDisk, Settings
from pystachio.errors import InvalidRequest, NotFound, Unauthorized, shown

ENVIRONMENT_PREFIX = "PYSTACHIO_"
CONFIG_VARIABLE = "PYSTACHIO_CONFIG"
"""Names the TOML file, where no argument does."""
TOKEN_VARIABLE = "PYSTACHIO_TOKEN"
"""Holds a client's token: no setting, and in no file of settings."""

_NO_SETTINGS = (CONFIG_VARIABLE, TOKEN_VARIABLE)
_MOST_BYTES = 1 << 20
"""Of the configuration file: a device or a pipe without end is not read forever."""
_NAMES = (*Settings.model_fields, *(f"{CLUSTER_PREFIX}{name}" for name in ClusterSettings.model_fields))
_KEYS: Mapping[str, Mapping[str, str]] = {
    **{section: {key: key for key in keys} for section, keys in SECTIONS.items()},
    CLUSTER_SECTION: {key: f"{CLUSTER_PREFIX}{key}" for key in ClusterSettings.model_fields},
}
"""By table of the file and key in it: the setting's name everywhere else."""

Part = TypeVar("Part", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded:
    """`origins` says for every setting where its value came from, in words; those of `[cluster]` begin with
    `cluster_`."""

    settings: Settings
    origins: Mapping[str, str]
    cluster: ClusterSettings


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
    origins = dict.fromkeys(_NAMES, "default")
    path = _config_path(config, environment)
    sources = [
        (f"file {path}", _from_file(path) if path is not None else {}),
        ("environment", _from_environment(environment)),
        ("argument", _from_arguments(arguments)),
    ]
    for origin, found in sources:
        values |= found
        origins |= dict.fromkeys(found, origin)
    own = {name: value for name, value in values.items() if name in Settings.model_fields}
    others = {name.removeprefix(CLUSTER_PREFIX): value for name, value in values.items() if name not in own}
    return Loaded(_valid(Settings, own, "", origins), origins, _valid(ClusterSettings, others, CLUSTER_PREFIX, origins))


def _valid(kind: type[Part], values: Mapping[str, object], prefix: str, origins: Mapping[str, str]) -> Part:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _invalid_value(error, kind, prefix, origins) from None


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
        if section not in _KEYS or not isinstance(content, dict):
            raise _unknown(section, f"{path}", [f"[{name}]" for name in _KEYS], _section_of(section))
        for key, value in content.items():
            if key not in _KEYS[section]:
                raise _unknown(f"{section}.{key}", f"{path}", [f"{section}.{name}" for name in _KEYS[section]])
            values[_KEYS[section][key]] = value
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}": name for name in _NAMES}
    values: dict[str, object] = {}
    for variable, text in environment.items():
        if variable in known:
            values[known[variable]] = text
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in _NO_SETTINGS:
            raise _unknown(variable, "the environment", [*known, *_NO_SETTINGS])
    return values


def _from_arguments(arguments: Mapping[str, object]) -> dict[str, object]:
    for name in arguments:
        if name not in _NAMES:
            raise _unknown(name, "the arguments", list(_NAMES))
    return {name: value for name, value in arguments.items() if value is not None}


def _section_of(name: str) -> str | None:
    """Where a key belongs that was written outside of every section."""
    return next((f"put it under [{section}]" for section, keys in _KEYS.items() if name in keys), None)


def _unknown(name: str, where: str, known: list[str], hint: str | None = None) -> InvalidRequest:
    near = get_close_matches(name, known, n=1)
    hint = hint or (f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}")
    return InvalidRequest(f"unknown setting in {where}: {name}", hint=hint)


def _invalid_value(
    error: ValidationError, kind: type[BaseModel], prefix: str, origins: Mapping[str, str]
) -> InvalidRequest:
    problem: Any = error.errors(include_url=False)[0]
    reason = problem["msg"].removeprefix("Value error, ")
    if not reason[1:2].isupper():  # no acronym
        reason = reason[:1].lower() + reason[1:]
    if not problem["loc"]:
        return InvalidRequest(f"settings under [{CLUSTER_SECTION}] that do not fit together: {reason}")
    key, *inside = (str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        emulated = EmulatedNetwork if prefix else EmulatedDisk
        reason = f"no such key; known: {', '.join(emulated.model_fields)}"
    name = f"{prefix}{key}"
    place = f"{CLUSTER_SECTION}.{key}" if prefix else key
    whole = ".".join([place, *inside])
    return InvalidRequest(
        f"bad value for the setting {whole} ({origins[name]}): {shown(problem['input'])}: {reason}",
        hint=f"{place}: {kind.model_fields[key].description}",
    )
