"""Traces and verdicts through the public surface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from typer.testing import CliRunner

import pystachio
from pystachio.cli.main import app
from pystachio.errors import InvalidRequest, NotFound
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
    counted = sum(snapshot.busy_seconds for snapshot in result._running._snapshots().values())
    assert whole == pytest.approx(counted, rel=1e-6)


def test_a_trace_file(session: pystachio.Session, tmp_path: Path) -> None:
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
    with pytest.raises(NotFound):
        result.trace(tmp_path / "none" / "q.pftrace")


def test_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "q.pftrace"
    done = CliRunner().invoke(app, ["query", "--data", str(folder), "--analyze", "--trace", str(target), STATEMENT])
    assert done.exit_code == 0, done.stderr
    assert "bounded this plan" in done.stdout
    assert target.stat().st_size > 1000
