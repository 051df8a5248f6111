"""The compiled part of the package, for which pyproject.toml has only experimental words.

It decodes Parquet and sums by group. `optional`: without a C compiler the installation goes
on, and pyarrow and torch do.
"""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("pystachio", "operators", "kernels", "native")

setup(
    ext_modules=[
        Extension(
            "pystachio.operators.kernels.native._native",
            sources=sorted(map(str, NATIVE.glob("*.c"))),
            depends=sorted(map(str, NATIVE.glob("*.h"))),
            extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"],
            extra_link_args=["-pthread"],
            py_limited_api=True,  # it knows nothing of Python
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
