"""`pystachio-node warm`: decoded columns on disk before the first query asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pystachio.cli.failure import reported
from pystachio.cli.output import readable_bytes, say
from pystachio.cli.process import interruptible
from pystachio.cli.progress import progress_bar
from pystachio.cli.query import connected, register_folder

if TYPE_CHECKING:
    from pystachio.result import Result


@dataclass(slots=True)
class _Progress:
    """Counts the rows of `Session.warm` over all tables."""

    tables: int
    stored: int = 0
    present: int = 0
    left_out: int = 0
    nbytes: int = 0
    _finished_tables: int = 0
    _share: float = 0.0

    def progress(self) -> float | None:
        return (self._finished_tables + self._share) / self.tables

    def follow(self, result: Result) -> None:
        """To the end of the table."""
        done = 0
        for batch in result.batches():
            for row in batch.to_pylist():
                done += 1
                self._share = done / row["units"]
                self.stored += row["stored"]
                self.present += row["present"]
                self.left_out += row["left_out"]
                self.nbytes += row["bytes"]
        self._finished_tables += 1
        self._share = 0.0


def warm(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="[PATH]...", help="Tables: Parquet files, or folders of them.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of tables, each a file or a folder, as `query --data` has it.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Bytes that the work may hold, for example 2GiB.")] = None,
    threads: Annotated[int | None, typer.Option(help="Worker threads.")] = None,
    config: Annotated[Path | None, typer.Option(help="Read settings from this TOML file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Decode all columns of Parquet files into the chunk cache on disk."""
    if not paths and data is None:
        raise typer.BadParameter("name Parquet files, folders of them, or a folder of tables with --data")
    settings: dict[str, Any] = {"memory": memory, "threads": threads, "config": config}
    with interruptible(within=2.0), reported(), connected(**settings) as session:
        if data is not None:
            register_folder(session, data)
        for path in paths or ():
            session.register(str(path), path)
        tables = list(session.tables())
        progress = _Progress(len(tables))
        with progress_bar(progress, wanted=not quiet):
            for table in tables:
                progress.follow(session.warm(table))
        if not quiet:
            say(_summary(progress))


def _summary(done: _Progress) -> str:
    parts = [f"{done.stored:,} column chunks stored, {readable_bytes(done.nbytes)}"]
    if done.present:
        parts.append(f"{done.present:,} were there")
    if done.left_out:
        parts.append(f"{done.left_out:,} left out for lack of room: see chunk_cache_bytes")
    return "; ".join(parts)
