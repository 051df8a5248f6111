"""`python -m benchmarks NAME [--scale N] [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.figures import report

NAMES = ("answers", "tpch", "join_order", "startup", "bad_input", "cancel")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--scale", type=float, default=None, help="TPC-H scale factor (default: the benchmark's own)")
    parser.add_argument("--quick", action="store_true", help="a smaller run of the same code")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here")
    options = parser.parse_args()
    benchmark = import_module(f"benchmarks.{options.name}")
    scale = options.scale if options.scale is not None else (0.1 if options.quick else 1.0)
    figures = benchmark.run(scale=scale, quick=options.quick)
    return report(figures, options.json, "python -m benchmarks " + " ".join(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
