"""The default recipe's network and loss in plain PyTorch, with all outputs computed."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from omegaconf import DictConfig
from torch import nn

from slide.data import Batches, SparseDataset
from slide.nn import ActiveLoss
from slide.training.metrics import inverse_propensities, precision_at_k, psp_at_k

TOP = (1, 3, 5)


class DenseNetwork(nn.Module):
    """``nn.EmbeddingBag``, ReLU, dropout, ``nn.Linear``, with the recipe's first weights."""

    def __init__(self, features: int, labels: int, settings: DictConfig):
        super().__init__()
        (hidden,) = settings.hidden
        self.first = nn.EmbeddingBag(features, hidden, mode="sum", include_last_offset=True)
        nn.init.normal_(self.first.weight, std=settings.init_scale / hidden**0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.dropout = nn.Dropout(settings.dropout)
        self.output = nn.Linear(hidden, labels)
        with torch.no_grad():
            self.output.weight *= settings.output_scale

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


def train(data: SparseDataset, config: DictConfig) -> Iterator[dict[str, float]]:
    """Squared hinge and Adam with the recipe's rates; after each epoch, seconds and test scores.

    Args:
        data: with the recipe's transforms.
        config: of train.py, for a network with one hidden layer, and its batch size.
    """
    torch.manual_seed(config.seed)
    network = DenseNetwork(data.num_features, data.num_labels, config.network)
    prior = ActiveLoss("squared_hinge").prior_scores(data.train.labels, data.num_labels)
    network.output.bias.data.copy_(prior)
    lr, factor = config.optimizer.lr, config.network.input_rate
    first = [network.first.weight, network.bias]
    groups = [
        {"params": network.output.parameters(), "lr": lr, "full": lr},
        {"params": first, "lr": lr * factor, "full": lr * factor},
    ]
    optimizer = torch.optim.Adam(groups, fused=True)
    batches = Batches(data.train, config.trainer.batch_size, seed=config.seed)
    total, step, seconds = config.trainer.epochs * len(batches), 0, 0.0
    for epoch in range(config.trainer.epochs):
        network.train()
        begin = time.perf_counter()
        for batch in batches.epoch(epoch):
            for group in optimizer.param_groups:
                group["lr"] = group["full"] * (1 - step / total)
            optimizer.zero_grad()
            signs = 2 * targets(batch, data.num_labels) - 1
            slack = torch.relu(1 - signs * network(batch.features))
            (slack.square().sum() / len(batch.rows)).backward()
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
