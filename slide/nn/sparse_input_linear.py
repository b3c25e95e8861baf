"""A linear layer with sparse input."""

import math

import torch
from torch import nn

from slide import checks
from slide import functional as F
from slide.active_set import transpose
from slide.nn.activation import Activation
from slide.nn.sampled_layer import SampledLayer
from slide.runtime import untraced
from slide.sampling.sampling import Sampler
from slide.scratch import Scratch
from slide.sparse import CSR, Pattern, check_pattern


class SparseInputLinear(SampledLayer):
    """A linear layer with sparse input: the weighted sum of one weight row a non-zero feature.

    With a sampler only the chosen outputs go on; the others count as zero, and so does their
    gradient. All of them are computed even so: a feature's weights lie side by side, and reading
    a thousand of them in one run costs no more than picking a quarter of them apart.

    Args:
        in_features: D.
        out_features: H.
        sampler: chooses among H outputs; None takes all.
        init_scale: about the length of the output for an input of length 1, at first. Features that
            are seen seldom or never keep what they got then: a small number makes them count less.
        sparse_grad: whether the weight's gradient is a sparse tensor in its ``grad``, rather than
            rows for `slide.RowSparseAdam`. The bias has a dense one.

    Raises:
        ValueError: for a number out of range, or a sampler with another number of outputs.

    Attributes:
        weight: ``(D, H)``, normal with standard deviation init_scale/sqrt(H) at first.
        bias: ``(H,)``, zero at first.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sampler: Sampler | None = None,
        init_scale: float = 1.0,
        sparse_grad: bool = False,
    ):
        super().__init__(in_features, out_features, sampler, sparse_grad)
        checks.positive("init_scale", init_scale)
        weight = torch.empty(in_features, out_features)
        self.weight = nn.Parameter(weight.normal_(0, init_scale / math.sqrt(out_features)))
        self.bias = nn.Parameter(torch.zeros(out_features))
        self._scratch = Scratch(in_features)

    @untraced
    def forward(self, x: CSR) -> Activation:
        """The outputs of the active set of a CSR matrix ``(B, D)``; in ``eval()``, all H.

        Raises:
            ValueError: for a column out of range, or a malformed matrix.
        """
        check_pattern("features", x, None, self.in_features)
        grouped = None
        if torch.is_grad_enabled() and self.weight.requires_grad:
            grouped = transpose(Pattern(x.indptr, x.indices), self._scratch)
        active = self._choose(x, self.weight.T, None)
        values = F.sparse_linear(x, self.weight, self.bias, grouped, self.sparse_grad)
        return Activation(F.gather_active(values, active), active, x.num_rows)
