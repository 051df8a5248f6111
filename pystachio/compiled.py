"""Libraries of this package that are plain C and called through ctypes. Each is optional: it is not there where no
compiler was at hand at installation, and Python does its work."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CompiledLibrary:
    """The library, or why there is none. Calls of `brief`, the same one, keep the interpreter."""

    library: ctypes.CDLL | None
    problem: str
    brief: ctypes.CDLL | None = None


def load_library(
    folder: Path, name: str, *, version: tuple[str, int], declare: Callable[[ctypes.CDLL], object]
) -> CompiledLibrary:
    """The library `name` of the folder. `version` is the function that tells its interface's, and the number that is
    expected; `declare` sets the types of its functions."""
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"{name}{suffix}"
        if path.is_file():
            return _load(path, version, declare)
    return CompiledLibrary(None, "it was not built: there was no C compiler at installation")


def _load(path: Path, version: tuple[str, int], declare: Callable[[ctypes.CDLL], object]) -> CompiledLibrary:
    function, expected = version
    try:
        library = ctypes.CDLL(str(path))
        found = getattr(library, function)()
    except (OSError, AttributeError) as error:
        return CompiledLibrary(None, f"it cannot be loaded: {error}")
    if found != expected:
        return CompiledLibrary(None, "it was built from other sources: install again")
    brief = ctypes.PyDLL(str(path))
    for handle in (library, brief):
        declare(handle)
    return CompiledLibrary(library, "", brief)
