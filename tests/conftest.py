"""What holds for every test: none writes decoded columns into the developer's home, and no example of Hypothesis fails
for the time that it took; Triton interprets without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import Phase, settings

# Without explanations of failures, for which every line of every example is traced.
settings.register_profile("untimed", deadline=None, phases=[phase for phase in Phase if phase is not Phase.explain])
settings.load_profile("untimed")

if not torch.cuda.is_available():
    # Read when triton is imported, by whichever test comes first.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True, scope="session")
def no_chunk_cache_on_disk() -> Iterator[None]:
    """Tests of it name a folder and a size of their own. Processes that tests start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSTACHIO_CHUNK_CACHE_BYTES", "0")
        yield
