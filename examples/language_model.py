"""A small language model whose embedding and output layer share one weight, in a plain loop.

    python examples/language_model.py --help

A line of text is a sample. A GRU reads its words, and the output layer scores the next word. In
training it computes a set of the words: those that come next, and draws that stand for the others.
`RowSparseAdam` owns all weights, so the sparse gradient of the embedding and the rows of the output
layer add up in the weight that both have (Press and Wolf 2017, "Using the output embedding to
improve language models", section 3). Without ``--text`` the lines are made up, and each word is
followed by one of two.
"""

import argparse
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from slide import ActiveSampler, RowSparseAdam, SampledLinear


class LanguageModel(nn.Module):
    """The words of lines ``(B, T)`` to hidden states ``(B, T, size)``, for `output`.

    Args:
        words: number of words.
        size: width of embedding, GRU and output layer.
        active: number of words that a training step computes scores of.
    """

    def __init__(self, words: int, size: int, active: int):
        super().__init__()
        self.embedding = nn.Embedding(words, size, sparse=True)
        self.body = nn.GRU(size, size, batch_first=True)
        self.output = SampledLinear(size, words, ActiveSampler(size, words, active=active))
        self.embedding.weight = self.output.weight

    def forward(self, lines: Tensor) -> Tensor:
        return self.body(self.embedding(lines))[0]


def batch(lines: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Words and the words after them, ``(B, T)``; -100 where a line has ended."""
    tensors = [torch.tensor(line) for line in lines]
    words = pad_sequence([line[:-1] for line in tensors], batch_first=True)
    return words, pad_sequence([line[1:] for line in tensors], batch_first=True, padding_value=-100)


@torch.no_grad()
def perplexity(model: LanguageModel, lines: list[list[int]]) -> float:
    """The exponential of the mean cross-entropy over all words of the vocabulary."""
    model.eval()  # Then the output layer gives the scores of all words, as a tensor.
    words, following = batch(lines)
    scores = model.output(model(words).flatten(0, 1))
    return cross_entropy(scores, following.flatten()).exp().item()


def made_up(count: int, words: int) -> list[list[str]]:
    draw, found = random.Random(0), []
    for _ in range(count):
        line = [draw.randrange(words)]
        while len(line) < draw.randint(8, 16):
            line.append((line[-1] * 3 + draw.randint(1, 2)) % words)
        found.append([f"word{word}" for word in line])
    return found


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    made = argparse.ArgumentParser(description="A language model with tied weights.")
    made.add_argument("--text", type=Path, help="a file, one sample a line; else made up")
    made.add_argument("--words", type=int, default=3000, help="of a made up text")
    made.add_argument("--lines", type=int, default=4000, help="of a made up text")
    made.add_argument("--active", type=int, default=256, help="words of a training step")
    made.add_argument("--epochs", type=int, default=5)
    options = made.parse_args(arguments)
    if options.text is None:
        texts = made_up(options.lines, options.words)
    else:
        texts = [line.split() for line in options.text.read_text(encoding="utf-8").splitlines()]
        texts = [line for line in texts if len(line) > 1]
    numbers = {word: i for i, word in enumerate(dict.fromkeys(w for line in texts for w in line))}
    lines = [[numbers[word] for word in line] for line in texts]
    held = lines[-max(1, len(lines) // 10) :]
    lines = lines[: -len(held)]

    torch.manual_seed(0)
    model = LanguageModel(len(numbers), 64, options.active)
    optimizer = RowSparseAdam(model.parameters(), lr=5e-3)
    before = perplexity(model, held)
    for epoch in range(options.epochs):
        model.train()
        for rows in torch.randperm(len(lines)).split(32):
            words, following = batch([lines[row] for row in rows])
            loss, _ = model.output.loss(model(words), following, "softmax")
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        after = perplexity(model, held)
        print(f"epoch {epoch + 1}: held-out perplexity {after:.1f} of {len(numbers)} words")
    return before, after


if __name__ == "__main__":
    main()
