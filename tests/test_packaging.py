from __future__ import annotations

import platform
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from pystachio.cli.main import app

ROOT = Path(__file__).parents[1]


def test_every_folder_with_modules_is_a_package() -> None:
    """setuptools leaves out folders without `__init__.py`, silently."""
    folders = {module.parent for module in (ROOT / "pystachio").rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("name", ["kvikio", "ucxx"])
def test_the_libraries_of_the_real_devices_are_installed(name: str) -> None:
    """Their tests are skipped where they are missing, which may only be where the package does not ask for them."""
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        assert find_spec(name) is not None


@pytest.mark.parametrize("name", ["runtime", "operators", "io_scheduler", "cli"])
def test_the_folders_at_the_top_are_links_into_the_package(name: str) -> None:
    assert (ROOT / name).resolve() == ROOT / "pystachio" / name


def test_the_console_script_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"pystachio-node": "pystachio.cli.main:main"}
    assert {command.callback.__name__ for command in app.registered_commands if command.callback} == {
        "query",
        "warm",
        "rewrite",
        "demo",
        "doctor",
        "ps",
        "top",
        "cancel",
        "set_priority",
        "simulate",
        "init",
        "token",
        "serve",
        "cluster",
        "submit",
        "status",
        "drain",
    }


def test_every_file_of_the_package_is_code_or_declared_data() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["pystachio"]
    suffixes = {Path(pattern).suffix or Path(pattern).name for pattern in patterns} | {".py", ".so"}
    files = (path for path in (ROOT / "pystachio").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert [str(path) for path in files if (path.suffix or path.name) not in suffixes] == []


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("pystachio", ["torch", "datafusion", "pyarrow", "numpy", "pydantic", "asyncio"]),
        ("pystachio.errors", ["torch", "datafusion", "pyarrow", "numpy", "pydantic", "asyncio"]),
        ("pystachio.cli.main", ["torch", "datafusion", "pyarrow", "numpy", "pydantic", "rich", "asyncio"]),
        ("pystachio.config", ["torch", "datafusion", "pyarrow", "numpy"]),
        ("pystachio.remote.session", ["torch", "datafusion", "pydantic"]),
    ],
)
def test_importing_a_door_loads_nothing_heavy(module: str, forbidden: list[str]) -> None:
    program = f"import sys, {module}; print([name for name in {forbidden} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
