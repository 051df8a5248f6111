"""`pystachio-node rewrite`: Parquet files in a layout that is quick to read, for this engine and for others."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli.columns import aligned
from pystachio.cli.failure import reported
from pystachio.cli.output import open_output, readable_bytes, say
from pystachio.cli.process import interruptible, started
from pystachio.cli.progress import progress_bar

if TYPE_CHECKING:
    from pystachio.rewrite.rewrite import Report

_GRACE_SECONDS = 10.0
"""Ctrl-C ends the process at the latest then; removing the unfinished file takes less."""


class Compression(StrEnum):
    AUTO = "auto"
    NONE = "none"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def rewrite(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE...", help="Parquet files, or folders of them: together one table.")
    ],
    output: Annotated[Path, typer.Option(help="Folder for the new file; made if it is not there.")],
    name: Annotated[str | None, typer.Option(help="Name of the new file, by default that of the first source.")] = None,
    row_group_rows: Annotated[int | None, typer.Option(min=1, help="Most rows of a row group.")] = None,
    row_group_bytes: Annotated[str | None, typer.Option(help="Most bytes in memory of a row group: 256MiB.")] = None,
    page_bytes: Annotated[str | None, typer.Option(help="Most encoded bytes of a page: 256KiB.")] = None,
    compression: Annotated[
        Compression, typer.Option(help="Codec for the columns where one pays; auto is Snappy.")
    ] = Compression.AUTO,
    sort_by: Annotated[str | None, typer.Option(metavar="COLUMN[,COLUMN]", help="Sort the rows, ascending.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the new file if it exists.")] = False,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Read the new file back and compare.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Write Parquet files again: large row groups, many pages, checksums, compression where it pays."""
    sizes = {
        "row_group_rows": row_group_rows,
        "row_group_bytes": _size("--row-group-bytes", row_group_bytes),
        "page_bytes": _size("--page-bytes", page_bytes),
    }
    keys = () if sort_by is None else tuple(key.strip() for key in sort_by.split(","))
    if not all(keys):
        raise typer.BadParameter(f"--sort-by wants names of columns with commas between them, not {sort_by!r}")
    with interruptible(within=_GRACE_SECONDS), reported():
        from pystachio.rewrite.layout import Layout
        from pystachio.rewrite.rewrite import Progress, Rewriting
        from pystachio.rewrite.rewrite import rewrite as rewritten

        started()
        layout = Layout(**{key: size for key, size in sizes.items() if size is not None}, compression=compression.value)
        progress = Progress()
        with progress_bar(progress, wanted=not quiet):
            wanted = Rewriting(tuple(sources), output, name, layout, keys, overwrite=force, verify=verify)
            report = rewritten(wanted, progress)
        if not quiet:
            with open_output(None) as screen:
                screen.write(_table(report).encode())
            say(_summary(report))


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    from pystachio.config import parse_size

    try:
        size = int(str(parse_size(text)))
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None
    if size < 1:
        raise typer.BadParameter(f"{option}: must be at least 1 byte")
    return size


def _table(report: Report) -> str:
    headings = ("column", "encoding", "compression", "before", "after")
    rows = [
        (c.name, c.encoding, c.compression, readable_bytes(c.before), readable_bytes(c.after)) for c in report.columns
    ]
    return aligned(headings, rows)


def _summary(report: Report) -> str:
    sizes = f"{readable_bytes(report.bytes_before)} before, {readable_bytes(report.bytes_after)} after"
    checked = "verified" if report.verified else "not verified"
    return f"{report.path}: {report.rows:,} rows in {report.row_groups:,} row groups; {sizes}; {checked}"
