"""TPC-H: its tables, its 22 statements, and data by tpchgen-cli."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from shutil import which

from pystachio.errors import InternalError, NotFound

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
    """Fill the folder: columns without NULL, strings as string_view. Raises NotFound without tpchgen-cli."""
    beside = Path(sys.executable).with_name("tpchgen-cli")
    program = str(beside) if beside.exists() else which("tpchgen-cli")
    if program is None:
        raise NotFound(
            "tpchgen-cli is not installed", hint="pip install tpchgen-cli, or give --data a folder with data"
        )
    folder.mkdir(parents=True, exist_ok=True)
    command = [program, "parquet", "--scale-factor", f"{scale:g}", "--output-dir", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise InternalError(f"tpchgen-cli failed: {made.stderr.strip()}")
