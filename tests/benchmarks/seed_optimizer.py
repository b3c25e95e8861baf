"""Training a sampled layer with all outputs active, against training ``nn.Linear``.

Each optimizer that takes the gradients of slide's layers, in either form, beside PyTorch's for
dense ones, on the same batches: the largest difference of a weight or bias, as a share of the
largest one. Then the time of an update with 4,096 of 100,000 outputs active.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from slide import ActiveSampler, RowSparseAdam, SampledLinear

INPUTS, OUTPUTS, BATCH, STEPS = 32, 50, 16, 50
LARGE, ACTIVE, REPEATS = 100_000, 4096, 20
Optimizer = Callable[..., torch.optim.Optimizer]
# Whether gradients come as sparse tensors, the optimizer, and its dense counterpart.
CASES: dict[str, tuple[bool, Optimizer, Optimizer]] = {
    "RowSparseAdam": (False, RowSparseAdam, torch.optim.Adam),
    "SparseAdam": (True, torch.optim.SparseAdam, torch.optim.Adam),
    "SGD": (True, torch.optim.SGD, torch.optim.SGD),
    "Adagrad": (True, torch.optim.Adagrad, torch.optim.Adagrad),
}


def train(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        out = layer(torch.randn(BATCH, INPUTS, generator=draw))
        target = torch.randn(BATCH, OUTPUTS, generator=draw)
        optimizer.zero_grad()
        ((out if isinstance(out, torch.Tensor) else out.values) - target).square().sum().backward()
        optimizer.step()


def difference(sparse_grad: bool, ours: Optimizer, dense: Optimizer) -> float:
    """Of the parameters after training, relative to the largest."""
    torch.manual_seed(0)
    layer, twin = (
        SampledLinear(INPUTS, OUTPUTS, sparse_grad=sparse_grad),
        nn.Linear(INPUTS, OUTPUTS),
    )
    twin.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    train(layer, ours(layer.parameters(), lr=1e-3))
    train(twin, dense(twin.parameters(), lr=1e-3))
    apart = [
        ((a - b).abs().max() / b.abs().max()).item()
        for a, b in zip(layer.parameters(), twin.parameters(), strict=True)
    ]
    return max(apart)


def update_ms(sparse_grad: bool, make: Optimizer) -> float:
    """Median time of an update of some rows of a large layer."""
    sampler = ActiveSampler(INPUTS, LARGE, active=ACTIVE)
    layer = SampledLinear(INPUTS, LARGE, sampler, sparse_grad=sparse_grad)
    optimizer, times = make(layer.parameters(), lr=1e-3), []
    for _ in range(REPEATS):
        optimizer.zero_grad()
        layer(torch.randn(BATCH, INPUTS)).values.sum().backward()
        begin = time.perf_counter()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def rows() -> list[dict]:
    """One row an optimizer."""
    return [
        {
            "case": name,
            "gradient": "sparse tensor" if case[0] else "rows",
            "difference": float(f"{difference(*case):.1e}"),
            "update_ms": round(update_ms(*case[:2]), 2),
        }
        for name, case in CASES.items()
    ]
