"""What the engine needs on a machine that has Python and torch but no way to install anything.

Here, `python -m benchmarks.travelling [--python 3.12]` puts wheels of what that machine will lack into `.wheels`
(ignored by git; 50 MB, which travel with the repository). There, `install` unpacks them into a temporary folder, and
the compiled inner loops are built where a C compiler is at hand. `--peers` adds DuckDB, 24 MB more.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHEELS = ROOT / ".wheels"

# By the module that is imported. A machine for tensors has numpy, pyarrow, protobuf, uvloop and xxhash.
NEEDED = {
    "datafusion": "datafusion",
    "substrait": "substrait-protobuf",
    "structlog": "structlog",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "annotated_types": "annotated-types",
    "typing_inspection": "typing-inspection",
    "tpchgen_cli": "tpchgen-cli",
}
PEERS = {"duckdb": "duckdb"}
_ENGINE = ("numpy", "pyarrow", "datafusion", "substrait", "structlog", "pydantic", "xxhash")
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def fetch(python: str, *, peers: bool) -> list[str]:
    """The versions that are installed here, for x86-64 and CPython `python` ("3.12"); names of the wheels."""
    names = (*NEEDED.values(), *(PEERS.values() if peers else ()))
    wanted = [f"{name}=={metadata.version(name)}" for name in names]
    platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
    WHEELS.mkdir(exist_ok=True)
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    subprocess.run(
        (
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
            *("--implementation", "cp", "--python-version", python, *platforms, "--dest", str(WHEELS), *wanted),
        ),
        check=True,
    )
    return sorted(path.name for path in WHEELS.glob("*.whl"))


def missing() -> list[str]:
    """What the engine imports and this Python does not find."""
    return [name for name in _ENGINE if find_spec(name) is None]


def install(folder: Path | None = None) -> list[str]:
    """Make the wheels of `folder` (None: WHEELS) importable in this process, if anything is missing; what is missing
    still.

    No registry is asked. The temporary folder goes with the process.
    """
    wheels = sorted((folder or WHEELS).glob("*.whl"))
    if missing() and wheels:
        target = tempfile.mkdtemp(prefix="pystachio-wheels-")
        atexit.register(shutil.rmtree, target, ignore_errors=True)
        subprocess.run(
            (
                *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"),
                *("--target", target, *map(str, wheels)),
            ),
            check=True,
        )
        sys.path.insert(0, target)
        os.environ["PATH"] = os.pathsep.join((str(Path(target) / "bin"), os.environ.get("PATH", "")))
        importlib.invalidate_caches()
    return missing()


def build_inner_loops() -> bool:
    """Compile them beside their sources where they are not; whether they are there now."""
    folder = ROOT / "pystachio" / "operators" / "kernels" / "native"
    if not any(folder.glob("_native*.so")) and shutil.which("cc") is not None and find_spec("setuptools") is not None:
        subprocess.run(
            (sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"),
            cwd=ROOT,
            check=False,
            capture_output=True,
        )
    return any(folder.glob("_native*.so"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.travelling", description=__doc__)
    parser.add_argument("--python", default="3.12", help="of the other machine")
    parser.add_argument("--peers", action="store_true", help="DuckDB too")
    options = parser.parse_args()
    for name in fetch(options.python, peers=options.peers):
        sys.stdout.write(f"{WHEELS.name}/{name}\n")


if __name__ == "__main__":
    main()
