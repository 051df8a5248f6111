"""What holds for every test: none writes decoded columns into the developer's home, and no example of Hypothesis fails
for the time that it took; Triton interprets without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
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
