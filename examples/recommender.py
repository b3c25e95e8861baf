"""Recommended items for users, by a hidden layer and a sampled output layer, in a plain loop.

    python examples/recommender.py --help

A training step shows the model a half of the items of each user, and asks for the other half. Then
each user gets new items, without those seen (filtered ranking). One item of each user was held out,
and the share of users who get it is printed. Without ``--pairs`` users and items are made up: a
user likes one of several kinds of items.
"""

import argparse
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from torch import nn

from slide import ActiveSampler, RowSparseAdam, SampledLinear, SparseInputLinear


class Recommender(nn.Module):
    """Items of users ``(B, items)``, sparse, to hidden values ``(B, size)``, for `output`."""

    def __init__(self, items: int, size: int, active: int):
        super().__init__()
        self.first = SparseInputLinear(items, size)
        self.output = SampledLinear(size, items, ActiveSampler(size, items, active=active))

    def forward(self, seen: scipy.sparse.csr_array) -> torch.Tensor:
        return torch.relu(self.first(seen).to_dense())


def made_up(users: int, items: int) -> np.ndarray:
    """Pairs ``(n, 2)`` of users and items."""
    rng, kinds = np.random.default_rng(0), items // 20
    kind = rng.integers(kinds, size=users).repeat(12)
    liked = rng.integers(20, size=users * 12) * kinds + kind
    strange = rng.random(users * 12) < 0.1
    liked[strange] = rng.integers(items, size=strange.sum())
    return np.stack([np.arange(users).repeat(12), liked], axis=1)


def matrix(pairs: np.ndarray, shape: tuple[int, int]) -> scipy.sparse.csr_array:
    ones = np.ones(len(pairs), np.float32)
    found = scipy.sparse.csr_array((ones, tuple(pairs.T)), shape)
    found.data[:] = 1
    return found


def recommended(model: Recommender, seen: scipy.sparse.csr_array, k: int) -> np.ndarray:
    """The ``k`` best new items of each user, ``(B, k)``."""
    longest = int(np.diff(seen.indptr).max())
    with torch.no_grad():
        _, ids = model.eval().output.top_k(model(seen), min(k + longest, seen.shape[1]))
    found = []
    for row, own in enumerate(ids.numpy()):
        known = seen.indices[seen.indptr[row] : seen.indptr[row + 1]]
        found.append(own[~np.isin(own, known)][:k])
    return np.array(found)


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    made = argparse.ArgumentParser(description="A recommender with a sampled output layer.")
    made.add_argument("--pairs", type=Path, help="a file of lines 'user item', whole numbers")
    made.add_argument("--users", type=int, default=3000, help="that are made up")
    made.add_argument("--items", type=int, default=5000, help="that are made up")
    made.add_argument("--active", type=int, default=512, help="items of a training step")
    made.add_argument("--epochs", type=int, default=20)
    options = made.parse_args(arguments)
    if options.pairs is None:
        pairs = made_up(options.users, options.items)
    else:
        pairs = np.loadtxt(options.pairs, np.int64, ndmin=2)[:, :2]
    pairs = np.unique(pairs, axis=0)
    rng, shape = np.random.default_rng(0), tuple(pairs.max(0) + 1)
    pairs = rng.permutation(pairs)
    _, held = np.unique(pairs[:, 0], return_index=True)  # One item of each user.
    users, answers = pairs[held].T
    rest = np.delete(pairs, held, axis=0)
    seen = matrix(rest, shape)

    torch.manual_seed(0)
    model = Recommender(shape[1], 64, options.active)
    optimizer = RowSparseAdam(model.parameters(), lr=5e-3)
    for _ in range(options.epochs):
        model.train()
        shown = matrix(rest[rng.random(len(rest)) < 0.5], shape)
        asked = (seen - shown).tocsr()
        for rows in np.array_split(rng.permutation(shape[0]), -(-shape[0] // 128)):
            loss, _ = model.output.loss(model(shown[rows]), asked[rows], "softmax")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    popular = np.argsort(-seen.sum(0), kind="stable")[:10]
    recall = (recommended(model, seen[users], 10) == answers[:, None]).any(1).mean()
    base = np.isin(answers, popular).mean()
    print(f"recall at 10: {recall:.1%}; of the ten items that most users have: {base:.1%}")
    return float(recall), float(base)


if __name__ == "__main__":
    main()
