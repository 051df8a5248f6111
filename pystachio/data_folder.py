"""A folder of tables, as people keep their data."""

from __future__ import annotations

import os
from pathlib import Path

from pystachio.errors import NotFound, Unauthorized
from pystachio.io_scheduler.os_errors import from_os_error


def tables_of_folder(folder: Path) -> dict[str, Path]:
    """Each `name.parquet` and each folder `name/` that holds Parquet files, by name.

    Raises NotFound for a folder that does not exist or has no tables, Unauthorized, ResourceExhausted (too many files
    are open), DataError (the disk fails).
    """
    try:
        if not folder.is_dir():
            raise NotFound(f"no such folder: {folder}", hint="--data names a folder of Parquet files")
        entries = sorted(folder.iterdir())
        tables = {path.stem: path for path in entries if path.suffix == ".parquet" and path.is_file()}
        tables |= {path.name: path for path in entries if path.is_dir() and _holds_files(path)}
    except PermissionError as error:
        raise Unauthorized(f"may not read the folder: {error.filename or folder}") from None
    except OSError as error:
        raise from_os_error(error, error.filename or str(folder)) from None
    if not tables:
        raise NotFound(f"no Parquet files in the folder: {folder}", hint="expected name.parquet or name/*.parquet")
    return tables


def _holds_files(folder: Path) -> bool:
    try:
        return any(name.endswith(".parquet") for name in os.listdir(folder))
    except PermissionError:  # somebody else's
        return False
