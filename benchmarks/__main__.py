"""`python -m benchmarks NAME [--scale N] [--quick | --long] [--json FILE] [--record]`.

`all` is everything but `gpu`, which needs a GPU to say something about one.

`--record`, and `all`, put the figures into `results/DATE.md`, each benchmark in a section of its own, with its chart
beside the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import results
from benchmarks.figures import report
from benchmarks.report import Report

NAMES = (
    "answers",
    "tpch",
    "star",
    "wide",
    "hostile",
    "kernels",
    "profile",
    "join_order",
    "startup",
    "bad_input",
    "cancel",
    "ledger",
    "scheduler",
    "service",
    "network",
    "trace_cost",
    "isolation",
    "overlap",
    "cluster",
    "faults",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=(*NAMES, "gpu", "all"))
    parser.add_argument(
        "--scale", type=float, default=None, help="of the data, TPC-H's scale factor (default 1; 0.1 with --quick)"
    )
    parser.add_argument("--quick", action="store_true", help="a smaller run of the same code")
    parser.add_argument("--long", action="store_true", help="hours instead of minutes, where there is such a run")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here")
    parser.add_argument("--record", action="store_true", help="put the figures into today's page of results")
    options = parser.parse_args()
    scale = options.scale if options.scale is not None else (0.1 if options.quick else 1.0)
    command = "python -m benchmarks " + " ".join(sys.argv[1:])
    if options.name == "all":
        return _run_several(NAMES, scale, options.quick, command)
    found = _run(options.name, scale, options.quick, **({"long": True} if options.long else {}))
    if options.record:
        results.record(options.name if scale == 1.0 else f"{options.name}-{scale:g}", found, command)
    return report(found.figures, options.json, command)


def _run(name: str, scale: float, quick: bool, **more: bool) -> Report:
    """What the benchmark found; its table and notes are printed here, its figures are not."""
    found = import_module(f"benchmarks.{name}").run(scale=scale, quick=quick, **more)
    if not isinstance(found, Report):
        return Report(found)
    sys.stdout.write(f"\n{found.table}\n" if found.table else "")
    sys.stdout.writelines(f"{note}\n" for note in found.notes)
    return found


def _run_several(names: Sequence[str], scale: float, quick: bool, command: str) -> int:
    missed = 0
    for name in names:
        sys.stdout.write(f"\n== {name}\n")
        found = _run(name, scale, quick)
        missed |= report(found.figures, None, command)
        results.record(name, found, command)
    return missed


if __name__ == "__main__":
    sys.exit(main())
