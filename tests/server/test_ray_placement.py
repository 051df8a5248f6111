from __future__ import annotations

from collections.abc import Mapping

import pytest

from pystachio.errors import InvalidRequest, PystachioError, ResourceExhausted
from pystachio.server.ray_placement import Placement, place

CPU: Mapping[str, float] = {"CPU": 8.0}
GPUS: Mapping[str, float] = {"CPU": 8.0, "GPU": 4.0}
ONE_CPU, ONE_GPU = {"CPU": 1.0}, {"GPU": 1.0}


@pytest.mark.parametrize(
    ("hosts", "nodes", "per_gpu", "expected"),
    [
        ([CPU], None, None, Placement((ONE_CPU,), "STRICT_SPREAD")),
        ([CPU, CPU], None, None, Placement((ONE_CPU,) * 2, "STRICT_SPREAD")),
        ([CPU, GPUS], None, None, Placement((ONE_GPU,) * 4, "PACK")),
        ([GPUS, GPUS], None, True, Placement((ONE_GPU,) * 8, "PACK")),
        ([GPUS, GPUS], None, False, Placement((ONE_CPU,) * 2, "STRICT_SPREAD")),
        ([{}, CPU, CPU], None, None, Placement((ONE_CPU,) * 2, "STRICT_SPREAD")),
        ([{}, CPU, CPU], 3, None, Placement((ONE_CPU,) * 3, "SPREAD")),
        ([CPU, CPU], 1, None, Placement((ONE_CPU,), "STRICT_SPREAD")),
        ([CPU, GPUS], 5, None, Placement((ONE_CPU,) * 5, "SPREAD")),
    ],
)
def test_bundles(
    hosts: list[Mapping[str, float]], nodes: int | None, per_gpu: bool | None, expected: Placement
) -> None:
    assert place(hosts, nodes, per_gpu) == expected


@pytest.mark.parametrize(
    ("hosts", "nodes", "per_gpu", "error"),
    [
        ([], None, None, ResourceExhausted),
        ([{}], None, None, ResourceExhausted),
        ([CPU], 9, None, ResourceExhausted),
        ([CPU], None, True, ResourceExhausted),
        ([GPUS], 2, True, InvalidRequest),
    ],
)
def test_refused(
    hosts: list[Mapping[str, float]], nodes: int | None, per_gpu: bool | None, error: type[PystachioError]
) -> None:
    with pytest.raises(error):
        place(hosts, nodes, per_gpu)
