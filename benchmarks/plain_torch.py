"""Peers in plain PyTorch: the default recipe's network dense, and with a sampled softmax."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from slide.data import Batch, Batches, SparseDataset
from slide.nn import ActiveLoss
from slide.sparse import CSR


def bag(features: CSR) -> dict[str, Tensor]:
    """Arguments of ``nn.EmbeddingBag`` for rows of features."""
    indptr, indices, values = (torch.from_numpy(np.asarray(part)) for part in features)
    return {"input": indices.long(), "offsets": indptr, "per_sample_weights": values}


def positives(batch: Batch) -> tuple[Tensor, Tensor]:
    counts = torch.from_numpy(np.diff(batch.labels.indptr))
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    return rows, torch.from_numpy(batch.labels.indices.astype(np.int64))


def cross_entropy(scores: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The softmax loss with targets 1 / |y|: their sum is written out, no dense target is made."""
    sums = torch.zeros(len(scores)).index_add_(0, rows, scores[rows, columns])
    counts = torch.bincount(rows, minlength=len(scores)).clamp(min=1)
    return (torch.logsumexp(scores, 1) - sums / counts).mean()


class DenseNetwork(nn.Module):
    """``nn.EmbeddingBag``, ReLU, dropout, ``nn.Linear`` with the recipe's first weights."""

    def __init__(self, features: int, labels: int, config: DictConfig):
        super().__init__()
        settings = config.network
        (hidden,), self.labels = settings.hidden, labels
        self.first = nn.EmbeddingBag(features, hidden, mode="sum", include_last_offset=True)
        nn.init.normal_(self.first.weight, std=settings.init_scale / hidden**0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.dropout = nn.Dropout(settings.dropout)
        self.output = nn.Linear(hidden, labels)
        with torch.no_grad():
            self.output.weight *= settings.output_scale

    def start(self, data: SparseDataset) -> None:
        """Let the output biases fit the frequencies of the labels."""
        prior = ActiveLoss("squared_hinge").prior_scores(data.train.labels, data.num_labels)
        self.output.bias.data.copy_(prior)

    def forward(self, features: CSR) -> Tensor:
        return self.output(self.dropout(torch.relu(self.first(**bag(features)) + self.bias)))

    def loss(self, batch: Batch) -> Tensor:
        signs = torch.full((len(batch.rows), self.labels), -1.0)
        signs[positives(batch)] = 1.0
        slack = torch.relu(1 - signs * self(batch.features))
        return slack.square().sum() / len(batch.rows)

    def softmax_loss(self, batch: Batch) -> Tensor:
        """The softmax loss, which takes dense PyTorch less time than `loss`."""
        return cross_entropy(self(batch.features), *positives(batch))

    @torch.no_grad()
    def best(self, features: CSR, k: int) -> np.ndarray:
        return self(features).topk(k).indices.numpy()

    def optimizer(self, lr: float, input_rate: float) -> torch.optim.Optimizer:
        """Fused Adam over all parameters, with a rate of its own for the first layer."""
        first = {"params": [self.first.weight, self.bias], "lr": lr * input_rate}
        return torch.optim.Adam([{"params": self.output.parameters(), "lr": lr}, first], fused=True)


class SampledSoftmax(nn.Module):
    """Sampled softmax of PyTorch's own sparse parts: sparse embeddings, for ``SparseAdam``."""

    def __init__(self, features: int, labels: int, config: DictConfig):
        super().__init__()
        settings = config.network
        (hidden,), self.labels, self.active = settings.hidden, labels, config.sampler.active
        shape = {"mode": "sum", "include_last_offset": True, "sparse": True}
        self.first = nn.EmbeddingBag(features, hidden, **shape)
        self.weight = nn.Embedding(labels, hidden, sparse=True)
        self.bias = nn.Embedding(labels, 1, sparse=True)
        self.dropout = nn.Dropout(settings.dropout)
        with torch.no_grad():
            self.first.weight.normal_(std=settings.init_scale / hidden**0.5)
            self.weight.weight.uniform_(-1, 1).mul_(settings.output_scale / hidden**0.5)
            self.bias.weight.zero_()

    def start(self, data: SparseDataset) -> None:
        """The output biases stay at zero: a sampled softmax needs no start."""

    def loss(self, batch: Batch) -> Tensor:
        """The softmax loss over the labels of the batch and uniform draws, a scalar."""
        rows, labels = positives(batch)
        own, columns = torch.unique(labels, return_inverse=True)
        more = torch.randint(self.labels, (max(self.active - len(own), 0),))
        ids = torch.cat([own, more])
        hidden = self.dropout(torch.relu(self.first(**bag(batch.features))))
        scores = torch.addmm(self.bias(ids).T, hidden, self.weight(ids).T)
        return cross_entropy(scores, rows, columns)

    softmax_loss = loss

    @torch.no_grad()
    def best(self, features: CSR, k: int) -> np.ndarray:
        hidden = torch.relu(self.first(**bag(features)))
        scores = torch.addmm(self.bias.weight.T, hidden, self.weight.weight.T)
        return scores.topk(k).indices.numpy()

    def optimizer(self, lr: float, input_rate: float) -> torch.optim.Optimizer:
        """``SparseAdam``, with a rate of its own for the first layer."""
        output = [*self.weight.parameters(), *self.bias.parameters()]
        first = list(self.first.parameters())
        return torch.optim.SparseAdam(
            [{"params": output, "lr": lr}, {"params": first, "lr": lr * input_rate}]
        )


NETWORKS = {"dense": DenseNetwork, "sampled": SampledSoftmax}


def step_of(
    network: DenseNetwork | SampledSoftmax, optimizer: torch.optim.Optimizer
) -> Callable[[Batch], None]:

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        network.softmax_loss(batch).backward()
        optimizer.step()

    return step


def train(
    network: DenseNetwork | SampledSoftmax,
    data: SparseDataset,
    config: DictConfig,
    evaluate: Callable[[], dict[str, float]],
    limit: float = float("inf"),
) -> Iterator[dict[str, float]]:
    """Train at rates that fall to 0 in a straight line; after each epoch: seconds and scores."""
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
        yield {"train_seconds": seconds, "epochs": step / len(batches), **evaluate()}
