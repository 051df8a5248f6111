from __future__ import annotations

import pytest
import typer

from pystachio.cli.failure import ExitCode, describe, reported
from pystachio.errors import Cancelled, DataError, NodeLost, NotFound


def ended(error: BaseException) -> int:
    with pytest.raises(typer.Exit) as caught, reported():
        raise error
    return caught.value.exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("bad page"), ExitCode.FAILED),
        (NodeLost("gone"), ExitCode.UNREACHABLE),
        (Cancelled("stopped"), ExitCode.INTERRUPTED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (ZeroDivisionError("oops"), ExitCode.FAILED),
    ],
)
def test_every_failure_has_its_exit_code_and_no_traceback(
    error: BaseException, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(error) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
    assert "Traceback" not in captured.err


def test_an_unmapped_exception_is_called_a_defect(capsys: pytest.CaptureFixture[str]) -> None:
    ended(ZeroDivisionError("oops"))
    assert capsys.readouterr().err.startswith("internal error: ZeroDivisionError: oops\nhint: this is a defect")


def test_control_characters_of_names_do_not_reach_the_terminal() -> None:
    error = NotFound("no such column: \x1b[31mred\x07\r\n\tline two", hint="\x9bA")
    assert describe(error) == "not found: no such column: \\x1b[31mred\\x07\n\tline two\nhint: \\x9bA"


def test_hint_stands_on_a_line_of_its_own() -> None:
    error = NotFound("no such table: lineitm", hint="did you mean lineitem?")
    assert describe(error) == "not found: no such table: lineitm\nhint: did you mean lineitem?"
