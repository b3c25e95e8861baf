"""A network from sparse features to sampled outputs, prediction with it, and its export."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from slide.functional import drop_features, relu_dropout
from slide.functional.linear import PRECISIONS
from slide.nn.sampled_linear import Activation, EveryOutput, SampledLinear, learns, predicting
from slide.nn.sparse_linear import SparseInputLinear
from slide.sampling import Sampler
from slide.sparse import as_csr
from slide.utils import checks

SamplerFactory = Callable[[int, int], Sampler]


@dataclass(frozen=True)
class NetworkOptions:
    """Layers and first weights of a network; ``conf/network/mlp.yaml`` explains the fields.

    Example:
        >>> from slide.nn.network import NetworkOptions
        >>> NetworkOptions(hidden=[8], dropout=2)
        Traceback (most recent call last):
        ValueError: dropout must be in [0, 1), not 2
    """

    hidden: Sequence[int]
    hidden_active: Sequence[int | None] = ()
    dropout: float = 0.0
    input_dropout: float = 0.0
    prior_bias: bool = False
    prior_margin: float = 0.0
    bias_scale: float = 0.0
    precision: str = "float32"
    init_scale: float = 1.0
    output_scale: float = 1.0

    def __post_init__(self) -> None:
        checks.listing("hidden", self.hidden)
        if not self.hidden:
            raise ValueError("hidden must name at least one width, such as [128], not []")
        widths = [checks.whole("hidden", width, 1) for width in self.hidden]
        object.__setattr__(self, "hidden", widths)
        checks.listing("hidden_active", self.hidden_active)
        if self.hidden_active and len(self.hidden_active) != len(widths):
            raise ValueError(
                f"hidden_active must have {checks.counted(len(widths), 'entry', 'entries')}, as "
                f"hidden has, not {list(self.hidden_active)}"
            )
        for size in self.hidden_active:
            if size is not None:
                checks.whole("hidden_active", size, 1)
        checks.share("dropout", self.dropout)
        checks.share("input_dropout", self.input_dropout)
        checks.flag("prior_bias", self.prior_bias)
        checks.not_negative("prior_margin", self.prior_margin)
        checks.not_negative("bias_scale", self.bias_scale)
        checks.one_of("precision", self.precision, PRECISIONS)
        checks.positive("init_scale", self.init_scale)
        checks.positive("output_scale", self.output_scale)


class GatheredWeights(NamedTuple):
    """All parameters of a network whose rows several processes share.

    Attributes:
        shapes: by the name that a parameter has in a network of one process.
        blocks: their rows in this order, float32; all processes must go through them.
    """

    shapes: dict[str, tuple[int, ...]]
    blocks: Iterator[Tensor]


class SlideNetwork(nn.Module):
    """Sparse features, hidden layers with ReLU, sampled outputs.

    Its weights are float32, whatever PyTorch's default type is.

    Args:
        hidden: widths of the hidden layers, at least one.
        sampler: makes the sampler of the output layer; called as
            ``sampler(in_features, out_features)``.
        hidden_samplers: make the samplers of the hidden layers, in the same way; None for a layer
            that computes all its neurons. An empty list: all layers compute all neurons. The set of
            a layer depends on the output of the previous layer.
        dropout: probability that training sets a hidden value to 0, in [0, 1).
        precision: of the products of the output layer; see `slide.active_linear`.
        init_scale, output_scale: of the first weights of the first and the last layer.
        input_dropout: share of the features of a sample that training leaves out, in [0, 1); see
            `slide.functional.drop_features`.

    Raises:
        ValueError: for a width, dropout, precision or scale out of range, or samplers that do not
            fit the hidden layers.

    Example:
        >>> from functools import partial
        >>> import numpy as np, slide
        >>> sampler = partial(slide.ActiveSampler, proposer=slide.LSHProposer, active=64)
        >>> network = slide.SlideNetwork(100, [16], 1000, sampler)
        >>> row = slide.CSR(np.array([0, 2]), np.array([3, 70], np.int32), np.ones(2, np.float32))
        >>> scores, ids = network.predict(row, k=5)
        >>> ids.shape
        torch.Size([1, 5])
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        out_features: int,
        sampler: SamplerFactory,
        hidden_samplers: Sequence[SamplerFactory | None] = (),
        dropout: float = NetworkOptions.dropout,
        precision: str = NetworkOptions.precision,
        init_scale: float = NetworkOptions.init_scale,
        output_scale: float = NetworkOptions.output_scale,
        input_dropout: float = NetworkOptions.input_dropout,
    ):
        super().__init__()
        hidden = NetworkOptions(
            hidden,
            dropout=dropout,
            input_dropout=input_dropout,
            precision=precision,
            init_scale=init_scale,
            output_scale=output_scale,
        ).hidden
        makers = list(hidden_samplers) or [None] * len(hidden)
        if len(makers) != len(hidden):
            raise ValueError(f"{len(makers)} hidden samplers do not fit {len(hidden)} layers")
        inputs = [in_features, *hidden[:-1]]
        samplers = [
            make(d, n) if make else None for d, n, make in zip(inputs, hidden, makers, strict=True)
        ]
        self.first = SparseInputLinear(
            in_features, hidden[0], samplers[0], init_scale, dtype=torch.float32
        )
        self.hidden = nn.ModuleList(
            SampledLinear(inputs[i], hidden[i], samplers[i], dtype=torch.float32)
            for i in range(1, len(hidden))
        )
        self.dropout, self.input_dropout = dropout, input_dropout
        self.output = SampledLinear(
            hidden[-1],
            out_features,
            sampler(hidden[-1], out_features),
            precision=precision,
            init_scale=output_scale,
            dtype=torch.float32,
        )

    def encode(self, features: Any) -> Tensor:
        """The last hidden layer ``(B, H)`` of features ``(B, D)``, as `slide.as_csr` takes them."""
        features = as_csr(features, self.first.in_features)
        training = learns(self)
        draws = self._generator() if training else None
        if training:
            features = drop_features(features, self.input_dropout, draws)
        x = self._activate(self.first(features), draws)
        for layer in self.hidden:
            x = self._activate(layer(x), draws)
        return x

    def _generator(self) -> torch.Generator | None:
        """What the dropout of one pass draws from; None: the generator of torch."""
        return None

    def _activate(
        self, activation: Activation | EveryOutput, draws: torch.Generator | None = None
    ) -> Tensor:
        # ReLU and dropout come before `to_dense`, so that they visit only the active values.
        dropout = self.dropout if learns(self) else 0.0
        values = relu_dropout(activation.values, dropout, draws)
        return activation._replace(values=values).to_dense()

    def forward(self, features: Any, labels: Any = None) -> Activation | EveryOutput:
        """Scores of the active outputs; the active set contains ``labels``."""
        return self.output(self.encode(features), labels)

    @torch.no_grad()
    def embed(self, features: Any) -> Tensor:
        """The last hidden layer ``(B, H)`` as prediction uses it: nothing is dropped.

        No module changes its mode, so several threads may predict in training mode, too. Modules of
        PyTorch that a subclass adds to `encode` compute in their own mode: call ``eval()`` first.
        """
        with predicting():
            return self.encode(features)

    @torch.no_grad()
    def predict(self, features: Any, k: int = 5, search: str = "exact") -> tuple[Tensor, Tensor]:
        """Scores and ids of the k best outputs of each sample; see `slide.SampledLinear.top_k`."""
        return self.output.top_k(self.embed(features), k, search)

    def to_torch(self, k: int = 5) -> "TorchTwin":
        """A network of PyTorch alone with copies of all weights, for ``torch.export`` and ONNX.

        Its parameters have the same names: ``network.load_state_dict(twin.state_dict())`` takes
        them back, for example after training on another device.

        It returns k outputs for each sample; ValueError unless k is in [1, number of outputs].
        """
        first, *others = self.layers()
        assert first.bias is not None
        rest = [layer.to_linear() for layer in others]
        return TorchTwin((first.weight, first.bias), rest, k).train(self.training)

    def parameter_groups(
        self, lr: float, input_rate: float, **input_options: Any
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: rate ``lr * input_rate`` for the first layer.

        ``input_options`` are further options of the optimizer for the first layer.

        The others learn at ``lr``. A step touches the weights of a feature only if the feature
        occurs, and a step of Adam has about the same length for small and large gradients. With one
        rate for all layers, the weights of rare features change little.
        """
        checks.positive("lr", lr)
        checks.positive("input_rate", input_rate)
        rest = [*self.hidden.parameters(), *self.output.parameters()]
        first = list(self.first.parameters())
        own = {"params": first, "lr": lr * input_rate, **input_options}
        return [{"params": rest, "lr": lr}, own]

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, input_dropout={self.input_dropout}"

    def layers(self) -> list[SparseInputLinear | SampledLinear]:
        """All layers, from input to output."""
        return [self.first, *self.hidden, self.output]  # type: ignore[list-item]

    # Networks of several processes define these anew.

    def own_rows(self) -> dict[str, np.ndarray] | None:
        """The ids of the rows that this process owns, by layer, int64; None: all of them."""
        return None

    @staticmethod
    def single_name(name: str) -> str:
        """The name of a parameter or buffer in the network of one process."""
        return name

    def gathered_weights(self) -> GatheredWeights | None:
        """The weights of all processes; None: this one has all of them."""
        return None

    def on_main_process(self, group: Any) -> AbstractContextManager[Any]:
        """Inside of it, the first process of a group uses the network with the rows of all.

        The others compute its calls until it leaves. Yields what answers there, None on the others.
        """
        return nullcontext(self)


class TorchTwin(nn.Module):
    """``EmbeddingBag -> ReLU -> (Linear -> ReLU ...) -> Linear -> topk``, on any device.

    It has no sampler and computes all outputs. All of its parts are PyTorch's, so `torch.export`
    and `torch.onnx.export` take it. Its parameters have the names of `slide.SlideNetwork`,
    so each of the two loads the weights of the other.

    Args:
        first: weight ``(D, H)`` and bias ``(H,)`` of the first layer.
        others: the other layers, outputs last; at least one.
        k: outputs that are returned for each sample; ValueError unless it is in [1, N].

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
        self.k = checks.whole_within("k", k, 1, others[-1].out_features)
        self.first = _BagWithBias(*first)
        self.hidden, self.output = nn.ModuleList(others[:-1]), others[-1]

    def forward(self, indptr: Tensor, indices: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The k best outputs of B samples, given as the arrays of a `slide.CSR`.

        ``values`` have the type of the weights. Returns scores and ids (int64), both ``(B, k)``.
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
        sums = embedding_bag(
            *(indices.long(), self.weight, bounds),
            mode="sum",
            per_sample_weights=values,
            include_last_offset=True,
        )
        return sums + self.bias
