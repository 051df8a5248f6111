from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pystachio.cli import oracle
from pystachio.cli.main import app
from pystachio.cli.tpch import TABLES


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "tpch"


def test_all_queries_are_right(data: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--scale", "0.01", "--data", str(data)])
    assert done.exit_code == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["query", "ms", "rows", "read", "answer"]
    assert [line.split()[0] for line in lines[1:23]] == [f"q{number:02}" for number in range(1, 23)]
    assert {line.split()[-1] for line in lines[1:23]} == {"right"}
    assert lines[23].endswith(": 22 right")
    assert sorted(os.listdir(data)) == [f"{table}.parquet" for table in TABLES]


def test_data_is_used_again_and_answers_are_unchecked_without_duckdb(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "duckdb_is_installed", lambda: False)
    done = CliRunner().invoke(app, ["demo", "--scale", "0.01", "--data", str(data)])
    assert done.exit_code == 0
    assert "making" not in done.stderr
    assert ": 22 unchecked" in done.stdout
    assert "pip install duckdb" in done.stderr


def test_a_folder_that_cannot_be_filled_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    done = CliRunner().invoke(app, ["demo", "--scale", "0.01", "--data", str(tmp_path / "file" / "data")])
    assert done.exit_code == 1
    assert "invalid request: the output cannot be written" in done.stderr
    assert "defect" not in done.stderr


def test_a_wrong_answer_is_exit_code_1(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "difference", lambda ours, theirs, order: "row 0 is (1,) instead of (2,)")
    done = CliRunner().invoke(app, ["demo", "--data", str(data)])
    assert done.exit_code == 1
    assert ": 22 wrong" in done.stdout
    assert "row 0 is (1,) instead of (2,)" in done.stderr
