"""A library in the place of the CUDA driver, so that the real kvikio moves bytes on a machine without a GPU.

Every entry point that kvikio looks up answers CUDA_ERROR_NOT_INITIALIZED, which it reads as "this is host memory". Only
for subprocesses of tests: whoever loads it believes that there is a driver.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = """
#define NOT_INITIALISED(name) int name(void) { return 3; }
#define BOTH_VERSIONS(name) NOT_INITIALISED(name) NOT_INITIALISED(name##_v2)
int cuDriverGetVersion(int *version) { *version = 0; return 0; }
NOT_INITIALISED(cuInit)
NOT_INITIALISED(cuMemHostAlloc) NOT_INITIALISED(cuMemFreeHost) BOTH_VERSIONS(cuMemHostRegister)
NOT_INITIALISED(cuMemHostUnregister) BOTH_VERSIONS(cuMemGetAddressRange)
NOT_INITIALISED(cuMemcpyAsync) BOTH_VERSIONS(cuMemcpyHtoDAsync) BOTH_VERSIONS(cuMemcpyDtoHAsync)
BOTH_VERSIONS(cuMemcpyBatchAsync)
NOT_INITIALISED(cuPointerGetAttribute) NOT_INITIALISED(cuPointerGetAttributes)
BOTH_VERSIONS(cuCtxPushCurrent) BOTH_VERSIONS(cuCtxPopCurrent)
NOT_INITIALISED(cuCtxGetCurrent) NOT_INITIALISED(cuCtxGetDevice)
NOT_INITIALISED(cuGetErrorName) NOT_INITIALISED(cuGetErrorString)
NOT_INITIALISED(cuDeviceGet) NOT_INITIALISED(cuDeviceGetCount) NOT_INITIALISED(cuDeviceGetAttribute)
NOT_INITIALISED(cuDevicePrimaryCtxRetain) BOTH_VERSIONS(cuDevicePrimaryCtxRelease)
NOT_INITIALISED(cuStreamSynchronize) NOT_INITIALISED(cuStreamCreate) BOTH_VERSIONS(cuStreamDestroy)
NOT_INITIALISED(cuEventSynchronize) NOT_INITIALISED(cuEventCreate) BOTH_VERSIONS(cuEventDestroy)
NOT_INITIALISED(cuEventRecord) NOT_INITIALISED(cuEventQuery) NOT_INITIALISED(cuLaunchHostFunc)
"""


def has_compiler() -> bool:
    return shutil.which("gcc") is not None


def compile_driver(folder: Path) -> Path:
    source = folder / "driver.c"
    source.write_text(SOURCE)
    library = folder / "libcuda.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return library
