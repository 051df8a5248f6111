"""The compiled parts of the package, for which pyproject.toml has only experimental words.

One decodes Parquet and runs programs over columns, the other moves chunks of files. `optional`: without a C compiler
the installation goes on, and pyarrow, torch and Python's threads do.
"""

from pathlib import Path

from setuptools import Extension, setup


def library(name: str, *folders: str) -> Extension:
    """All C files of a folder."""
    folder = Path("pystachio", *folders)
    return Extension(
        ".".join((*folder.parts, name)),
        sources=sorted(map(str, folder.glob("*.c"))),
        depends=sorted(map(str, folder.glob("*.h"))),
        extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"],
        extra_link_args=["-pthread"],
        py_limited_api=True,  # it knows nothing of Python
        optional=True,
    )


setup(
    ext_modules=[
        library("_native", "operators", "kernels", "native"),
        library("_disk", "io_scheduler", "devices", "native"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
