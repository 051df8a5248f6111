"""Everything that a device is measured by: its memories and its bus, the kernels over them, TPC-H over all.

Runs with Python and torch alone: what is missing for a section is installed from the wheels that travel with the
repository (`benchmarks.travelling`) or named in the notes. On a machine without a CUDA device, or with
`PYSTACHIO_DEVICE=cpu`, the same code measures the CPU.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import torch

from benchmarks import gpu_copies, travelling
from benchmarks.figures import Figure
from benchmarks.report import Report


def run(*, scale: float, quick: bool) -> Report:
    device = chosen_device()
    large = device.type == "cuda" and not quick
    travelling.build_inner_loops()
    missing = travelling.install()
    sys.stdout.write(f"{device_line(device)}\n")
    rates = gpu_copies.measure(device, nbytes=1 << (30 if large else 24), seconds=0.5 if large else 0.05)
    reports = [Report(rates.figures(), notes=[device_line(device)])]
    if "numpy" in missing or "pyarrow" in missing:
        reports.append(Report([], notes=[f"kernels are not measured: {', '.join(missing)} missing"]))
    else:
        from benchmarks import gpu_kernels

        rows, seconds = (1 << 26, 0.2) if large else (1 << 14, 0.005)
        reports.append(gpu_kernels.measure(device, rates, rows=rows, seconds=seconds))
    if missing:
        reports.append(
            Report([], notes=[f"TPC-H is not measured: {', '.join(missing)} missing (benchmarks.travelling)"])
        )
    else:
        from benchmarks import gpu_queries

        reports.append(gpu_queries.measure(device, rates, scale=scale, repetitions=1 if quick else 5))
    return together(reports, str(device))


def chosen_device() -> torch.device:
    """The one that PYSTACHIO_DEVICE names, else the first CUDA device, else the CPU."""
    named = os.environ.get("PYSTACHIO_DEVICE", "")
    if named not in ("", "auto"):
        return torch.device(named)
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def device_line(device: torch.device) -> str:
    """What it is, for the page of results."""
    if device.type != "cuda":
        return f"measured on {device}: this is no figure of a GPU"
    properties = torch.cuda.get_device_properties(device)
    memory = f"{properties.total_memory >> 30} GiB, {properties.multi_processor_count} multiprocessors"
    return f"measured on {properties.name}, {memory}, CUDA {torch.version.cuda}"


def together(reports: list[Report], device: str) -> Report:
    """One report; each figure says on which device it was found."""
    figures: list[Figure] = [
        replace(figure, name=f"{device}: {figure.name}") for report in reports for figure in report.figures
    ]
    notes = [note for report in reports for note in report.notes]
    return Report(figures, "\n".join(report.table for report in reports if report.table), notes)
