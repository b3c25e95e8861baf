"""How weight rows are shared out, and first weights that belong to their rows."""

import numpy as np
import pytest
import torch

from slide.distributed.shares import Shares, normal_rows, uniform_rows
from slide.ops.random import random_bits
from slide.sparse import CSR, Pattern

N = 5000
ZIPF = 1e6 / (1 + np.random.default_rng(0).permutation(N))
COUNTS = {"unknown": None, "zipf": ZIPF, "equal": np.ones(N), "one": np.eye(1, N, 7)[0]}


def every(size, counts=None, rows=N):
    return [Shares("labels", rows, rank, size, counts) for rank in range(size)]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_each_row_has_one_owner(name, size):
    shares = every(size, COUNTS[name])
    assert sorted(np.concatenate([each.ids for each in shares])) == list(range(N))
    numbers = list(map(len, shares))
    assert max(numbers) - min(numbers) <= 1
    for own in shares:
        assert (np.diff(own.ids) > 0).all()
        assert own.ids.dtype == np.int32
        assert all((own.owners(other.ids) == other.rank).all() for other in shares)
        assert (own.local_ids(own.ids) == np.arange(len(own))).all()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_zipf_rows_are_dealt_evenly(size):
    """Both the rows that a step touches and its products."""
    rng = np.random.default_rng(1)
    share = np.minimum(1, 20 * ZIPF / ZIPF.max())  # Of the samples: a sample has a feature once.
    shares = Shares("features", N, 0, size, 1000 * share)
    owners = shares.owners(np.arange(N))
    work = [share[owners == rank].sum() for rank in range(size)]
    assert max(work) <= 1.01 * np.mean(work)
    _, columns = (rng.random((64, N)) < share).nonzero()
    for ids, limit in ((columns, 1.03), (np.unique(columns), 1.06)):
        numbers = np.bincount(shares.owners(ids), minlength=size)
        assert numbers.max() < limit * numbers.mean()


@pytest.mark.parametrize("counts", [None, [5, 1, 1, 3, 1, 1]])
def test_own_entries(counts):
    rng = np.random.default_rng(0)
    dense = (rng.random((7, 6)) < 0.4) * rng.random((7, 6)).astype(np.float32)
    rows, columns = dense.nonzero()
    indptr = np.searchsorted(rows, np.arange(8)).astype(np.int64)
    indices = columns.astype(np.int32)
    for own in every(3, counts, rows=6):
        found = own.own(CSR(indptr, indices, dense[rows, columns]))
        back = np.zeros((7, 6), np.float32)
        numbers = np.repeat(np.arange(7), np.diff(found.indptr))
        back[numbers, own.ids[found.indices]] = found.values
        np.testing.assert_array_equal(back, dense * np.isin(np.arange(6), own.ids))
        pattern = own.own(Pattern(indptr, indices))
        np.testing.assert_array_equal(pattern.indptr, found.indptr)
        np.testing.assert_array_equal(pattern.indices, found.indices)
        assert pattern.indices.dtype == np.int32
    assert every(1, counts, rows=6)[0].own(pattern) is pattern


def test_bad_use():
    with pytest.raises(ValueError, match="5 processes cannot share out 4 labels: start at most 4"):
        Shares("labels", 4, 0, 5)
    with pytest.raises(ValueError, match=r"rank must be in \[0, 2\), not 2"):
        Shares("labels", 4, 2, 2)
    with pytest.raises(ValueError, match=r"counts \(3,\) do not fit 4 labels"):
        Shares("labels", 4, 0, 2, [1, 2, 3])
    with pytest.raises(ValueError, match="counts of labels must be at least 0, not -1"):
        Shares("labels", 4, 0, 2, [1, 2, 3, -1])


KEY = 2**64 - 5


@pytest.mark.parametrize("draw", [uniform_rows, normal_rows])
@pytest.mark.parametrize("width", [1, 7, 64])
def test_a_row_depends_on_its_number_alone(draw, width):
    ids = np.random.default_rng(0).permutation(4000)[:1500]
    whole = draw(KEY, np.arange(4000), width, 0.5)
    assert whole.dtype == torch.float32
    assert torch.equal(draw(KEY, ids, width, 0.5), whole[torch.from_numpy(ids)])
    assert not torch.equal(draw(KEY + 1, ids, width, 0.5), whole[torch.from_numpy(ids)])
    assert len(whole.unique()) > 0.98 * min(whole.numel(), 30_000)


def test_uniform_numbers():
    found = uniform_rows(1, np.arange(2000), 50, bound=0.25).flatten()
    assert -0.25 <= found.min() < -0.249
    assert 0.249 < found.max() < 0.25
    share = torch.histc(found, 10, -0.25, 0.25) / len(found)
    assert (share - 0.1).abs().max() < 5 * (0.09 / len(found)) ** 0.5


def test_normal_numbers():
    found = normal_rows(1, np.arange(2001), 51, deviation=2.0)
    assert found.isfinite().all()
    count = found.numel()
    assert abs(found.mean()) < 5 * 2 / count**0.5
    assert abs(found.std() - 2) < 5 * 2 / (2 * count) ** 0.5
    assert 0.67 < (found.abs() < 2).float().mean() < 0.695
    both = found[:, 0] * found[:, 26]  # Of one radius: the sine and the cosine.
    assert abs(both.mean()) < 5 * 4 / 2001**0.5


def test_the_generator_is_that_of_the_kernels():
    found = uniform_rows(KEY, np.array([3]), 2, bound=1.0)[0]
    bits = [int(random_bits(np.uint64(KEY), 3 * 2 + j)) for j in range(2)]
    assert found.tolist() == [(b >> 40) / 2**23 - 1 for b in bits]
