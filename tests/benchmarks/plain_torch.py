"""What comparisons in plain PyTorch share: batches as tensors, a loss, and a sampled softmax."""

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from slide.data import Batch, SparseDataset
from slide.sparse import CSR


def bag(features: CSR) -> dict[str, Tensor]:
    """Arguments of ``nn.EmbeddingBag`` for rows of features."""
    indptr, indices, values = (torch.from_numpy(np.asarray(part)) for part in features)
    return {"input": indices.long(), "offsets": indptr, "per_sample_weights": values}


def positives(batch: Batch) -> tuple[Tensor, Tensor]:
    """Row and label of each positive."""
    counts = torch.from_numpy(np.diff(batch.labels.indptr))
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    return rows, torch.from_numpy(batch.labels.indices.astype(np.int64))


def cross_entropy(scores: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The softmax loss with targets 1 / |y|: their sum is written out, no dense target is made."""
    sums = torch.zeros(len(scores)).index_add_(0, rows, scores[rows, columns])
    counts = torch.bincount(rows, minlength=len(scores)).clamp(min=1)
    return (torch.logsumexp(scores, 1) - sums / counts).mean()


class SampledSoftmax(nn.Module):
    """Sampled softmax of PyTorch's own sparse parts: sparse embeddings, for ``SparseAdam``.

    The outputs of a batch are its labels and uniform draws, one set for all rows.

    Args:
        features, labels: sizes of the data.
        hidden: width of the hidden layer.
        active: outputs in a set, labels included.
        dropout: share of hidden values dropped in training.
        scales: of the first weights of both layers, as ``network.init_scale`` and
            ``network.output_scale`` of train.py.
    """

    def __init__(
        self,
        features: int,
        labels: int,
        hidden: int,
        active: int,
        dropout: float = 0.0,
        scales: tuple[float, float] = (1.0, 1.0),
    ):
        super().__init__()
        self.labels, self.active = labels, active
        shape = {"mode": "sum", "include_last_offset": True, "sparse": True}
        self.first = nn.EmbeddingBag(features, hidden, **shape)
        self.weight = nn.Embedding(labels, hidden, sparse=True)
        self.bias = nn.Embedding(labels, 1, sparse=True)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.first.weight.normal_(std=scales[0] / hidden**0.5)
            self.weight.weight.uniform_(-1, 1).mul_(scales[1] / hidden**0.5)
            self.bias.weight.zero_()

    @classmethod
    def from_config(cls, data: SparseDataset, config: DictConfig) -> "SampledSoftmax":
        """The network that has the sizes of a configuration of train.py."""
        network, active = config.network, config.sampler.active
        (hidden,), scales = network.hidden, (network.init_scale, network.output_scale)
        sizes = data.num_features, data.num_labels, hidden, active
        return cls(*sizes, network.dropout, scales)

    def loss(self, batch: Batch) -> Tensor:
        """Of a training batch, a scalar."""
        rows, labels = positives(batch)
        own, columns = torch.unique(labels, return_inverse=True)
        more = torch.randint(self.labels, (max(self.active - len(own), 0),))
        ids = torch.cat([own, more])
        hidden = self.dropout(torch.relu(self.first(**bag(batch.features))))
        scores = torch.addmm(self.bias(ids).T, hidden, self.weight(ids).T)
        return cross_entropy(scores, rows, columns)

    @torch.no_grad()
    def best(self, features: CSR, k: int) -> np.ndarray:
        """Ids ``(rows, k)`` of the best labels."""
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
