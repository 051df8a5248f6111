"""What holds for every test: none writes decoded columns into the developer's home."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_chunk_cache_on_disk() -> Iterator[None]:
    """Tests of it name a folder and a size of their own. Processes that tests start inherit this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSTACHIO_CHUNK_CACHE_BYTES", "0")
        yield
