"""What the MNIST examples share: the digits as tensors, a sampled MLP, a training loop, a table."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from slide import ActiveSampler, LSHProposer, RowSparseAdam, SampledLinear
from slide.config import open_dataset, read_config
from slide.data import SparseDataset, Split, mnist

PROPOSERS = {"lsh": LSHProposer, "uniform": None}
TITLES = "neurons", "in training", "in the test", "seconds", "accuracy %"


def parser(text: str, sampler: str, epochs: int, lr: float) -> argparse.ArgumentParser:
    """The command-line options of an example."""
    made = argparse.ArgumentParser(description=text)
    made.add_argument("--data", type=Path, help="folder of MNIST's four files; else fetched")
    made.add_argument("--sampler", choices=PROPOSERS, default=sampler, help="what chooses neurons")
    made.add_argument("--share", type=float, default=0.2, help="of hidden neurons in a step")
    made.add_argument("--epochs", type=int, default=epochs)
    made.add_argument("--lr", type=float, default=lr, help="learning rate of the sampled network")
    made.add_argument("--limit", type=int, help="train and evaluate on this number of images only")
    made.add_argument("--validate", action="store_true", help="on 10,000 training images, not test")
    return made


def digits(options: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    """The training and the test set, as images ``(n, 784)`` float32 and classes ``(n,)`` int64."""
    data = _open(options.data)
    train, test = _dense(data.train), _dense(data.test)
    if options.validate:
        held = len(train[0]) // 6
        train, test = tuple(t[:-held] for t in train), tuple(t[-held:] for t in train)
    return [tuple(t[: options.limit] for t in split) for split in (train, test)]  # type: ignore


def _open(folder: Path | None) -> SparseDataset:
    if folder is None:
        return open_dataset(read_config(["dataset=mnist"]))
    return mnist(name="mnist", root=folder, cache=Path("datasets") / "mnist" / "cache")


def _dense(split: Split) -> tuple[Tensor, Tensor]:
    images = np.zeros((len(split), split.num_features), np.float32)
    rows = np.repeat(np.arange(len(split)), np.diff(split.features.indptr))
    images[rows, split.features.indices] = split.features.values
    return torch.from_numpy(images), torch.from_numpy(split.labels.indices.astype(np.int64))


class SampledMLP(nn.Module):
    """Two layers with a ReLU between them; a training step computes a share of the hidden neurons.

    The second layer reads only the columns of the computed neurons. Randomly drawn neurons get a
    larger weight, so that sums over the active set estimate sums over all neurons.

    Args:
        sizes: numbers of inputs, hidden neurons and outputs.
        sampler: one of `PROPOSERS`.
        share: share of the hidden neurons in an active set.

    Attributes:
        sparse: whether ``eval()`` uses only that share of the neurons, those with the largest
            outputs for each sample, instead of all.
    """

    def __init__(self, sizes: tuple[int, int, int], sampler: str, share: float):
        super().__init__()
        inputs, hidden, outputs = sizes
        self.active = max(1, round(share * hidden))
        chooser = ActiveSampler(inputs, hidden, PROPOSERS[sampler], active=self.active)
        self.up, self.down = SampledLinear(inputs, hidden, chooser), nn.Linear(hidden, outputs)
        self.sparse = False

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out = self.up(flat)  # In ``eval()`` a tensor, which has the same attributes.
        values, active = out.values, out.active
        columns = self.down.weight.index_select(1, torch.from_numpy(active.ids))
        values = torch.relu(values)
        if self.sparse and not self.training:
            best = values.topk(self.active)
            values = torch.zeros_like(values).scatter_(1, best.indices, best.values)
        if active.log_weights is not None:
            values = values * torch.from_numpy(active.log_weights).exp()
        return F.linear(values, columns, self.down.bias).unflatten(0, x.shape[:-1])


def dense_mlp(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """The same network in plain PyTorch."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def train(model: nn.Module, images: Tensor, classes: Tensor, epochs: int, lr: float) -> float:
    """Train with a learning rate that falls to zero; return the seconds that it took."""
    sampled = any(isinstance(module, SampledMLP) for module in model.modules())
    optimizer: torch.optim.Optimizer = (
        RowSparseAdam(model.parameters(), lr=lr)  # Takes dense gradients, too.
        if sampled
        else torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    )
    batches = -(-len(images) // 128)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, epochs * batches)
    start = time.perf_counter()
    for _ in tqdm(range(epochs), "sampled" if sampled else "dense", disable=None):
        for rows in torch.randperm(len(images)).split(128):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), classes[rows]).backward()
            optimizer.step()
            schedule.step()
    return time.perf_counter() - start


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, classes: Tensor, sparse: bool = False) -> float:
    """The percentage of images whose class has the highest score."""
    model.eval()
    for module in model.modules():
        if isinstance(module, SampledMLP):
            module.sparse = sparse
    found = torch.cat([model(batch).argmax(1) for batch in images.split(128)])
    return 100 * (found == classes).float().mean().item()


def compare(dense: nn.Module, sampled: nn.Module, options: argparse.Namespace) -> list[dict]:
    """Train both networks; print a table of training time and test accuracy.

    Returns:
        The rows of the table.
    """
    (images, classes), test = digits(options)
    taken = train(dense, images, classes, options.epochs, 1e-3)
    results = [("dense", "all", "all", taken, accuracy(dense, *test))]
    taken, share = train(sampled, images, classes, options.epochs, options.lr), options.share
    for tested in ("all", f"{share:.0%}"):
        score = accuracy(sampled, *test, sparse=tested != "all")
        results.append((options.sampler, f"{share:.0%}", tested, taken, score))
    print("".join(f"{title:>13}" for title in TITLES))
    for name, trained, tested, seconds, score in results:
        print(f"{name:>13}{trained:>13}{tested:>13}{seconds:13.1f}{score:13.2f}")
    return [dict(zip(TITLES, row, strict=True)) for row in results]
