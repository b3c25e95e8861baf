"""Search among rows of short numbers finds what it finds among the floats they stand for."""

import numpy as np
import pytest
import torch

from slide.search import RowIndex, exact_top_k
from slide.search.rounded import rounded_top_k
from slide.utils.quantized import QuantizedRows

DTYPES = pytest.mark.parametrize("dtype", ["bfloat16", "int8"])


def draw(dtype, num_rows=300, width=9, num_queries=6):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(num_rows, width, generator=generator)
    weight *= torch.rand(num_rows, 1, generator=generator)
    rows = QuantizedRows.of(weight, dtype)
    queries = torch.randn(num_queries, width, generator=generator)
    return queries, rows, torch.randn(num_rows, generator=generator)


@DTYPES
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("queries", [1, 6])
def test_exact_search_converts_blocks(dtype, has_bias, queries, monkeypatch):
    x, rows, bias = draw(dtype, num_queries=queries)
    bias = bias if has_bias else None
    expected = exact_top_k(x, rows.float(), bias, 7)
    read, block = [], QuantizedRows.block

    def noted(rows, begin, end):
        read.append(len(found := block(rows, begin, end)))
        return found

    monkeypatch.setattr(QuantizedRows, "block", noted)
    found = exact_top_k(x, rows, bias, 7)  # In one block, as the floats: bit by bit.
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert read == [300]
    monkeypatch.setattr("slide.utils.quantized._NUMBERS", 9 * 64)
    found = exact_top_k(x, rows, bias, 7)
    torch.testing.assert_close(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert read[1:] == [64] * 4 + [44]
    with pytest.raises(ValueError, match=r"k must be in \[1, 300\], not 301"):
        exact_top_k(x, rows, bias, 301)


@DTYPES
@pytest.mark.parametrize("has_bias", [False, True])
def test_rounded_scan(dtype, has_bias):
    x, rows, bias = draw(dtype, num_rows=5_000)
    x[1], rows.codes[7] = 0, 0  # Vectors without a direction.
    bias = bias if has_bias else None
    found, expected = (rounded_top_k(x, weight, bias, 4) for weight in (rows, rows.float()))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert found[2].sum() >= 5


@DTYPES
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("queries", [1, 20])
def test_an_index_scores_its_candidates_from_the_rows(dtype, has_bias, queries):
    x, rows, bias = draw(dtype, num_rows=9_000, num_queries=queries)
    bias = bias if has_bias else None
    index, expected = RowIndex(rows, bias), RowIndex(rows.float(), bias)
    found = index.top_k(x, 5, most_seen=1_000)
    for one, other in zip(found, expected.top_k(x, 5, most_seen=1_000), strict=True):
        assert torch.equal(one, other)
    assert index.seen < 9_000
    assert index.fits(rows, bias)
    assert not index.fits(QuantizedRows(*rows), bias)
    rows.codes[0] = 1
    assert not index.fits(rows, bias)
    again = RowIndex.restored(rows, bias, index.state_dict())
    np.testing.assert_array_equal(again.top_k(x, 5)[1], index.top_k(x, 5)[1])


@DTYPES
def test_an_index_follows_changes(dtype):
    x, rows, bias = draw(dtype)
    index = RowIndex(rows, bias)
    rows.codes[8] = (100 * x[0]).to(rows.codes.dtype)
    bias[8] = 50
    index.update(np.array([8]))
    assert index.top_k(x[:1], 1)[1].item() == 8
