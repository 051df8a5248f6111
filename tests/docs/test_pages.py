"""The commands and programs on the pages of the user guide do what the pages say."""

from __future__ import annotations

import itertools
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pystachio.cli.main import app

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
_FILE_NAME = re.compile(r"# (\w+\.py)\n")
"""A program that begins so is saved under this name too."""
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


_PORTS = ("7100", "7200")
"""Of nodes on the pages: other programs may have them here, so the pages are read with free ones."""


@dataclass(frozen=True)
class Command:
    line: str
    expected: str


def commands(block: str) -> list[Command]:
    """Each `$ command` with the output below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [Command(*part.split("\n", 1)) for part in parts]


def matches(expected: str, actual: str) -> bool:
    """`...` stands for anything, also for several lines."""
    pattern = ".*".join(re.escape(piece) for piece in expected.strip().split("..."))
    return re.fullmatch(pattern, actual.strip(), re.DOTALL) is not None


def sample_data_program() -> str:
    page = (DOCS / "getting-started.md").read_text(encoding="utf-8")
    return next(text for kind, text in _BLOCK.findall(page) if kind == "python" and "data/sales.parquet" in text)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the sample data of the first page in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PYSTACHIO_CHUNK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYSTACHIO_CHUNK_CACHE_BYTES", "64MiB")
    exec(sample_data_program(), {})
    return folder


def outcome(line: str) -> str:
    """What the command says, and its exit code if that is not 0. `pystachio-node` runs in this process."""
    words = shlex.split(line)
    given: str | None = None
    if "|" in words:
        words, given = words[words.index("|") + 1 :], output_of(line[: line.index("|")])
    variables = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: "=" in word, words))
    words = words[len(variables) :]
    if words[0] != "pystachio-node":
        return output_of(line)
    done = CliRunner().invoke(app, words[1:], env=variables, input=given)
    said = done.stdout + done.stderr
    return f"{said}[exit code {int(done.exit_code)}]\n" if done.exit_code else said


def output_of(line: str) -> str:
    return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout


@contextmanager
def in_background(line: str) -> Iterator[str]:
    """The first line that a command ending in `&` says. It runs as long as the page is read."""
    words = shlex.split(line)[:-1]
    assert words[0] == "pystachio-node", line
    command = [sys.executable, "-m", "pystachio.cli.main", *words[1:]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def with_free_ports(page: str, monkeypatch: pytest.MonkeyPatch) -> str:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in _PORTS]
        free = [listener.getsockname()[1] for listener in taken]
    for port, other in zip(_PORTS, free, strict=True):
        page = page.replace(f"127.0.0.1:{port}", f"127.0.0.1:{other}")
    monkeypatch.setenv("PYSTACHIO_CLUSTER_LISTEN", f"127.0.0.1:{free[0]}")
    return page


@pytest.mark.usefixtures("workplace")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text(encoding="utf-8")
    if any(f"127.0.0.1:{port}" in text for port in _PORTS):
        text = with_free_ports(text, monkeypatch)
    with ExitStack() as background:
        follow(text, background)


def follow(page: str, background: ExitStack) -> None:
    names: dict[str, object] = {}
    for kind, text in _BLOCK.findall(page):
        if kind == "python":
            exec(text, names)
            if (name := _FILE_NAME.match(text)) is not None:
                Path(name[1]).write_text(text, encoding="utf-8")
            continue
        for command in commands(text):
            if command.line.endswith(" &"):
                said = background.enter_context(in_background(command.line))
            else:
                said = outcome(command.line)
            assert matches(command.expected, said), f"{command.line}\n{said}"
