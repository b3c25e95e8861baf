"""Backward time where only the hardest quarter of a batch is learnt from, after one forward pass.

Two layers: dense inputs, hidden units with ReLU, sampled outputs. "ours" uses slide's layers,
"torch" ordinary ones with as many outputs as are active. Steps over the whole batch and steps over
its hardest quarter take turns; times are medians. "two passes" selects by a first forward pass
without gradients and runs the quarter alone through a second one.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slide import ActiveLoss, ActiveSampler, Pattern, RowSparseAdam, SampledLinear
from slide.nn import hardest

FRACTION = 0.25
INPUTS, HIDDEN, OUTPUTS = 512, 256, 100_000
BATCH = {"shared": 512, "per_sample": 128}
ACTIVE = {"shared": 4096, "per_sample": 1000}

# A forward pass with a share of the batch kept; returns the loss.
Forward = Callable[[float], Tensor]


class Ours(nn.Module):
    """Two of slide's layers; the first one computes all its units."""

    def __init__(self, mode: str):
        super().__init__()
        sampler = ActiveSampler(HIDDEN, OUTPUTS, active=ACTIVE[mode], mode=mode)
        self.first = SampledLinear(INPUTS, HIDDEN)
        self.output = SampledLinear(HIDDEN, OUTPUTS, sampler)

    def forward(self, x: Tensor, labels: Pattern):
        return self.output(torch.relu(self.first(x).values), labels)


def inputs(mode: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(BATCH[mode], INPUTS), torch.randint(ACTIVE[mode] // 2, (BATCH[mode],))


def ours(mode: str) -> tuple[Forward, torch.optim.Optimizer]:
    x, targets = inputs(mode)
    labels = Pattern(np.arange(len(x) + 1, dtype=np.int64), targets.numpy().astype(np.int32))
    network = Ours(mode)

    def forward(fraction: float) -> Tensor:
        out = network(x, labels)
        return ActiveLoss("softmax", fraction)(out.values, out.active)

    return forward, RowSparseAdam(network.parameters())


def ours_with_own_loss() -> tuple[Forward, torch.optim.Optimizer]:
    """A loss of PyTorch's on the scores of a shared set, which begins with the labels."""
    x, targets = inputs("shared")
    network = Ours("shared")
    labels = Pattern(np.arange(len(x) + 1, dtype=np.int64), targets.numpy().astype(np.int32))

    def forward(fraction: float) -> Tensor:
        out = network(x, labels)
        places = torch.from_numpy(out.active.targets.indices).long()
        losses = F.cross_entropy(out.values, places, reduction="none")
        return hardest(fraction)(losses) if fraction < 1 else losses.mean()

    return forward, RowSparseAdam(network.parameters())


def plain(two_passes: bool) -> tuple[Forward, torch.optim.Optimizer]:
    x, targets = inputs("shared")
    network = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, ACTIVE["shared"])
    )

    def losses(rows: slice | Tensor) -> Tensor:
        return F.cross_entropy(network(x[rows]), targets[rows], reduction="none")

    def forward(fraction: float) -> Tensor:
        if fraction == 1:
            return losses(slice(None)).mean()
        if not two_passes:
            return hardest(fraction)(losses(slice(None)))
        with torch.no_grad():
            hard = losses(slice(None)).topk(round(fraction * len(x))).indices
        return losses(hard).mean()

    return forward, torch.optim.Adam(network.parameters())


CASES = {
    "ours, shared set": lambda: ours("shared"),
    "ours, shared set, loss of PyTorch": ours_with_own_loss,
    "ours, sets per sample": lambda: ours("per_sample"),
    "torch": lambda: plain(two_passes=False),
    "torch, two passes": lambda: plain(two_passes=True),
}


def measure(name: str, repeats: int) -> dict[str, object]:
    """Median milliseconds of the parts of a step, for the whole batch and for its hard part."""
    forward, optimizer = CASES[name]()
    times: dict[tuple[str, float], list[float]] = {}
    for i in range(repeats + 3):
        for fraction in (1.0, FRACTION):
            marks = [time.perf_counter()]
            loss = forward(fraction)
            marks.append(time.perf_counter())
            loss.backward()
            marks.append(time.perf_counter())
            optimizer.step()
            marks.append(time.perf_counter())
            optimizer.zero_grad()
            if i >= 3:
                for part, begin, end in zip(
                    ("forward", "backward", "update"), marks[:-1], marks[1:], strict=True
                ):
                    times.setdefault((part, fraction), []).append(1e3 * (end - begin))
    ms = {key: statistics.median(values) for key, values in times.items()}
    return {
        "case": name,
        "batch": BATCH["per_sample" if "per sample" in name else "shared"],
        "forward_ms": round(ms["forward", 1], 2),
        "hard_forward_ms": round(ms["forward", FRACTION], 2),
        "backward_ms": round(ms["backward", 1], 2),
        "hard_backward_ms": round(ms["backward", FRACTION], 2),
        "backward_ratio": round(ms["backward", FRACTION] / ms["backward", 1], 3),
        "update_ms": round(ms["update", 1], 2),
        "hard_update_ms": round(ms["update", FRACTION], 2),
    }


def rows(repeats: int = 60) -> list[dict[str, object]]:
    return [measure(name, repeats) for name in CASES]
