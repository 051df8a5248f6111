"""`pystachio-node doctor`: what the engine finds on this machine, and what would make it faster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from pystachio.cli.failure import reported
from pystachio.cli.output import readable_bytes


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
            typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
            return
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            typer.echo(f"{finding.topic:<{width}}  {finding.value}")
            if finding.advice:
                typer.echo(f"{'':<{width}}  -> {finding.advice}")


def examine() -> Iterator[Finding]:
    """Every finding, cheap ones first."""
    yield from _software()
    yield from _processor()
    yield from _memory()
    yield from _disk()


def _software() -> Iterator[Finding]:
    import platform

    import torch

    from pystachio import __version__

    yield Finding("pystachio", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Finding("torch", f"{torch.__version__} ({build})")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            memory = readable_bytes(properties.total_memory)
            yield Finding(f"device cuda:{index}", f"{properties.name}, {memory}")
    elif torch.version.cuda:
        yield Finding(
            "device", "cpu", "torch is a CUDA build and finds no GPU: is the NVIDIA driver installed and loaded?"
        )
    else:
        yield Finding("device", "cpu", "with an NVIDIA GPU: install a CUDA build of torch")


def _processor() -> Iterator[Finding]:
    import os

    from pystachio import machine
    from pystachio.config import load

    settings = load().settings
    cores = machine.usable_cores()
    present = os.cpu_count() or cores
    advice = f"PYSTACHIO_THREADS={cores} uses all of them" if settings.threads < cores else ""
    limited = f" of {present} (affinity or control group)" if cores < present else ""
    yield Finding("cores", f"{cores}{limited}, {settings.threads} worker threads", advice)


def _memory() -> Iterator[Finding]:
    from pystachio import machine
    from pystachio.config import load

    settings = load().settings
    limit, available = machine.memory_limit(), machine.available_memory()
    advice = ""
    if settings.memory > available > 0:
        fitting = readable_bytes(available * 0.8).replace(" ", "")
        advice = f"other programs hold much of it: PYSTACHIO_MEMORY={fitting} avoids swapping"
    free = readable_bytes(available)
    budget = readable_bytes(settings.memory)
    yield Finding("memory", f"{readable_bytes(limit)} for this process, {free} free, plans may hold {budget}", advice)
    pages = machine.pages()
    advice = (
        ""
        if pages.transparent in ("always", "madvise")
        else "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    )
    mode = f"transparent huge pages: {pages.transparent or 'not known'}"
    yield Finding("pages", f"{readable_bytes(pages.size)}, huge {readable_bytes(pages.huge_size)}, {mode}", advice)


def _disk() -> Iterator[Finding]:
    from pystachio import machine
    from pystachio.config import load

    settings = load().settings
    free = machine.free_disk(settings.spill_dir)
    advice = "set spill_dir to a folder on a larger disk" if free < settings.memory else ""
    yield Finding("spill folder", f"{settings.spill_dir}, {readable_bytes(free)} free", advice)
