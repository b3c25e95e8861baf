"""A plain PyTorch network with the weights of a trained one, for export."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slide.utils import checks


class TorchTwin(nn.Module):
    """``EmbeddingBag -> ReLU -> (Linear -> ReLU ...) -> Linear -> topk``, on any device.

    It has no sampler and computes all outputs. All of its parts are PyTorch's, so `torch.export`
    and `torch.onnx.export` take it. The names of its parameters are those of `slide.SlideNetwork`,
    so each of the two loads the weights of the other.

    Args:
        first: weight ``(D, H)`` and bias ``(H,)`` of the first layer.
        others: the other layers, outputs last; at least one.
        k: number of outputs that are returned for each row, in [1, number of outputs].

    Raises:
        ValueError: for a k out of range.

    Example:
        >>> import scipy.sparse, slide, torch
        >>> network = slide.SlideNetwork(100, [16], 1000, slide.FullSampler)
        >>> twin = network.to_torch(k=5)
        >>> rows = slide.as_csr(scipy.sparse.random_array((2, 100), density=0.1))
        >>> scores, ids = twin(*map(torch.from_numpy, rows))
        >>> torch.equal(ids, network.predict(rows, k=5)[1])
        True
    """

    def __init__(self, first: tuple[Tensor, Tensor], others: Sequence[nn.Linear], k: int):
        super().__init__()
        checks.whole("k", k, 1)
        if k > others[-1].out_features:
            raise ValueError(f"k must be in [1, {others[-1].out_features}], not {k}")
        self.k = k
        self.first = _BagWithBias(*first)
        self.hidden, self.output = nn.ModuleList(others[:-1]), others[-1]

    def forward(self, indptr: Tensor, indices: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The k best outputs of B rows, given as the arrays of a `slide.CSR`.

        Args:
            indptr: ``(B + 1,)`` integers.
            indices: ``(nnz,)`` integers, numbers of features.
            values: ``(nnz,)``, of the type of the weights.

        Returns:
            Scores and ids (int64), both ``(B, k)``, best first.
        """
        x = torch.relu(self.first(indptr, indices, values))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        scores, ids = self.output(x).topk(self.k, dim=1)
        return scores, ids


class _BagWithBias(nn.Module):
    """The weighted sums of the weight rows of the features, as `nn.EmbeddingBag`, and a bias."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = nn.Parameter(bias.detach().clone())

    def forward(self, indptr: Tensor, indices: Tensor, values: Tensor) -> Tensor:
        bounds = indptr.long()
        sums = F.embedding_bag(
            *(indices.long(), self.weight, bounds),
            mode="sum",
            per_sample_weights=values,
            include_last_offset=True,
        )
        return sums + self.bias
