"""The default recipe's network in plain PyTorch, with all outputs computed: what slide saves."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from slide.data import Batches, SparseDataset
from slide.metrics import inverse_propensities, precision_at_k, psp_at_k

TOP = (1, 3, 5)


class DenseNetwork(nn.Module):
    """``nn.EmbeddingBag``, ReLU, dropout, ``nn.Linear``."""

    def __init__(self, features: int, hidden: int, labels: int, dropout: float):
        super().__init__()
        self.first = nn.EmbeddingBag(features, hidden, mode="sum", include_last_offset=True)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, labels)

    def forward(self, features) -> torch.Tensor:
        indptr, indices, values = (torch.from_numpy(np.asarray(part)) for part in features)
        summed = self.first(indices.long(), indptr, per_sample_weights=values)
        return self.output(self.dropout(torch.relu(summed + self.bias)))


def targets(batch, labels: int) -> torch.Tensor:
    """``(B, N)`` of 0 and 1."""
    out = torch.zeros(len(batch.rows), labels)
    row = np.repeat(np.arange(len(batch.rows)), np.diff(batch.labels.indptr))
    out[torch.from_numpy(row), torch.from_numpy(batch.labels.indices).long()] = 1
    return out


def train(
    data: SparseDataset, hidden: int, dropout: float, lr: float, batch_size: int, epochs: int
) -> Iterator[dict[str, float]]:
    """Binary cross-entropy and Adam; after each epoch, seconds of training and test scores."""
    torch.manual_seed(0)
    network = DenseNetwork(data.num_features, hidden, data.num_labels, dropout)
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, fused=True)
    batches = Batches(data.train, batch_size, seed=0)
    total, step, seconds = epochs * len(batches), 0, 0.0
    for epoch in range(epochs):
        network.train()
        begin = time.perf_counter()
        for batch in batches.epoch(epoch):
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 - step / total)
            optimizer.zero_grad()
            scores = network(batch.features)
            # Summed over the outputs, as slide's losses are.
            loss = nn.functional.binary_cross_entropy_with_logits(
                scores, targets(batch, data.num_labels), reduction="sum"
            )
            (loss / len(batch.rows)).backward()
            optimizer.step()
            step += 1
        seconds += time.perf_counter() - begin
        yield {"train_seconds": seconds, **judge(network, data)}


@torch.no_grad()
def judge(network: DenseNetwork, data: SparseDataset) -> dict[str, float]:
    """P@k and PSP@k on all test rows."""
    network.eval()
    found = np.concatenate(
        [
            network(batch.features).topk(max(TOP)).indices.numpy()
            for batch in Batches(data.test, 512, seed=0, shuffle=False).epoch(0)
        ]
    )
    inverse = inverse_propensities(data.train.labels, data.num_labels, *data.propensity)
    scores = {f"p_at_{k}": precision_at_k(found, data.test.labels, k) for k in TOP}
    return scores | {f"psp_at_{k}": psp_at_k(found, data.test.labels, k, inverse) for k in TOP}
