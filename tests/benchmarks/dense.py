"""The default recipe's network and loss in plain PyTorch, with all outputs computed."""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from omegaconf import DictConfig
from plain_torch import bag, positives
from torch import Tensor, nn

from slide.data import Batch, Batches, SparseDataset
from slide.nn import ActiveLoss
from slide.sparse import CSR


class Trainable(Protocol):
    """A network in plain PyTorch that `train` can train."""

    def loss(self, batch: Batch) -> Tensor: ...

    def optimizer(self, lr: float, input_rate: float) -> torch.optim.Optimizer: ...

    def train(self, mode: bool = True) -> nn.Module: ...


class DenseNetwork(nn.Module):
    """``nn.EmbeddingBag``, ReLU, dropout, ``nn.Linear``, with the recipe's first weights."""

    def __init__(self, features: int, labels: int, settings: DictConfig):
        super().__init__()
        (hidden,), self.labels = settings.hidden, labels
        self.first = nn.EmbeddingBag(features, hidden, mode="sum", include_last_offset=True)
        nn.init.normal_(self.first.weight, std=settings.init_scale / hidden**0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.dropout = nn.Dropout(settings.dropout)
        self.output = nn.Linear(hidden, labels)
        with torch.no_grad():
            self.output.weight *= settings.output_scale

    @classmethod
    def from_config(cls, data: SparseDataset, config: DictConfig) -> "DenseNetwork":
        """The network of a configuration of train.py; its biases fit the labels' frequencies."""
        network = cls(data.num_features, data.num_labels, config.network)
        prior = ActiveLoss("squared_hinge").prior_scores(data.train.labels, data.num_labels)
        network.output.bias.data.copy_(prior)
        return network

    def forward(self, features: CSR) -> Tensor:
        return self.output(self.dropout(torch.relu(self.first(**bag(features)) + self.bias)))

    def loss(self, batch: Batch) -> Tensor:
        """The squared hinge loss of a batch, a scalar."""
        signs = torch.full((len(batch.rows), self.labels), -1.0)
        signs[positives(batch)] = 1.0
        slack = torch.relu(1 - signs * self(batch.features))
        return slack.square().sum() / len(batch.rows)

    @torch.no_grad()
    def best(self, features: CSR, k: int) -> np.ndarray:
        """Ids ``(rows, k)`` of the best labels."""
        return self(features).topk(k).indices.numpy()

    def optimizer(self, lr: float, input_rate: float) -> torch.optim.Optimizer:
        """Fused Adam over all parameters, with a rate of its own for the first layer."""
        first = {"params": [self.first.weight, self.bias], "lr": lr * input_rate}
        return torch.optim.Adam([{"params": self.output.parameters(), "lr": lr}, first], fused=True)


def train(
    network: Trainable,
    data: SparseDataset,
    config: DictConfig,
    judge: Callable[[], dict[str, float]],
    limit: float = float("inf"),
) -> Iterator[dict[str, float]]:
    """Train; after each epoch, and at the end, seconds of training, epochs and scores.

    The rates fall in a straight line to 0 at the last epoch, or at the end of the time.

    Args:
        network: the network.
        data: with the recipe's transforms.
        config: of train.py, with a number of epochs; says rates, batch size and seed.
        judge: gives the scores of the network, which is in evaluation mode.
        limit: seconds of training after which no further step begins.
    """
    optimizer = network.optimizer(config.optimizer.lr, config.optimizer.input_rate)
    rates = [group["lr"] for group in optimizer.param_groups]
    batches = Batches(data.train, config.trainer.batch_size, seed=config.seed)
    total, step, seconds = config.trainer.epochs * len(batches), 0, 0.0
    while step < total and seconds < limit:
        network.train()
        begin, before = time.perf_counter(), seconds
        for batch in batches.epoch(step // len(batches)):
            if seconds >= limit:
                break
            left = 1 - max(step / total, seconds / limit)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * left
            optimizer.zero_grad()
            network.loss(batch).backward()
            optimizer.step()
            step += 1
            seconds = before + time.perf_counter() - begin
        network.train(False)
        yield {"train_seconds": seconds, "epochs": step / len(batches), **judge()}
