"""How a command ends: every failure becomes one message on standard error and an exit code, never a traceback."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer

from pystachio.atomic_file import typed_write_error
from pystachio.cli.columns import printable_lines
from pystachio.cli.output import say
from pystachio.errors import Cancelled, InternalError, NodeLost, PystachioError


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


@contextmanager
def reported() -> Iterator[None]:
    """Turns what the block raises into a message and `typer.Exit`."""
    try:
        yield
    except PystachioError as error:
        say(describe(error))
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
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            say(describe(typed_write_error(error, "standard output")))
            raise typer.Exit(ExitCode.FAILED) from None
        if sys.flags.dev_mode:
            raise
        hint = "this is a defect in PystachIO; PYTHONDEVMODE=1 in the environment shows where"
        say(describe(InternalError(f"{type(error).__name__}: {error}", hint=hint)))
        raise typer.Exit(ExitCode.FAILED) from None


def exit_code(error: PystachioError) -> ExitCode:
    match error:
        case NodeLost():
            return ExitCode.UNREACHABLE
        case Cancelled():
            return ExitCode.INTERRUPTED
        case _:
            return ExitCode.FAILED


def describe(error: PystachioError) -> str:
    """The message (a syntax error's shows the place in the statement) and the hint."""
    return f"{error.code.replace('_', ' ')}: {_explained(error)}"


def wrong_usage(error: PystachioError) -> typer.BadParameter:
    """What was asked for on the command line is the mistake: exit code 2."""
    return typer.BadParameter(_explained(error))


def _explained(error: PystachioError) -> str:
    return printable_lines(f"{error.message}\nhint: {error.hint}" if error.hint else error.message)
