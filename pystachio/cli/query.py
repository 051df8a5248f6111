"""`pystachio-node query`: one statement over a folder of Parquet files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from pystachio.cli.choice import metavar, one_of
from pystachio.cli.failure import describe, reported, wrong_usage
from pystachio.cli.formats import Format, choose_format, write_rows
from pystachio.cli.output import check_output, open_output, readable_bytes, say
from pystachio.cli.process import GRACE_SECONDS, importing_only_what_is_needed, interruptible, started
from pystachio.cli.progress import ProgressBar, progress_bar
from pystachio.data_folder import tables_of_folder
from pystachio.errors import InvalidRequest, PystachioError

if TYPE_CHECKING:
    import pyarrow as pa

    from pystachio.result import Result
    from pystachio.session import Session


_TRACE_SECONDS = 5.0
"""From Ctrl-C to the end of a process that writes what its query did until then."""


class Registering(Protocol):
    """The part of a session that takes tables."""

    def register(self, name: str, source: Path) -> None: ...


class Priority(StrEnum):
    """How urgent the query is beside others on the same node."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BATCH = "batch"


def query(
    sql: Annotated[str | None, typer.Argument(metavar="[SQL]", help="The statement.", show_default=False)] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder: each name.parquet, or folder name/ of Parquet files, is the table name."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the statement from this file; - is standard input.")] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            parser=one_of(Format),
            metavar=metavar(Format),
            help="How rows are written. [default: by --output's name, else table]",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write rows to this file, which appears when it is complete.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the plan, run nothing.")] = False,
    analyze: Annotated[
        bool,
        typer.Option("--analyze", help="Run, then print the plan with rows, bytes, time, waits and what bounded it."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write what the query did and waited for to this file, for https://ui.perfetto.dev."),
    ] = None,
    priority: Annotated[
        Priority | None,
        typer.Option(
            parser=one_of(Priority),
            metavar=metavar(Priority),
            help="How urgent the query is.",
            show_default="interactive",
        ),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="When the answer is wanted, from now: 500ms, 2s, 1m. Orders, ends nothing.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Bytes that the query may hold, for example 2GiB.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda:N.")] = None,
    threads: Annotated[int | None, typer.Option(help="Worker threads.")] = None,
    config: Annotated[Path | None, typer.Option(help="Read settings from this TOML file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Answer a SQL query over Parquet files.

    Rows go to standard output, everything else to standard error.
    """
    how = choose_format(format, output)
    if how.binary and output is None and sys.stdout.isatty():
        raise typer.BadParameter(f"{how} is binary: name a file with --output, or pipe it into a program")
    statement = statement_of(sql, file)
    if trace is not None and explain and not analyze:
        raise typer.BadParameter("--explain runs nothing that could be traced: say --analyze")
    if trace is not None and output is not None and os.path.realpath(trace) == os.path.realpath(output):
        raise typer.BadParameter("--output and --trace name the same file")
    seconds = deadline_option(deadline)
    if seconds is not None and priority not in (None, Priority.INTERACTIVE):
        raise typer.BadParameter("a deadline orders interactive queries only")
    settings: dict[str, Any] = {"memory": memory, "device": device, "threads": threads, "config": config}
    with interruptible(GRACE_SECONDS if trace is None else _TRACE_SECONDS), reported():
        check_output(output)
        check_output(trace)
        with connected(**settings) as session:
            if data is not None:
                register_folder(session, data)
            if explain and not analyze:
                print_text(session.explain(statement), output)
                return
            result = session.sql(statement, priority=(priority or Priority.INTERACTIVE).value, deadline=seconds)
            with _traced(result, trace):
                deliver(result, how, output, analyze=analyze, quiet=quiet)


def deadline_option(text: str | None) -> float | None:
    """Seconds from now. A text that is no deadline is wrong usage: exit code 2."""
    if text is None:
        return None
    from pystachio.config import parse_duration
    from pystachio.runtime.urgency import deadline_seconds

    try:
        return deadline_seconds(parse_duration(text))
    except InvalidRequest as error:
        raise typer.BadParameter(f"{error.message}\nhint: for example --deadline 2s", param_hint="--deadline") from None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--deadline") from None


def connected(**settings: Any) -> Session:
    """A session in this process. A setting that is unknown or bad is wrong usage: exit code 2."""
    with importing_only_what_is_needed():
        from pystachio.session import connect
    started()
    try:
        session: Session = connect(**settings)
        return session
    except InvalidRequest as error:
        raise wrong_usage(error) from None


def register_folder(session: Registering, folder: Path) -> None:
    """Each `name.parquet` and each folder `name/` that holds Parquet files becomes the table `name`."""
    for name, path in tables_of_folder(folder).items():
        session.register(name, path)


def statement_of(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise typer.BadParameter("give the statement either as an argument or with --file")
    if sql is not None:
        return sql
    if str(file) == "-":
        return sys.stdin.read()
    try:
        assert file is not None
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"the statement's file cannot be read: {file}: {error}") from None


def deliver(result: Result, how: Format, output: Path | None, *, analyze: bool, quiet: bool) -> None:
    """Fetch all rows and write them, then say what it took."""
    screen = output is None and sys.stdout.isatty()
    complete = True
    with progress_bar(result, wanted=not quiet) as bar:
        if analyze and output is None:
            for _ in result.batches():
                pass
        else:
            batches = _stopping(bar, result.batches()) if screen else result.batches()
            with open_output(output) as sink:
                complete = write_rows(result.schema, batches, how, sink, screen=screen)
    if not complete:
        say("only the first rows are shown; --output FILE or --format csv gives all")
    elif not quiet:
        metrics = result.metrics()
        say(f"{_counted(metrics.rows, 'row')} in {metrics.seconds:.2f} s, {readable_bytes(metrics.bytes_read)} read")
    if analyze:
        print_text(result.explain(analyze=True), None)


@contextmanager
def _traced(result: Result, trace: Path | None) -> Iterator[None]:
    """The plan ends with the block; then its trace is written, also that of a plan that failed or was interrupted."""
    try:
        yield
    except BaseException:
        result.cancel()
        if trace is not None:
            try:
                result.trace(trace)
            except PystachioError as error:
                say(describe(error))
        raise
    result.cancel()
    if trace is not None:
        result.trace(trace)


def _stopping(bar: ProgressBar | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes the bar away before the first row appears on the same terminal."""
    for batch in batches:
        if bar is not None:
            bar.stop()
        yield batch


def print_text(text: str, output: Path | None) -> None:
    with open_output(output) as sink:
        sink.write(text.rstrip("\n").encode() + b"\n")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
