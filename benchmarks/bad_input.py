"""Random bad inputs: each must be one typed error, at once, with nothing left behind and the session still usable.

The inputs run in a child process, so that a crash or a hang is seen from outside.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.bad_input_kinds import KINDS, write_table
from benchmarks.figures import Figure

INPUTS = 200
SECONDS_EACH = 10.0


def run(*, scale: float, quick: bool) -> list[Figure]:
    count = 60 if quick else INPUTS
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        outcomes = _outcomes(Path(folder), count)
    kinds = Counter((outcome["kind"], outcome["outcome"]) for outcome in outcomes)
    for (kind, outcome), number in sorted(kinds.items()):
        sys.stdout.write(f"{kind:<28} {outcome:<40} {number:>4}\n")
    by_outcome = Counter(outcome["verdict"] for outcome in outcomes)
    return [
        Figure(
            "bad inputs that became one typed error", by_outcome["typed"], "inputs", goal=count, direction="at least"
        ),
        Figure("crashes", by_outcome["crash"], "inputs", goal=0),
        Figure("hangs", by_outcome["hang"], "inputs", goal=0),
        Figure("answers or foreign errors", by_outcome["answer"] + by_outcome["foreign"], "inputs", goal=0),
        Figure("inputs after which something was left", by_outcome["leak"], "inputs", goal=0),
        Figure("slowest typed error", max(outcome["seconds"] for outcome in outcomes), "s"),
    ]


def _outcomes(folder: Path, count: int) -> list[dict[str, Any]]:
    """One record per input; the child is started again after a crash or a hang."""
    outcomes: list[dict[str, Any]] = []
    while len(outcomes) < count:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bad_input", str(folder), str(len(outcomes)), str(count)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        hung = threading.Timer(SECONDS_EACH * 3, child.kill)
        hung.start()
        for line in child.stdout:
            hung.cancel()
            outcomes.append(json.loads(line))
            hung = threading.Timer(SECONDS_EACH, child.kill)
            hung.start()
        hung.cancel()
        code = child.wait()
        if len(outcomes) < count:
            verdict = "hang" if code == -9 else "crash"
            kind = KINDS[len(outcomes) % len(KINDS)].__name__
            outcomes.append({"kind": kind, "outcome": f"exit {code}", "verdict": verdict, "seconds": SECONDS_EACH})
    return outcomes


def _child(folder: Path, start: int, stop: int) -> None:
    import pystachio

    with pystachio.connect(threads=2, memory="1GiB") as session:
        good = write_table(folder / f"good-{start}.parquet", rows=1000)
        session.register("good", str(good))
        assert session.sql("select count(*) from good").to_arrow().column(0)[0].as_py() == 1000
        for number in range(start, stop):
            before = _held(session)
            outcome = _attempt(session, folder, number)
            usable = session.sql("select count(*) from good").to_arrow().column(0)[0].as_py() == 1000
            if outcome["verdict"] == "typed" and (not usable or _left(session, before)):
                outcome["verdict"] = "leak"
            sys.stdout.write(json.dumps(outcome) + "\n")
            sys.stdout.flush()


def _attempt(session: Any, folder: Path, number: int) -> dict[str, Any]:
    from pystachio.errors import InternalError, PystachioError

    kind = KINDS[number % len(KINDS)]
    began = time.perf_counter()
    try:
        kind(session, folder / f"input-{number}", random.Random(number))
    except InternalError as error:
        verdict, outcome = "foreign", f"InternalError {str(error)[:60]}"
    except PystachioError as error:
        verdict, outcome = "typed", type(error).__name__
    except BaseException as error:
        verdict, outcome = "foreign", f"{type(error).__name__} {str(error)[:60]}"
    else:
        verdict, outcome = "answer", "no error"
    return {"kind": kind.__name__, "outcome": outcome, "verdict": verdict, "seconds": time.perf_counter() - began}


def _held(session: Any) -> tuple[int, int, int]:
    """Open files, reserved bytes, running plans."""
    statistics = session.statistics()
    return len(os.listdir("/proc/self/fd")), statistics.reserved_bytes, statistics.running_plans


def _left(session: Any, before: tuple[int, int, int]) -> bool:
    deadline = time.monotonic() + 2.0
    while any(now > then for now, then in zip(_held(session), before, strict=True)):
        if time.monotonic() > deadline:
            return True
        threading.Event().wait(0.01)
    return False


if __name__ == "__main__":
    _child(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
