"""Looped twins of the skip-grams of a text, and random texts."""

import math
from collections import Counter

import numpy as np

from slide.ops.kernels.random import random_bits
from slide.utils.random_keys import random_key


def uniform(key, counter):
    """A random number in [0, 1)."""
    return (int(random_bits(np.uint64(key), counter)) >> 11) / 2**53


def naive_vocabulary(content, min_count=1, max_vocabulary=None):
    counts = Counter(content.split())
    order = sorted(counts, key=lambda word: (-counts[word], word))[:max_vocabulary]
    return [(word, counts[word]) for word in order if counts[word] >= min_count]


def naive_rows(part, vocabulary, window=2, subsample=0.0, seed=0, stream=0):
    ids = {word: i for i, (word, _) in enumerate(vocabulary)}
    total = sum(count for _, count in vocabulary)
    key = random_key(seed, stream)
    kept = []
    for number, word in enumerate(part.split()):
        if word in ids:
            frequency = vocabulary[ids[word]][1] / total
            stays = math.sqrt(subsample / frequency) if subsample else 1
            if uniform(key, number) < stays:
                kept.append(ids[word])
    rows = []
    for i, centre in enumerate(kept):
        around = kept[max(0, i - window) : i] + kept[i + 1 : i + 1 + window]
        if around:
            rows.append((centre, sorted(set(around))))
    return rows


def naive_border(content, test_share):
    data = content.encode()
    border = round(len(data) * (1 - test_share))
    while border < len(data) and not data[border : border + 1].isspace():
        border += 1
    return border


def random_text(seed, words=3000, distinct=60):
    rng = np.random.default_rng(seed)
    drawn = (distinct * rng.random(words) ** 3).astype(int)
    spaces = rng.choice([" ", "  ", "\n", "\t", "\r\n", " \n\n"], words)
    names = [f"w{i}" if i % 3 else f"wörter{i}" for i in range(distinct)]
    return "".join(names[i] + space for i, space in zip(drawn, spaces, strict=True))
