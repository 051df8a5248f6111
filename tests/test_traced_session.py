"""Traces and verdicts through the public surface."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from typer.testing import CliRunner

import pystachio
from pystachio.cli.main import app
from pystachio.errors import InvalidRequest, NotFound, ResourceExhausted
from pystachio.trace.plan_trace import PlanTrace

STATEMENT = "select g, count(*) as n from t join u on t.k = u.k where v > 10 group by g order by g"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traced")
    numbers = list(range(50_000))
    table = pa.table({"k": numbers, "g": [n % 7 for n in numbers], "v": [float(n) for n in numbers]})
    pq.write_table(table, path / "t.parquet", row_group_size=5_000)
    pq.write_table(pa.table({"k": numbers[::3]}), path / "u.parquet")
    return path


def connect(folder: Path, **settings: object) -> pystachio.Session:
    session = pystachio.connect(threads=2, **settings)
    for name in ("t", "u"):
        session.register(name, folder / f"{name}.parquet")
    return session


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[pystachio.Session]:
    with connect(folder) as session:
        yield session


def query(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["query", "--data", str(folder), *arguments])


def records(result: pystachio.Result) -> PlanTrace:
    return result._running.trace()


def test_every_transfer_belongs_to_its_operator(session: pystachio.Session) -> None:
    result = session.sql(STATEMENT)
    result.to_arrow()
    trace = records(result)
    own = [transfer for transfer in trace.history.transfers if trace.is_own(transfer)]
    files = {(trace.label(transfer.operator), Path(transfer.path).name) for transfer in own}
    assert files == {("Scan t", "t.parquet"), ("Scan u", "u.parquet")}
    assert sum(chunk.length for chunk in trace.history.chunks if trace.is_own(chunk)) == result.metrics().bytes_read


def test_one_clock_for_jobs_and_transfers(session: pystachio.Session) -> None:
    """Everything of a plan lies in its time, and every transfer of a scan in the life of the plan's tasks."""
    result = session.sql(STATEMENT)
    result.to_arrow()
    trace = records(result)
    own_jobs = [job for job in trace.tracing.jobs if trace.is_own(job)]
    assert own_jobs
    for job in own_jobs:
        assert trace.started <= job.started <= job.ended <= trace.ended
    for transfer in trace.history.transfers:
        if trace.is_own(transfer):
            assert trace.started <= transfer.submitted_at <= transfer.ended_at <= trace.ended
            assert transfer.ended_at <= trace.history.consumed[transfer.transfer_id] <= trace.ended


def test_records_account_for_the_busy_seconds(session: pystachio.Session) -> None:
    result = session.sql(STATEMENT)
    result.to_arrow()
    trace = records(result)
    whole = sum(
        job.ended - job.started for job in trace.tracing.jobs if trace.is_own(job) and job.submitted is not None
    )
    counted = sum(snapshot.busy_seconds for snapshot in result._running.snapshots().values())
    assert whole == pytest.approx(counted, rel=1e-6)


def test_a_trace_file(folder: Path, tmp_path: Path) -> None:
    with connect(folder) as session:
        result = session.sql(STATEMENT)
        result.to_arrow()
        result.trace(tmp_path / "q.pftrace")
    trace = Trace()
    trace.ParseFromString((tmp_path / "q.pftrace").read_bytes())
    names = Counter(packet.track_descriptor.name for packet in trace.packet if packet.HasField("track_descriptor"))
    assert {"Operators", "Links", "Memory", "Workers and streams", "Scan t", "Scan u"} <= names.keys()
    assert names[f"Plan {result.plan_id} (normal): {STATEMENT}"] == 1


def test_a_trace_while_the_plan_runs(session: pystachio.Session) -> None:
    result = session.sql("select * from t")
    batches = result.batches()
    next(batches)
    trace = records(result)
    assert trace.seconds > 0
    result.cancel()


def test_the_verdict_ends_the_analysis(session: pystachio.Session) -> None:
    tree, verdict = session.sql(STATEMENT).explain(analyze=True).split("\n\n")
    assert "Scan t" in tree
    assert "bounded this plan" in verdict
    assert "bounded this plan" not in session.sql(STATEMENT).explain()


def test_without_tracing_there_is_no_trace_and_no_verdict(folder: Path, tmp_path: Path) -> None:
    with connect(folder, tracing=False) as session:
        result = session.sql(STATEMENT)
        assert "bounded" not in result.explain(analyze=True)
        with pytest.raises(InvalidRequest, match="nothing is traced"):
            result.trace(tmp_path / "q.pftrace")


def test_after_the_session_was_closed(folder: Path, tmp_path: Path) -> None:
    with connect(folder) as session:
        result = session.sql(STATEMENT)
        result.to_arrow()
    assert "Scan t" in result.explain(analyze=True)
    with pytest.raises(InvalidRequest):
        result.trace(tmp_path / "q.pftrace")


def test_a_folder_that_is_not_there(session: pystachio.Session, tmp_path: Path) -> None:
    result = session.sql("select 1")
    result.to_arrow()
    with pytest.raises(NotFound, match=f"no such folder: {tmp_path / 'none'}"):
        result.trace(tmp_path / "none" / "q.pftrace")


@pytest.mark.parametrize("path", [None, 5, b"x", {}, "", "a\0b", "\udcff\ud800", "x" * 5000, "."])
def test_what_is_no_path_of_a_file(session: pystachio.Session, path: object) -> None:
    result = session.sql("select 1")
    result.to_arrow()
    with pytest.raises(InvalidRequest):
        result.trace(path)  # type: ignore[arg-type]


def test_a_full_disk_leaves_the_old_trace(
    session: pystachio.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "q.pftrace"
    target.write_bytes(b"before")
    result = session.sql("select 1")
    result.to_arrow()
    opened = Path.open

    def full(path: Path, mode: str) -> object:
        opened(path, mode).close()
        return opened(Path("/dev/full"), "wb")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        with pytest.raises(ResourceExhausted, match="disk is full"):
            result.trace(str(target))
    assert target.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["q.pftrace"]


def test_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "q.pftrace"
    done = query(folder, "--analyze", "--trace", str(target), STATEMENT)
    assert done.exit_code == 0, done.stderr
    assert "bounded this plan" in done.stdout
    assert target.stat().st_size > 1000


@pytest.mark.parametrize("option", ["--trace", "--output"])
@pytest.mark.parametrize("name", ["none/q.pftrace", "folder", "."])
def test_a_file_that_cannot_be_written_is_said_before_the_query_runs(
    folder: Path, tmp_path: Path, option: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("pystachio.cli.query.connected", None)
    done = query(folder, option, str(tmp_path / name), "select 1 as one")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert ("no such folder" if "none" in name else "directory") in done.stderr


def test_nothing_to_trace(folder: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "q.pftrace")
    done = query(folder, "--explain", "--trace", target, STATEMENT)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--analyze" in done.stderr
    assert query(folder, "--output", target, "--trace", target, STATEMENT).exit_code == 2
    assert not os.listdir(tmp_path)


def test_a_failed_query_leaves_its_trace(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "q.pftrace"
    done = query(folder, "--trace", str(target), "select sum(1 / (k - 40000)) as s from t")
    assert done.exit_code == 1
    assert target.stat().st_size > 100


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_query_leaves_its_trace(folder: Path, tmp_path: Path, number: int) -> None:
    target = tmp_path / "q.pftrace"
    rows = tmp_path / "rows"
    os.mkfifo(rows)
    command = ["query", "--data", str(folder), "--trace", str(target), "--output", str(rows), "--format", "csv"]
    statement = "select t.k, t2.k as k2 from t, t as t2 where t.g = t2.g"
    with subprocess.Popen(
        [sys.executable, "-m", "pystachio.cli.main", *command, statement], stderr=subprocess.PIPE
    ) as process:
        try:
            with rows.open("rb") as reader:
                assert reader.read(10)
                time.sleep(0.2)
                process.send_signal(number)
                _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert target.stat().st_size > 1000
    assert sorted(os.listdir(tmp_path)) == ["q.pftrace", "rows"]
