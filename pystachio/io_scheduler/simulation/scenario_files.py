"""Finding scenarios: built-in ones by name, others in people's Python files."""

from __future__ import annotations

import traceback
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from pystachio.errors import InvalidRequest, NotFound, PystachioError
from pystachio.io_scheduler.simulation import scenarios
from pystachio.io_scheduler.simulation.scenario import Scenario


def built_in_names() -> list[str]:
    return sorted(module.name for module in iter_modules(scenarios.__path__))


def load_scenario(name: str) -> Scenario:
    """A built-in scenario by name, or that of a Python file. Raises NotFound, or InvalidRequest that says where."""
    if name in built_in_names():
        return _call(import_module(f"{scenarios.__name__}.{name}"), name)
    path = Path(name)
    if path.suffix != ".py":
        raise NotFound(f"no such scenario: {name}", hint=f"a Python file, or one of {', '.join(built_in_names())}")
    return _call(_execute(path), str(path))


def _execute(path: Path) -> ModuleType:
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"no such scenario file: {path}") from None
    except OSError as error:
        raise InvalidRequest(f"the scenario file cannot be read: {path}: {error.strerror}") from None
    module = ModuleType("scenario")
    module.__file__ = str(path)
    try:
        program = compile(source, str(path), "exec")
    except SyntaxError as error:
        raise InvalidRequest(f"the scenario is not Python: {path}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:  # of bytes that are zero, up to Python 3.11.3
        raise InvalidRequest(f"the scenario is not Python: {path}: {error}") from None
    try:
        exec(program, module.__dict__)
    except (Exception, SystemExit) as error:
        raise _failed(str(path), error) from error
    return module


def _call(module: ModuleType, where: str) -> Scenario:
    function = getattr(module, "scenario", None)
    if not callable(function):
        raise InvalidRequest(
            f"the scenario file defines no function `scenario`: {where}", hint="def scenario() -> Scenario: ..."
        )
    try:
        scenario = function()
    except (Exception, SystemExit) as error:
        raise _failed(where, error) from error
    if not isinstance(scenario, Scenario):
        raise InvalidRequest(f"`scenario` returned no Scenario but {type(scenario).__name__}: {where}")
    return scenario


def blame(name: str, error: Exception) -> InvalidRequest | None:
    """What to say of an error of a running simulation if it arose in the code of the scenario's file."""
    return _failed(name, error) if _lines(name, error) else None


def _failed(where: str, error: BaseException) -> InvalidRequest:
    """Says in which line of the file it happened."""
    lines = _lines(where, error)
    what = error.message if isinstance(error, PystachioError) else f"{type(error).__name__}: {error}"
    hint = error.hint if isinstance(error, PystachioError) else None
    place = f", line {lines[-1]}" if lines else ""
    return InvalidRequest(f"the scenario fails: {where}{place}: {what}", hint=hint)


def _lines(where: str, error: BaseException) -> list[int | None]:
    return [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == where]
