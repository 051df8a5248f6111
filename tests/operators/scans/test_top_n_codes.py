"""Rows before a threshold by their codes, against the threshold's own comparison of each row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from pystachio.operators.arrow import batch_from_arrow
from pystachio.operators.column import Dictionary, DictionaryColumn
from pystachio.operators.kernels.ordering import Direction
from pystachio.operators.kernels.thresholds import KeyThreshold, Threshold
from pystachio.operators.scans.top_n_codes import CodeTest

ROWS = 500


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("first", [0, 700, 2000])
@pytest.mark.parametrize("seed", range(4))
def test_ties_count_where_their_number_may_be_lower(seed: int, first: int, descending: bool) -> None:
    chance = np.random.default_rng(seed)
    texts = [f"text {number}" for number in chance.permutation(20)]
    values = batch_from_arrow(pa.record_batch({"t": pa.array(texts, pa.large_string())})).columns[0]
    dictionary = Dictionary(values.dictionary.values if isinstance(values, DictionaryColumn) else values)
    codes = torch.from_numpy(chance.integers(0, 20, ROWS).astype(np.int8))
    column = DictionaryColumn(dictionary.values.type, codes, dictionary, None)
    key = KeyThreshold(texts[3].encode(), Direction(descending=descending, nulls_first=False))
    threshold = Threshold((key,), 700)
    expected = threshold.select([column], first)
    found = CodeTest().rows(threshold, column, 0, ROWS, first, None)
    assert found is not None
    assert found.are_before
    assert expected is not None
    assert found.rows.tolist() == expected.tolist()
