"""What measures a GPU, in a tiny form on the CPU: it runs, its answers are right, and it says what it lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_copies, gpu_kernels, gpu_queries, travelling
from benchmarks.kernel_cases import PRIMITIVES
from tests.fake_device import DEVICE, FakeDevice

CPU = torch.device("cpu")
RATES = gpu_copies.Rates(1e9, 1e9, 1e9, 1e9, 1e9, 1.0)


def test_the_rates_of_memory_are_measured() -> None:
    figures = gpu_copies.measure(CPU, nbytes=1 << 20, seconds=0.001).figures()
    assert len(figures) == 6
    assert all(figure.value > 0 for figure in figures)


def test_the_kernels_are_measured() -> None:
    found = gpu_kernels.measure(CPU, RATES, rows=1000, seconds=0.0)
    assert len(found.table.splitlines()) == 2 + len(PRIMITIVES) + len(gpu_kernels.ON_A_DEVICE)
    assert [note.split(":")[0] for note in found.notes] == ["Triton is not used"]


def test_statements_are_measured_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_queries, "DATA", tmp_path)
    for has_peer in (True, False):
        if not has_peer:
            monkeypatch.setattr(gpu_queries, "find_spec", lambda name: None)
        found = gpu_queries.measure(CPU, RATES, scale=0.002, repetitions=1, names=("q01", "q06", "q15"))
        assert (found.figures[0].value, found.figures[0].goal) == (3, 3), found.table
        assert any("DuckDB over" in figure.name or "over DuckDB" in figure.name for figure in found.figures) == has_peer
        assert any("not installed" in note for note in found.notes) != has_peer


def test_a_wrong_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_queries, "DATA", tmp_path)
    monkeypatch.setattr(gpu_queries.DuckDB, "rows", lambda self, sql: [(1,)])
    found = gpu_queries.measure(CPU, RATES, scale=0.002, repetitions=1, names=("q06",))
    assert found.figures[0].value == 0
    assert "instead of" in found.table


def test_what_crosses_the_bus_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stand-in for a device, which torch's own count of waits knows nothing of."""
    device, modes = FakeDevice(), []
    device.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(gpu_queries, "DATA", tmp_path)
    found = gpu_queries.measure(DEVICE, RATES, scale=0.002, repetitions=1, names=("q06",))
    assert found.figures[0].value == 1, found.table
    assert modes == ["warn", "default"]
    *_, waits, to_device, to_host, share, fault = (
        cell.strip() for cell in found.table.splitlines()[-1].split("|")[1:-1]
    )
    assert (waits, to_host, fault) == ("0", "0", "")
    assert float(to_device) > 0
    assert float(share) > 0
    assert device.misuses == []


def test_everything_together_says_where_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSTACHIO_DEVICE", "cpu")
    monkeypatch.setattr(travelling, "missing", lambda: ["datafusion"])
    monkeypatch.setattr(travelling, "WHEELS", Path("/nowhere"))
    found = gpu.run(scale=0.01, quick=True)
    assert all(figure.name.startswith("cpu: ") for figure in found.figures)
    assert "no figure of a GPU" in found.notes[0]
    assert any("TPC-H is not measured: datafusion" in note for note in found.notes)


def test_what_is_missing_is_found_in_the_wheels_that_travel(tmp_path: Path) -> None:
    """In a process of its own, to which a package is missing that a wheel beside the repository has."""
    wheel = tmp_path / "wheels" / "pystachio_travelled-1-py3-none-any.whl"
    wheel.parent.mkdir()
    script = f"""
import sys, zipfile
from pathlib import Path
with zipfile.ZipFile({str(wheel)!r}, "w") as archive:
    archive.writestr("pystachio_travelled.py", "here = True")
    about = "pystachio_travelled-1.dist-info/"
    tags = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    archive.writestr(about + "WHEEL", tags)
    archive.writestr(about + "METADATA", "Metadata-Version: 2.1\\nName: pystachio-travelled\\nVersion: 1\\n")
    archive.writestr(about + "RECORD", "")
from benchmarks import travelling
travelling._ENGINE = ("pystachio_travelled",)
assert travelling.missing() == ["pystachio_travelled"]
assert travelling.install(Path({str(wheel.parent)!r})) == []
import pystachio_travelled
assert pystachio_travelled.here
"""
    subprocess.run((sys.executable, "-c", script), check=True, timeout=60, cwd=Path(__file__).parents[2])
