"""Where results go: standard output, or a file that appears only when it is complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pystachio.atomic_file import replaced_at_end, require_writable, typed_write_error
from pystachio.errors import InvalidRequest

_STANDARD_ERROR = 2


def say(message: str) -> None:
    """A line for the person at the terminal: on standard error, because standard output carries results only."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def replace_closed_streams() -> None:
    """Where the caller closed a standard stream (`>&-`), open one that leads nowhere.

    Otherwise the next files opened would get its number: the event loop's library ends a process in which that
    happens, and what is written to the stream would end up in a file.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(opened)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STANDARD_ERROR, "w", closefd=False)


def readable_bytes(number: float) -> str:
    """`12.3 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError


@contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or the file `path`, which is replaced in one step at the end and untouched after any failure."""
    if path is None:
        with _write_errors("standard output"):
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
    else:
        with _write_errors(str(path)), replaced_at_end(path) as file:
            yield file


def check_output(path: Path | None) -> None:
    """Raises what would keep `open_output` from opening the file, before anything is done for it."""
    if path is not None:
        with _write_errors(str(path)):
            require_writable(path)


@contextmanager
def _write_errors(where: str) -> Iterator[None]:
    """Errors of the engine are typed already: what is left here are errors of writing."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise typed_write_error(error, where) from None
    except UnicodeEncodeError:
        raise InvalidRequest(f"the output's name cannot be encoded: {where!r}") from None
