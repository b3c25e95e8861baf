"""Word vectors by skip-gram, with every word of the vocabulary as an output.

    python examples/word2vec.py --help

A word's vector predicts the words around it (Mikolov et al. 2013, "Distributed representations of
words and phrases and their compositionality", section 2) by a softmax over the vocabulary. Each
step estimates this softmax from a few thousand words. The table compares the time of a step with
that of a network with PyTorch's output layer, which is timed for a few steps but not trained.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from slide import (
    ActiveLoss,
    ActiveSampler,
    LSHProposer,
    RowSparseAdam,
    SampledLinear,
    SparseInputLinear,
)
from slide.config import open_dataset, read_config
from slide.data import Batch, Batches, Split, text, xmc

PROPOSERS = {"lsh": LSHProposer, "uniform": None}
LOSS = ActiveLoss("softmax")
# Number of frequent words among which neighbours are searched; steps that time the dense layer.
FREQUENT, DENSE = 20_000, 5
TITLES = "output layer", "outputs a step", "ms a step", "times faster"


def open_text(path: Path | None) -> tuple[Split, Split, list[str]]:
    """Skip-grams for training, skip-grams for the test, and the words by id."""
    cache = Path("datasets", "text", "cache")
    if path is None:
        data = open_dataset(read_config(["dataset=text"]))
    elif path.is_file():
        data = text(name="text", root=path.parent, file=path.name, cache=cache)
    else:
        data = xmc(name="skip-grams", root=path, cache=cache)
    folder = path if path and path.is_dir() else data.folder
    assert folder is not None
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return data.train, data.test, [line.split()[0] for line in lines]


class SkipGram(nn.Module):
    """A vector for each word, and an output layer over all words.

    Args:
        num_words: size of the vocabulary.
        size: length of the vectors.
        output: a sampled or a dense layer of ``size`` inputs and ``num_words`` outputs.
    """

    def __init__(self, num_words: int, size: int, output: SampledLinear | nn.Linear):
        super().__init__()
        self.vectors, self.output = SparseInputLinear(num_words, size), output

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy with equal shares for all words around a word; exact in ``eval()``."""
        x, labels = self.vectors(batch.features).values, batch.labels
        if self.training and isinstance(self.output, SampledLinear):
            return self.output.loss(x, labels, LOSS)[0]
        out = self.output(x)
        logs = F.log_softmax(out if isinstance(out, Tensor) else out.values, 1)
        counts = torch.from_numpy(labels.indptr).diff()
        targets = torch.repeat_interleave(counts), torch.from_numpy(labels.indices).long()
        return -(logs[targets] / counts[targets[0]]).sum() / len(x)


def train(model: SkipGram, batches: Batches, steps: int, lr: float) -> float:
    """Train; return the mean seconds of a step, without the first one."""
    optimizers: list[torch.optim.Optimizer] = [RowSparseAdam(model.parameters(), lr=lr)]
    if isinstance(model.output, nn.Linear):
        dense = torch.optim.Adam(model.output.parameters(), lr=lr, fused=True)
        optimizers = [RowSparseAdam(model.vectors.parameters(), lr=lr), dense]
    falling = [torch.optim.lr_scheduler.LinearLR(o, 1, 0.01, steps) for o in optimizers]
    model.train()
    start = time.perf_counter()
    for step in tqdm(range(steps), type(model.output).__name__, disable=None):
        if step == 1:  # The first step compiles kernels and allocates moments.
            start = time.perf_counter()
        model.loss(batches.batch(*divmod(step, len(batches)))).backward()
        for part in (*optimizers, *falling):
            part.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return (time.perf_counter() - start) / max(1, steps - 1)


@torch.no_grad()
def log_loss(model: SkipGram, split: Split) -> float:
    """The mean loss over all words of the vocabulary."""
    model.eval()
    batches = Batches(split, 128, seed=0, shuffle=False).epoch(0)
    return sum(model.loss(batch).item() * len(batch.rows) for batch in batches) / len(split)


def neighbours(vectors: Tensor, words: list[str], asked: list[str]) -> None:
    """Print the words whose vectors have the smallest angles to those of the given words."""
    rows, words = F.normalize(vectors - vectors.mean(0)), words[: len(vectors)]
    for word in asked:
        if word in words:
            order = (rows @ rows[words.index(word)]).argsort(descending=True)
            print(f"{word:>12}: {', '.join(words[i] for i in order[1:9])}")


def main(arguments: list[str] | None = None) -> list[dict]:
    made = argparse.ArgumentParser(description="Word vectors by a sampled output layer.")
    made.add_argument("--data", type=Path, help="a text, or a folder of skip-grams; else text8")
    made.add_argument("--sampler", choices=PROPOSERS, default="lsh", help="what chooses outputs")
    made.add_argument("--active", type=int, default=4096, help="outputs in a step")
    made.add_argument("--size", type=int, default=128, help="of a word's vector")
    made.add_argument("--batch", type=int, default=512, help="words in a step")
    made.add_argument("--epochs", type=int, default=2)
    made.add_argument("--lr", type=float, default=2e-3)
    made.add_argument("--limit", type=int, help="train on this number of words only")
    made.add_argument("--words", nargs="+", default=["sea", "mother", "three", "winter", "monday"])
    options = made.parse_args(arguments)
    torch.manual_seed(0)
    learnt, others, words = open_text(options.data)
    learnt = learnt.slice(0, min(options.limit or len(learnt), len(learnt)))
    others, batches = others.slice(0, min(1024, len(others))), Batches(learnt, options.batch, 0)
    size, count = options.size, len(words)
    proposer = PROPOSERS[options.sampler]
    chooser = ActiveSampler(size, count, proposer, active=options.active)
    model = SkipGram(count, size, SampledLinear(size, count, chooser))
    with torch.no_grad():  # The first prediction of each word is its frequency.
        model.output.bias.copy_(LOSS.prior_scores(learnt.labels, count))
    before = log_loss(model, others)
    sampled = train(model, batches, options.epochs * len(batches), options.lr)
    after = log_loss(model, others)
    print(f"exact loss of {len(others):,} other words: {before:.3f}, after training {after:.3f}")
    neighbours(model.vectors.weight.detach()[:FREQUENT], words, options.words)
    del model
    dense = train(SkipGram(count, size, nn.Linear(size, count)), batches, 1 + DENSE, options.lr)
    active = min(options.active, count)
    results = [
        (options.sampler, active, 1e3 * sampled, dense / sampled),
        ("dense", count, 1e3 * dense, 1.0),
    ]
    print("".join(f"{title:>16}" for title in TITLES))
    for name, outputs, ms, faster in results:
        print(f"{name:>16}{outputs:16,}{ms:16.2f}{faster:16.1f}")
    return [dict(zip(TITLES, row, strict=True)) for row in results]


if __name__ == "__main__":
    main()
