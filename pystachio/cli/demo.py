"""`pystachio-node demo`: the main job end to end, on data made here, through the public surface only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli import tpch
from pystachio.cli.failure import ExitCode, describe, reported
from pystachio.cli.output import readable_bytes, say
from pystachio.cli.process import interruptible
from pystachio.cli.query import connected

if TYPE_CHECKING:
    from pystachio.cli.oracle import DuckDB
    from pystachio.session import Session


@dataclass(frozen=True, slots=True)
class Outcome:
    """One query: milliseconds from the statement to the last row, and `right`, `wrong`, `failed` or `unchecked`."""

    name: str
    milliseconds: float
    rows: int
    bytes_read: int
    verdict: str
    reason: str = ""


def demo(
    scale: Annotated[float, typer.Option(help="Scale factor of the data; 1 is a gigabyte of text.", min=0.001)] = 0.1,
    data: Annotated[Path | None, typer.Option(help="Keep the data in this folder, and use what is there.")] = None,
    memory: Annotated[str | None, typer.Option(help="Bytes that a query may hold, for example 2GiB.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda:N.")] = None,
    threads: Annotated[int | None, typer.Option(help="Worker threads.")] = None,
) -> None:
    """Make TPC-H data, run its 22 queries, and check every answer against DuckDB where that is installed."""
    settings = {"memory": memory, "device": device, "threads": threads}
    with interruptible(within=2.0), reported(), connected(**settings) as session, _data(scale, data) as folder:
        outcomes = []
        typer.echo(f"{'query':<7}{'ms':>8}{'rows':>8}{'read':>11}  answer")
        for outcome in _outcomes(session, tpch.table_files(folder)):
            _print(outcome)
            outcomes.append(outcome)
        _summarise(outcomes)
    if any(outcome.verdict in ("wrong", "failed") for outcome in outcomes):
        raise typer.Exit(ExitCode.FAILED)


def _outcomes(session: Session, tables: list[Path]) -> Iterator[Outcome]:
    from pystachio.cli.oracle import DuckDB, duckdb_is_installed

    for path in tables:
        session.register(path.stem, path)
    if not duckdb_is_installed():
        for name, sql in tpch.statements().items():
            yield _run(session, None, name, sql)
        return
    with closing(DuckDB(tables)) as oracle:
        for name, sql in tpch.statements().items():
            yield _run(session, oracle, name, sql)


@contextmanager
def _data(scale: float, folder: Path | None) -> Iterator[Path]:
    """A folder with the eight tables: the given one, filled if it is not complete, or one that is gone afterwards."""
    if folder is None:
        with TemporaryDirectory(prefix="pystachio-demo-") as temporary:
            _generate(scale, Path(temporary))
            yield Path(temporary)
        return
    if not tpch.is_complete(folder):
        _generate(scale, folder)
    yield folder


def _generate(scale: float, folder: Path) -> None:
    say(f"making TPC-H data at scale {scale:g}")
    tpch.generate(scale, folder)


def _run(session: Session, oracle: DuckDB | None, name: str, sql: str) -> Outcome:
    from pystachio.cli.oracle import disagreement
    from pystachio.errors import PystachioError

    started = time.perf_counter()
    try:
        result = session.sql(sql)
        table = result.to_arrow()
    except PystachioError as error:
        return Outcome(name, (time.perf_counter() - started) * 1e3, 0, 0, "failed", describe(error))
    milliseconds = (time.perf_counter() - started) * 1e3
    bytes_read = result.metrics().bytes_read
    if oracle is None:
        return Outcome(name, milliseconds, table.num_rows, bytes_read, "unchecked")
    reason = disagreement(table, oracle.rows(sql), sql)
    return Outcome(name, milliseconds, table.num_rows, bytes_read, "wrong" if reason else "right", reason or "")


def _print(outcome: Outcome) -> None:
    size = readable_bytes(outcome.bytes_read)
    line = f"{outcome.name:<7}{outcome.milliseconds:>8.1f}{outcome.rows:>8,}{size:>11}  {outcome.verdict}"
    typer.echo(line)
    if outcome.reason:
        say(f"  {outcome.reason}")


def _summarise(outcomes: list[Outcome]) -> None:
    counts = dict.fromkeys(("right", "wrong", "failed", "unchecked"), 0)
    for outcome in outcomes:
        counts[outcome.verdict] += 1
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    seconds = sum(outcome.milliseconds for outcome in outcomes) / 1e3
    size = readable_bytes(sum(outcome.bytes_read for outcome in outcomes))
    typer.echo(f"{len(outcomes)} queries in {seconds:.2f} s, {size} read: {verdicts}")
    if counts["unchecked"]:
        say("answers are checked when DuckDB is installed: pip install duckdb")
