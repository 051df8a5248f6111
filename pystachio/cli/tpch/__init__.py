"""TPC-H: its tables, its 22 statements, and data by tpchgen-cli."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from pystachio.atomic_file import typed_write_error
from pystachio.errors import InvalidRequest, NotFound

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def statements() -> dict[str, str]:
    """By name, q01 to q22."""
    resources = sorted(files(__name__).iterdir(), key=lambda resource: resource.name)
    return {
        resource.name.removesuffix(".sql"): resource.read_text(encoding="utf-8")
        for resource in resources
        if resource.name.endswith(".sql")
    }


def table_files(folder: Path) -> list[Path]:
    """Where `generate` puts each of the tables."""
    return [folder / f"{table}.parquet" for table in TABLES]


def is_complete(folder: Path) -> bool:
    return all(path.is_file() for path in table_files(folder))


def generate(scale: float, folder: Path) -> None:
    """Fill the folder: columns without NULL, strings as string_view.

    Raises NotFound without tpchgen-cli, and for a folder that cannot be filled Unauthorized, ResourceExhausted or
    InvalidRequest.
    """
    beside = Path(sys.executable).with_name("tpchgen-cli")
    program = str(beside) if beside.exists() else which("tpchgen-cli")
    if program is None:
        raise NotFound(
            "tpchgen-cli is not installed", hint="pip install tpchgen-cli, or give --data a folder with data"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Tables appear when all are complete: an interrupted run leaves none, and two at once do not mix.
        with TemporaryDirectory(prefix=".making-", dir=folder) as making:
            command = [program, "parquet", "--scale-factor", f"{scale:g}", "--output-dir", making]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode != 0:
                raise InvalidRequest(f"the data cannot be made in {folder}: tpchgen-cli: {made.stderr.strip()}")
            for path in table_files(Path(making)):
                path.replace(folder / path.name)
    except OSError as error:
        raise typed_write_error(error, str(folder)) from None
