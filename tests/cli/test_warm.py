from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pystachio.cli.main import app


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYSTACHIO_CHUNK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYSTACHIO_CHUNK_CACHE_BYTES", "64MiB")
    return tmp_path / "cache"


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def files(cache: Path) -> int:
    return len(list(cache.rglob("*.chunk")))


def test_a_folder_of_tables(data: Path, cache: Path) -> None:
    done = run("warm", "--data", data)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith(f"{files(cache)} column chunks stored, ")
    assert done.stdout == ""
    again = run("warm", "--data", data)
    assert again.stderr == f"0 column chunks stored, 0 B; {files(cache)} were there\n"


def test_paths_are_tables(data: Path, cache: Path) -> None:
    assert run("warm", data / "people.parquet", data / "numbers", "--quiet").stderr == ""
    analyzed = run("query", "--data", data, "--analyze", "select sum(n) as s from numbers")
    assert "bytes from chunk cache" in analyzed.stdout
    assert "bytes read" not in analyzed.stdout


def test_a_cache_that_is_too_small(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSTACHIO_CHUNK_CACHE_BYTES", "16KiB")
    done = run("warm", "--data", data)
    assert done.exit_code == 0
    assert "left out for lack of room" in done.stderr
    assert sum(path.stat().st_size for path in cache.rglob("*.chunk")) <= 16 << 10


def test_without_a_cache_or_a_path(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("warm").exit_code == 2
    assert run("warm", data / "nothing.parquet").exit_code == 1
    monkeypatch.setenv("PYSTACHIO_CHUNK_CACHE_BYTES", "0")
    done = run("warm", data / "people.parquet")
    assert done.exit_code == 1
    assert "no chunk cache on disk" in done.stderr
