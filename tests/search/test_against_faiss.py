"""The largest scores, against an exact index of FAISS."""

import faiss
import numpy as np
import pytest
import torch

from slide.search import RowIndex, exact_top_k

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "width", "k"), [(1, 3, 1), (500, 16, 10), (5000, 32, 100)])
def test_inner_products(rows, width, k, with_bias):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, width, generator=generator)
    bias = torch.randn(rows, generator=generator) if with_bias else None
    queries = torch.randn(20, width, generator=generator)
    # FAISS knows no bias: it is one more coordinate.
    added = torch.zeros(rows) if bias is None else bias
    index = faiss.IndexFlatIP(width + 1)
    index.add(torch.cat([weight, added[:, None]], 1).numpy())
    expected, ids = index.search(torch.cat([queries, torch.ones(20, 1)], 1).numpy(), k)
    scores, found = exact_top_k(queries, weight, bias, k)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    # Rounding may swap two that are nearly equal.
    assert (found.numpy() == ids).mean() > 0.99
    if rows <= 4096:  # Then the index sees all rows.
        scores, found = RowIndex(weight, bias).top_k(queries, k)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
        assert (found.numpy() == ids).mean() > 0.99
