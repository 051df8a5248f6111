from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pystachio.cli.main import app


def run(*arguments: str | Path, given: str | None = None) -> Any:
    return CliRunner().invoke(app, ["query", *map(str, arguments)], input=given)


def rows(done: Any) -> list[dict[str, object]]:
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_rows_go_to_stdout_and_the_summary_to_stderr(data: Path) -> None:
    done = run("--data", data, "select id, name from people order by id")
    assert done.exit_code == 0
    assert done.stdout == "id  name\n──  ──────\n 1  Ada\n 2  NULL\n 3  Edsger\n 4\n"
    assert done.stderr.startswith("4 rows in ")
    assert done.stderr.endswith(" read\n")


def test_quiet_says_nothing(data: Path) -> None:
    assert run("--data", data, "-q", "select 1 as one").stderr == ""


def test_json_of_every_kind_of_value(data: Path) -> None:
    done = run("--data", data, "--format", "json", "select person, price, day from sales order by price nulls last")
    assert rows(done) == [
        {"person": 1, "price": "9.99", "day": "2024-01-02"},
        {"person": 2, "price": "20.00", "day": None},
        {"person": 1, "price": None, "day": "2024-02-29"},
    ]


def test_a_folder_of_files_is_a_table(data: Path) -> None:
    done = run("--data", data, "--format", "json", "select count(*) as c, sum(n) as s, max(n) as m from numbers")
    assert rows(done) == [{"c": 300_000, "s": 299_999 * 150_000, "m": 299_999}]


def test_a_statement_without_data() -> None:
    assert rows(run("--format", "json", "select 1 + 1 as two")) == [{"two": 2}]


def test_statement_from_a_file_and_from_standard_input(data: Path, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("-- names\nselect count(name) as n\nfrom people;\n")
    assert rows(run("--data", data, "--format", "json", "--file", tmp_path / "q.sql")) == [{"n": 3}]
    assert rows(run("--data", data, "--format", "json", "--file", "-", given="select count(*) as n from people")) == [
        {"n": 4}
    ]


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "json"])
def test_output_file_in_the_format_of_its_name(data: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    done = run("--data", data, "--output", path, "select id, name from people order by id")
    assert done.exit_code == 0
    assert done.stdout == ""
    match suffix:
        case "parquet":
            names = pq.read_table(path)["name"].to_pylist()
        case "arrow":
            names = pa.ipc.open_stream(path.read_bytes()).read_all()["name"].to_pylist()
        case "csv":
            names = [line.split(",")[1].strip('"') or None for line in path.read_text().splitlines()[1:]]
            names[3] = ""
        case "json":
            names = [json.loads(line)["name"] for line in path.read_text().splitlines()]
    assert names == ["Ada", None, "Edsger", ""]
    assert os.listdir(tmp_path) == [path.name]


def test_binary_formats_go_through_pipes(data: Path) -> None:
    done = run("--data", data, "--format", "parquet", "-q", "select id from people")
    assert pq.read_table(io.BytesIO(done.stdout_bytes)).num_rows == 4


def test_explain_runs_nothing(data: Path) -> None:
    done = run("--data", data, "--explain", "select count(*) as n from numbers where n > 10")
    assert done.exit_code == 0
    assert "Scan" in done.stdout
    assert "numbers" in done.stdout
    assert done.stderr == ""


def test_analyze_runs_and_shows_rows(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    done = run("--data", data, "--analyze", "--output", output, "select count(*) as n from numbers where n >= 150000")
    assert done.exit_code == 0
    assert "150,000" in done.stdout or "150000" in done.stdout
    assert json.loads(output.read_text()) == {"n": 150_000}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select nam from people", "hint: "),
        ("select * from peple", "people"),
        ("select name from people wher id = 1", "  select name from people wher id = 1\n"),
        ("insert into people values (1, 'x')", ""),
        ("select 1 as one; select 2 as two", ""),
        ("", ""),
        ("select name + 1 from people", ""),
    ],
)
def test_bad_statements_are_one_message_and_exit_code_1(data: Path, sql: str, message: str, tmp_path: Path) -> None:
    output = tmp_path / "rows.csv"
    done = run("--data", data, "--output", output, sql)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_caret_stands_under_the_mistake(data: Path) -> None:
    done = run("--data", data, "select name\nfrom people wher id = 1")
    line, caret = done.stderr.splitlines()[1:3]
    assert line.strip() == "from people wher id = 1"
    assert caret.index("^") >= line.index("wher")


@pytest.mark.parametrize("name", ["no-such-folder", "people.parquet", "empty"])
def test_bad_data_folders(data: Path, name: str) -> None:
    done = run("--data", data / name, "select 1 as one")
    assert done.exit_code == 1
    assert done.stderr.startswith("not found: ")


def test_damaged_file_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    done = run("--data", tmp_path, "select * from t")
    assert done.exit_code == 1
    assert done.stderr.startswith("data error: ")
    assert "t.parquet" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["select 1", "--file", "q.sql"],
        ["--file", "no-such-file.sql"],
        ["select 1", "--format", "xml"],
        ["select 1", "--threads", "two"],
        ["select 1", "--nonsense"],
        ["select 1", "select 2"],
        ["select 1", "--memory", "plenty"],
        ["select 1", "--threads", "0"],
        ["select 1", "--device", "abacus"],
        ["select 1", "--config", "no-such-file.toml"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr


def test_too_little_memory_names_the_setting(data: Path) -> None:
    done = run("--data", data, "--memory", "100KiB", "select n, count(*) as c from numbers group by n order by n")
    assert done.exit_code == 1
    assert done.stderr.startswith("resource exhausted: ")
    assert "memory" in done.stderr


def test_a_deadline(data: Path) -> None:
    assert rows(run("--data", data, "--format", "json", "--deadline", "2s", "select 1 as one")) == [{"one": 1}]
    for bad in (["--deadline", "soon"], ["--deadline", "0"], ["--deadline", "1s", "--priority", "batch"]):
        done = run("--data", data, *bad, "select 1 as one")
        assert done.exit_code == 2, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--priority", "foo"], "--priority: no such priority: 'foo'; one of interactive, normal, batch"),
        (["--format", "xml"], "--format: no such format: 'xml'; one of table, json, csv, arrow, parquet"),
        (["--deadline", "0"], "--deadline: a deadline must lie between now and a year from now: 0.0 hint: for example"),
        (["--deadline", "0"], "for example --deadline 2s"),
        (["--deadline", "soon"], "--deadline: not a duration; write for example"),
        (["--threads", "0"], "Invalid value: bad value for the setting threads"),
    ],
)
def test_wrong_usage_is_said_in_plain_words(arguments: list[str], message: str) -> None:
    done = run(*arguments, "select 1 as one")
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").replace("'--", "--").replace("':", ":").split())
    for noise in ("Value error", "invalid request", "deadline="):
        assert noise not in done.stderr
