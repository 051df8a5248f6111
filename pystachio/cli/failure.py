"""How a command ends: every failure becomes one message on standard error and an exit code, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer

from pystachio.cli.output import say
from pystachio.errors import Cancelled, InternalError, NodeLost, PystachioError, SqlSyntaxError


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


@contextmanager
def reported(statement: str = "") -> Iterator[None]:
    """Turns what the block raises into a message and `typer.Exit`. `statement` is the SQL that errors point into."""
    try:
        yield
    except PystachioError as error:
        say(describe(error, statement))
        raise typer.Exit(exit_code(error)) from None
    except BrokenPipeError:
        # The reader went away (`| head`): not a failure.
        raise typer.Exit(ExitCode.OK) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        hint = "this is a defect in PystachIO; PYTHONDEVMODE=1 in the environment shows where"
        say(describe(InternalError(f"{type(error).__name__}: {error}", hint=hint), statement))
        raise typer.Exit(ExitCode.FAILED) from None


def exit_code(error: PystachioError) -> ExitCode:
    match error:
        case NodeLost():
            return ExitCode.UNREACHABLE
        case Cancelled():
            return ExitCode.INTERRUPTED
        case _:
            return ExitCode.FAILED


def describe(error: PystachioError, statement: str = "") -> str:
    """The message, the place in the statement where that is known, and the hint; a line each."""
    kind = error.code.replace("_", " ")
    lines = [f"{kind}: {error.message}"]
    if isinstance(error, SqlSyntaxError):
        lines += _caret(statement, error.line, error.column)
    if error.hint:
        lines.append(f"hint: {error.hint}")
    return "\n".join(lines)


def _caret(statement: str, line: int, column: int) -> list[str]:
    """The statement's line with a caret under the column. Both count from 1; 0 is unknown."""
    lines = statement.splitlines()
    if not (1 <= line <= len(lines) and 1 <= column <= len(lines[line - 1]) + 1):
        return []
    label = f"line {line}: "
    before = "".join(character if character == "\t" else " " for character in lines[line - 1][: column - 1])
    return [label + lines[line - 1], " " * len(label) + before + "^"]
