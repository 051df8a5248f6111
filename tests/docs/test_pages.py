"""The commands and programs on the pages of the user guide do what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
def workplace(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder with the sample data of the first page, and an environment whose `pystachio-node` is this checkout's."""
    programs = tmp_path / "programs"
    folder = tmp_path / "work"
    programs.mkdir()
    folder.mkdir()
    node = programs / "pystachio-node"
    node.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pystachio.cli.main "$@"\n')
    node.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSTACHIO_")}
    environment |= {
        "PATH": f"{programs}{os.pathsep}{environment['PATH']}",
        "PYTHONPATH": str(DOCS.parent),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", sample_data_program()], cwd=folder, env=environment, check=True)
    return folder, environment


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page: Path, workplace: tuple[Path, dict[str, str]]) -> None:
    folder, environment = workplace
    programs = []
    for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            programs.append(text)
            continue
        for command in commands(text):
            done = subprocess.run(
                command.line,
                shell=True,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            said = done.stdout + done.stderr
            if done.returncode:
                said += f"[exit code {done.returncode}]\n"
            assert matches(command.expected, said), f"{command.line}\n{said}"
    if programs:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", "\n".join(programs)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
