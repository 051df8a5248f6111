"""The command as a process: interrupts, pipes, full disks, what is loaded when."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pystachio.cli.process import interruptible

ENDLESS = "select count(*) as c from numbers a, numbers b, numbers c where a.n + b.n + c.n = 7"
NODE = [sys.executable, "-m", "pystachio.cli.main"]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_query_at_once_and_leaves_nothing(
    data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "rows.csv"
    command = [*NODE, "query", "--data", str(data), "--output", str(output), ENDLESS]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: os.listdir(tmp_path) != [], process)
        process.send_signal(number)
        sent = time.monotonic()
        _, said = process.communicate(timeout=20)
        took = time.monotonic() - sent
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    # Empty when the plan did not end in time, and the process ended with it.
    assert said in ("interrupted\n", "")
    assert took < 2.0, "half a second on a machine that has nothing else to do"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("seconds", "expected"), [(20, "interrupted"), (0, "ended")])
def test_an_interrupt_that_python_drops_is_raised_again_in_the_block(
    number: signal.Signals, seconds: float, expected: str
) -> None:
    program = f"""
import signal, time
from pystachio.cli.process import interruptible

class Dropped:
    def __del__(self):
        signal.raise_signal({int(number)})

try:
    with interruptible(within=30):
        Dropped()
        time.sleep({seconds})
    time.sleep(0.1)
    print("ended")
except KeyboardInterrupt:
    print("interrupted")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


@pytest.mark.parametrize("seconds", [20, 0])
def test_an_interrupt_that_a_waiting_call_has_missed_is_raised_again(seconds: float) -> None:
    """As if it had come just before the call: Python knows of it, and nothing ends the call."""
    program = f"""
import signal, threading, time
from pystachio.cli import process

process._AGAIN_SECONDS = {0.01 if seconds else 10}
waited_for = threading.Lock()
waited_for.acquire()
try:
    with process.interruptible(within=30):
        heard = signal.signal(signal.SIGINT, lambda number, frame: None)
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, heard)
        waited_for.acquire(timeout={seconds})
    time.sleep(0.1)
    print("ended", [thread.name for thread in threading.enumerate()])
except KeyboardInterrupt:
    print("interrupted")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    expected = "interrupted" if seconds else "ended ['MainThread']"
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_other_signals_are_not_taken_for_an_interrupt() -> None:
    program = """
import signal, time
from pystachio.cli.process import interruptible

signal.signal(signal.SIGALRM, lambda number, frame: print("alarm"))
for _ in range(3):
    with interruptible(within=0.2):
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        time.sleep(0.3)
print("ended")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("alarm\nalarm\nalarm\nended\n", "")


def test_what_a_block_has_taken_is_given_back() -> None:
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    hook = sys.unraisablehook
    for _ in range(3):
        with pytest.raises(KeyError), interruptible():
            raise KeyError
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="main thread"):
        pool.submit(interruptible().__enter__).result()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert threading.active_count() == threads
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert (sys.unraisablehook, signal.set_wakeup_fd(-1)) == (hook, -1)


def wait_until(condition, process: subprocess.Popen[str]) -> None:
    """Other processes tell nobody: here is the one place that has to look again and again."""
    pause = threading.Event()
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        pause.wait(0.01)


def test_a_reader_that_goes_away_is_no_failure(data: Path) -> None:
    command = shlex.join(
        [*NODE, "query", "-q", "--data", str(data), "--format", "csv", "select n from numbers order by n"]
    )
    script = f"set -o pipefail; {command} | head -n 2"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, '"n"\n0\n', "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_reported(data: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = [*NODE, "query", "-q", "--data", str(data), "--format", "csv", "select id from people"]
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("resource exhausted: no room for the output: standard output")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["config", "show"]])
def test_a_full_disk_behind_other_texts_is_reported(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*NODE, *arguments], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("resource exhausted: no room for the output: standard output")


@pytest.mark.parametrize(
    ("closed", "statement", "code"),
    [("<&-", "select 1", 0), (">&-", "select 1", 0), (">&- 2>&-", "select 1", 0), ("<&- >&- 2>&-", "select nope", 1)],
)
def test_standard_streams_may_be_closed(closed: str, statement: str, code: int) -> None:
    command = f"{shlex.join([*NODE, 'query', statement])} {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == code


def test_help_loads_neither_torch_nor_the_planner() -> None:
    program = (
        "import sys\nfrom pystachio.cli.main import app\n"
        "try:\n    app(['query', '--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'datafusion', 'pyarrow', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_doctor_for_programs() -> None:
    done = subprocess.run([*NODE, "doctor", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    report = json.loads(done.stdout)
    assert {"torch", "cores", "memory", "pages", "spill folder", "kvikio", "network", "UCX"} <= set(report)
    assert set(report["memory"]) == {"value", "advice"}


def test_config_show_with_origins(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[execution]\nbatch_rows = 1000\n")
    environment = {**os.environ, "PYSTACHIO_THREADS": "3"}
    command = [*NODE, "config", "show", "--origin", "--config", str(tmp_path / "p.toml")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    lines = {line.split(" = ")[0]: line for line in done.stdout.splitlines() if " = " in line}
    assert lines["threads"].split()[2:] == ["3", "#", "environment"]
    assert lines["batch_rows"].endswith(f"# file {tmp_path / 'p.toml'}")
    assert lines["device"].endswith("# default")
    shown = tmp_path / "shown.toml"
    shown.write_text(done.stdout)
    subprocess.run(
        [*NODE, "config", "show", "--config", str(shown)], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
