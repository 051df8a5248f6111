"""A folder of tables, as people keep their data."""

from __future__ import annotations

from pathlib import Path

from pystachio.errors import NotFound, Unauthorized


def tables_of_folder(folder: Path) -> dict[str, Path]:
    """Each `name.parquet` and each folder `name/` that holds Parquet files, by name.

    Raises NotFound for a folder that does not exist or has no tables, Unauthorized.
    """
    if not folder.is_dir():
        raise NotFound(f"no such folder: {folder}", hint="--data names a folder of Parquet files")
    try:
        entries = sorted(folder.iterdir())
    except PermissionError:
        raise Unauthorized(f"may not read the folder: {folder}") from None
    tables = {path.stem: path for path in entries if path.suffix == ".parquet" and path.is_file()}
    tables |= {path.name: path for path in entries if path.is_dir() and any(path.glob("*.parquet"))}
    if not tables:
        raise NotFound(f"no Parquet files in the folder: {folder}", hint="expected name.parquet or name/*.parquet")
    return tables
