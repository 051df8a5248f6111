"""`pystachio-node doctor`: what the engine finds on this machine, and what would make it faster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pystachio.cli.failure import reported
from pystachio.cli.output import readable_bytes

if TYPE_CHECKING:
    from pystachio.config import Settings


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `advice` is empty where nothing could be better."""

    topic: str
    value: str
    advice: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what the engine finds on this machine: versions, devices, links, memory; and what would be faster."""
    with reported():
        findings = list(examine())
        if as_json:
            report = {finding.topic: {"value": finding.value, "advice": finding.advice} for finding in findings}
            typer.echo(json.dumps(report, indent=2))
            return
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            typer.echo(f"{finding.topic:<{width}}  {finding.value}")
            if finding.advice:
                typer.echo(f"{'':<{width}}  -> {finding.advice}")


def examine() -> Iterator[Finding]:
    """Every finding, in the order of the report."""
    from pystachio.config import load

    settings = load().settings
    yield from _software()
    yield from _devices()
    yield _decoder()
    yield from _processor(settings)
    yield from _memory(settings)
    yield _spill_folder(settings)
    yield _page_cache(settings)
    yield _storage()
    yield _disk_threads()
    yield from _network()


def _software() -> Iterator[Finding]:
    import platform

    import torch

    from pystachio import __version__

    yield Finding("pystachio", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Finding("torch", f"{torch.__version__} ({build})")


def _devices() -> Iterator[Finding]:
    import torch

    from pystachio.operators.kernels import triton_library
    from pystachio.runtime.devices import cuda_device_count

    count = cuda_device_count()
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        multiprocessors = f"{properties.multi_processor_count} multiprocessors"
        found = f"{properties.name}, {readable_bytes(properties.total_memory)}, {multiprocessors}"
        advice = f"device=cuda:{index} uses it, auto does not: this path has not been verified on hardware yet"
        yield Finding(f"device cuda:{index}", found, advice)
        problem = triton_library.problem(torch.device("cuda", index))
        kernels = "Triton's, checked against torch's" if problem is None else f"torch's: {problem}"
        advice = (
            "groups, filters and joins are slower: pip install triton"
            if problem == triton_library.NOT_INSTALLED
            else ""
        )
        yield Finding(f"kernels cuda:{index}", kernels, advice)
    if not count:
        advice = (
            "is the NVIDIA driver loaded? torch finds no GPU"
            if torch.version.cuda
            else "a GPU needs a CUDA build of torch"
        )
        yield Finding("device", "cpu", advice)


_BUILD = "install gcc, then pip install --force-reinstall --no-deps pystachio-engine"


def _decoder() -> Finding:
    from pystachio.operators.kernels import native

    problem = native.load().problem
    if not problem:
        loops = native.instructions()
        return Finding("Parquet", f"decoded by the compiled library ({loops}); by pyarrow what it does not handle")
    advice = f"scans take twice the CPU time: {_BUILD}"
    return Finding("Parquet", f"decoded by pyarrow; no compiled library: {problem}", advice)


def _processor(settings: Settings) -> Iterator[Finding]:
    import os

    from pystachio import machine

    cores = machine.usable_cores()
    present = os.cpu_count() or cores
    advice = f"PYSTACHIO_THREADS={cores} uses all of them" if settings.threads < cores else ""
    limited = f" of {present} (affinity or control group)" if cores < present else ""
    yield Finding("cores", f"{cores}{limited}, {settings.threads} worker threads", advice)


def _memory(settings: Settings) -> Iterator[Finding]:
    from pystachio import machine

    limit, available = machine.memory_limit(), machine.available_memory()
    advice = ""
    if settings.memory > available > 0:
        fitting = readable_bytes(available * 0.8).replace(" ", "")
        advice = f"other programs hold much of it: PYSTACHIO_MEMORY={fitting} avoids swapping"
    free = readable_bytes(available)
    budget = readable_bytes(settings.memory)
    yield Finding("memory", f"{readable_bytes(limit)} for this process, {free} free, plans may hold {budget}", advice)
    pages = machine.pages()
    advice = ""
    if pages.transparent not in ("always", "madvise"):
        advice = "huge pages make reads cheaper: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    mode = f"transparent huge pages: {pages.transparent or 'not known'}"
    yield Finding("pages", f"{readable_bytes(pages.size)}, huge {readable_bytes(pages.huge_size)}, {mode}", advice)


def _spill_folder(settings: Settings) -> Finding:
    from pystachio import machine

    free = machine.free_disk(settings.spill_dir)
    advice = "set spill_dir to a folder on a larger disk" if free < settings.memory else ""
    return Finding("spill folder", f"{settings.spill_dir}, {readable_bytes(free)} free", advice)


def _page_cache(settings: Settings) -> Finding:
    if settings.direct_io != "auto":
        way = "around it" if settings.direct_io == "on" else "through it"
        return Finding("page cache", f"files are read {way}: direct_io = {settings.direct_io}")
    own, others = _told_what_is_cached()
    if not own:
        advice = "direct_io = auto needs the system call cachestat: Linux 6.5 or newer, and a container that permits it"
        return Finding("page cache", "files are read through it: the system does not say what it holds", advice)
    around = "on quick local disks, what is read once is read around it"
    if others is False:
        advice = "let a user who may write the data run the engine, or set direct_io=on, where that matters"
        return Finding("page cache", f"{around}: only of files that this user owns or may write", advice)
    return Finding("page cache", around)


def _told_what_is_cached() -> tuple[bool, bool | None]:
    """Of a file of this process, and of one that it may only read; None where there is none at hand."""
    import os
    import sys

    from pystachio.io_scheduler.devices.page_cache import cached_bytes

    with open(os.memfd_create("pystachio-doctor"), "rb") as file:
        own = cached_bytes(file.fileno(), 0, 1) is not None
    for path in (sys.executable, os.__file__, "/etc/passwd", "/bin/sh"):
        if os.access(path, os.R_OK) and not os.access(path, os.W_OK) and os.stat(path).st_uid != os.geteuid():
            with open(path, "rb") as file:
                return own, cached_bytes(file.fileno(), 0, 1) is not None
    return own, None


def _storage() -> Finding:
    from pystachio.io_scheduler.devices.nvme import kvikio_report

    report = kvikio_report()
    if report.version is None:
        return Finding("kvikio", "not installed: the posix device reads", "with an NVIDIA GPU: pip install kvikio-cu13")
    if not report.driver:
        return Finding("kvikio", f"{report.version}, not used: there is no CUDA driver, the posix device reads")
    if report.gds:
        return Finding("kvikio", f"{report.version}, GPUDirect Storage on")
    advice = "install nvidia-fs and a file system that supports GPUDirect Storage (ext4, XFS on NVMe)"
    return Finding("kvikio", f"{report.version}, GPUDirect Storage off: compatibility mode", advice)


def _disk_threads() -> Finding:
    from pystachio.io_scheduler.devices import native

    problem = native.load().problem
    if not problem:
        return Finding("disk threads", "compiled: a chunk that the posix device moves waits for no Python")
    return Finding("disk threads", f"Python's; no compiled library: {problem}", f"reads take more CPU time: {_BUILD}")


def _network() -> Iterator[Finding]:
    from pystachio.io_scheduler.devices.ucx_library import ucx_report
    from pystachio.io_scheduler.network.transports import choose_transport

    report = ucx_report()
    choice = choose_transport("auto", report)
    yield Finding("network", f"{choice.carrier.name} carries data between nodes: {choice.reason}", choice.advice)
    if report.version is None:
        yield Finding("UCX", f"not available: {report.problem}", "pip install ucxx-cu13")
    elif report.problem is not None:
        yield Finding("UCX", f"{report.version}, not usable: {report.problem}")
    else:
        advice = "with an RDMA network card: a system UCX 1.19 or newer, and RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true"
        transports = ", ".join(report.transports) or "none"
        yield Finding("UCX", f"{report.version}, transports: {transports}", "" if report.has_rdma else advice)
