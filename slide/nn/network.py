"""A network from sparse features to sampled outputs, and prediction with it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slide.functional import drop_features, relu_dropout
from slide.nn.activation import Activation
from slide.nn.predicting import learns, predicting
from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_input_linear import SparseInputLinear
from slide.nn.torch_twin import TorchTwin
from slide.sampling import Sampler
from slide.sparse import as_csr
from slide.utils import checks

SamplerFactory = Callable[[int, int], Sampler]


class SlideNetwork(nn.Module):
    """Sparse features, hidden layers with ReLU, sampled outputs.

    Args:
        in_features: number of features.
        hidden: widths of the hidden layers, at least one.
        out_features: number of outputs (labels).
        sampler: makes the sampler of the output layer; called as
            ``sampler(in_features, out_features)``.
        hidden_samplers: make the samplers of the hidden layers, in the same way; None for a layer
            that computes all its neurons. An empty list: all layers compute all neurons. The set of
            a layer depends on the output of the previous layer.
        dropout: probability that training sets a hidden value to 0, in [0, 1).
        precision: precision of the products of the output layer; see `slide.active_linear`.
        init_scale: scale of the weights of the first layer; see `slide.SparseInputLinear`.
        output_scale: scale of the first weights of the output layer; see `slide.SampledLinear`.
        input_dropout: share of the features of a row that training leaves out, in [0, 1); see
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
        dropout: float = 0.0,
        precision: str = "float32",
        init_scale: float = 1.0,
        output_scale: float = 1.0,
        input_dropout: float = 0.0,
    ):
        super().__init__()
        checks.listing("hidden", hidden)
        if not hidden:
            raise ValueError("hidden must name at least one width, such as [128], not []")
        hidden = [checks.whole("hidden", width, 1) for width in hidden]
        checks.share("dropout", dropout)
        checks.share("input_dropout", input_dropout)
        checks.positive("output_scale", output_scale)
        samplers = list(hidden_samplers) or [None] * len(hidden)
        if len(samplers) != len(hidden):
            raise ValueError(f"{len(samplers)} hidden samplers do not fit {len(hidden)} layers")

        def layer_sampler(i: int, inputs: int) -> Sampler | None:
            factory = samplers[i]
            return factory(inputs, hidden[i]) if factory else None

        first_sampler = layer_sampler(0, in_features)
        self.first = SparseInputLinear(in_features, hidden[0], first_sampler, init_scale)
        self.hidden = nn.ModuleList(
            SampledLinear(hidden[i - 1], hidden[i], layer_sampler(i, hidden[i - 1]))
            for i in range(1, len(hidden))
        )
        self.dropout, self.input_dropout = dropout, input_dropout
        self.output = SampledLinear(
            *(hidden[-1], out_features, sampler(hidden[-1], out_features)),
            precision=precision,
            init_scale=output_scale,
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

    def _activate(self, activation: Activation, draws: torch.Generator | None = None) -> Tensor:
        # ReLU and dropout come before `to_dense`, so that they visit only the active values.
        dropout = self.dropout if learns(self) else 0.0
        values = relu_dropout(activation.values, dropout, draws)
        return activation._replace(values=values).to_dense()

    def forward(self, features: Any, labels: Any = None) -> Activation:
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
        """Scores and ids of the k best outputs of each row; see `slide.SampledLinear.top_k`."""
        return self.output.top_k(self.embed(features), k, search)

    def keep_rows_on_host(self) -> "SlideNetwork":
        """Keep the rows of features and of outputs on the CPU wherever the network is moved.

        A step brings the rows that it uses to the device; see ``host_rows`` of
        `slide.SampledLinear`.

        Returns:
            The network.

        Raises:
            ValueError: for a first layer whose sampler has a proposer, for ``sparse_grad``, or on
                another device than the CPU.

        Example:
            >>> import slide
            >>> network = slide.SlideNetwork(100, [16], 1000, slide.FullSampler)
            >>> network = network.keep_rows_on_host().to("meta")
            >>> network.output.weight.device, network.first.bias.device
            (device(type='cpu'), device(type='meta'))
        """
        for layer in (self.first, self.output):
            layer.keep_rows_on_host()
        return self

    def to_torch(self, k: int = 5) -> TorchTwin:
        """A plain PyTorch network with copies of all weights, for ``torch.export`` and ONNX.

        Its parameters have the same names: ``network.load_state_dict(twin.state_dict())`` takes
        them back, for example after training on another device.

        Args:
            k: number of outputs that it returns for each row.

        Raises:
            ValueError: if k is not in [1, number of outputs].
        """
        first, *others = self.layers()
        assert first.bias is not None
        rest = [layer.to_linear() for layer in others]
        return TorchTwin((first.weight, first.bias), rest, k).train(self.training)

    def parameter_groups(self, lr: float, input_rate: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer.

        The first layer learns at the rate ``lr * input_rate``, the others at ``lr``. A step touches
        the weights of a feature only if the feature occurs, and a step of Adam has about the same
        length for small and large gradients. With one rate for all layers, the weights of rare
        features change little.

        Args:
            lr: learning rate, above 0.
            input_rate: learning rate of the first layer as a multiple of ``lr``, above 0.
        """
        checks.positive("lr", lr)
        checks.positive("input_rate", input_rate)
        rest = [*self.hidden.parameters(), *self.output.parameters()]
        first = list(self.first.parameters())
        return [{"params": rest, "lr": lr}, {"params": first, "lr": lr * input_rate}]

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, input_dropout={self.input_dropout}"

    def layers(self) -> list[SparseInputLinear | SampledLinear]:
        """All layers, from input to output."""
        return [self.first, *self.hidden, self.output]  # type: ignore[list-item]
