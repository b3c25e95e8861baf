"""Dropout of sparse inputs: which entries stay, what they become, where the draws come from."""

import numpy as np
import pytest
import torch

from slide import FullSampler, SlideNetwork
from slide.functional import drop_features
from slide.sparse import CSR


def rows(count=200, width=40):
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, width, count)
    sizes[:2] = 0
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    indices = np.concatenate([np.sort(rng.permutation(width)[:size]) for size in sizes])
    return CSR(indptr, indices.astype(np.int32), rng.random(indptr[-1]).astype(np.float32) + 1)


def dense(x, width=40):
    out = np.zeros((x.num_rows, width), np.float32)
    out[np.repeat(np.arange(x.num_rows), np.diff(x.indptr)), x.indices] = x.values
    return out


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_entries_are_dropped_or_grow(p):
    torch.manual_seed(0)
    x = rows()
    out = drop_features(x, p)
    assert [part.dtype for part in out] == [np.int64, np.int32, np.float32]
    before, after = dense(x), dense(out)
    kept = after != 0
    assert np.count_nonzero(kept) == len(out.indices) == out.indptr[-1], "a place occurs twice"
    np.testing.assert_allclose(after[kept], before[kept] / (1 - p), rtol=1e-6)
    count = len(x.indices)
    assert abs(len(out.indices) - (1 - p) * count) < 5 * (p * (1 - p) * count) ** 0.5


def test_the_mean_of_many_draws_is_the_input():
    torch.manual_seed(1)
    x = rows(20)
    mean = np.mean([dense(drop_features(x, 0.4)) for _ in range(2000)], axis=0)
    # The deviation of a value v is v * sqrt(p / (1 - p)).
    assert np.abs(mean - dense(x)).max() < 5 * 2 * (0.4 / 0.6 / 2000) ** 0.5


def test_without_dropout_nothing_is_drawn():
    state, x = torch.get_rng_state(), rows()
    assert drop_features(x, 0.0) is x
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_follow_from_the_seed():
    found, x = [], rows()
    for _ in range(2):
        torch.manual_seed(3)
        found.append([drop_features(x, 0.4) for _ in range(2)])
    for one, other in zip(*found, strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))
    assert found[0][0].indices.tolist() != found[0][1].indices.tolist()


def test_empty_rows():
    x = CSR(np.array([0, 0, 0]), np.empty(0, np.int32), np.empty(0, np.float32))
    assert drop_features(x, 0.5).indptr.tolist() == [0, 0, 0]


def test_a_network_drops_in_training_only():
    torch.manual_seed(0)
    network, x = SlideNetwork(40, [8], 10, FullSampler, input_dropout=0.5), rows()
    network.eval()
    plain = network.encode(x)
    assert torch.equal(network.encode(x), plain)
    network.train()
    torch.manual_seed(5)
    dropped = network.encode(x)
    assert not torch.equal(dropped, plain)
    assert not torch.equal(network.encode(x), dropped)
    torch.manual_seed(5)
    assert torch.equal(network.encode(x), dropped)
    torch.manual_seed(5)
    network.eval()
    assert torch.equal(network.encode(drop_features(x, 0.5)), dropped)


@pytest.mark.parametrize("p", [1.0, -0.1, float("nan"), "x"])
def test_bad_share(p):
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\), not"):
        drop_features(rows(), p)
    with pytest.raises(ValueError, match=r"input_dropout must be in \[0, 1\), not"):
        SlideNetwork(40, [8], 10, FullSampler, input_dropout=p)


def test_draws_of_a_generator():
    before = torch.get_rng_state()
    first, same, other = (
        drop_features(rows(), 0.5, torch.Generator().manual_seed(seed)).indices
        for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
