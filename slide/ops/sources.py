"""Kernels of data sources: synthetic rows, and the subsampling of the words of a text."""

import math

import numpy as np

from slide.ops.compile import helper, serial
from slide.ops.random import random_bits


@serial
def draw_labels(first, steps, num_clusters, num_labels, indptr, ranks):
    """Chooses the labels of each row: the given first one, and others near it in its cluster.

    Cluster ``c`` holds the labels ``c, c + num_clusters, ...`` by popularity; a label that the row
    has already gives way to the next. first (B,), steps (nnz,) int64, distances in the cluster;
    ranks (nnz,) int32, written.
    """
    for row in range(len(first)):
        begin = indptr[row]
        cluster = first[row] % num_clusters
        size = (num_labels - cluster + num_clusters - 1) // num_clusters
        origin = first[row] // num_clusters
        ranks[begin] = first[row]
        for k in range(begin + 1, indptr[row + 1]):
            # Reflected at the popular end and cut at the other end: a wrap would make the rarest
            # labels the neighbours of the most popular ones.
            position = min(abs(origin + steps[k]), size - 1)
            label = cluster + position * num_clusters
            earlier = begin
            while earlier < k:
                if ranks[earlier] == label:
                    position = (position + 1) % size
                    label = cluster + position * num_clusters
                    earlier = begin
                else:
                    earlier += 1
            ranks[k] = label


@helper
def _weigh_row(begin, end, idf, names, positions, indices, values):
    """Turns the ranks and counts of a row into columns and weights of L2 norm 1."""
    total = 0.0
    for k in range(begin, end):
        rank = indices[k]
        positions[rank] = -1
        indices[k] = names[rank]
        weight = (1.0 + math.log(values[k])) * idf[rank]
        values[k] = weight
        total += weight * weight
    scale = 1.0 / math.sqrt(total)
    for k in range(begin, end):
        values[k] *= scale


@serial
def draw_features(
    label_indptr, label_ranks, prototypes, pick, slot, common, noise, idf, names, positions,
    indptr, indices, values,
):  # fmt: skip
    """Chooses the features of each row: from its labels' prototypes, or by popularity.

    If the row already has a feature of a prototype, its count rises, and the position goes to a
    feature by popularity. label_indptr, label_ranks: labels of rows; prototypes (labels, P) int32;
    pick (nnz,) in [0, 1), by popularity below noise; slot (nnz,) in [0, P); common (nnz,) int32 by
    popularity; idf, names (F,) of each rank; positions (F,) int64 scratch of -1; indices, values
    (nnz,), written.
    """
    num_features = len(names)
    for row in range(len(indptr) - 1):
        begin = indptr[row]
        end = indptr[row + 1]
        first_label = label_indptr[row]
        num_labels = label_indptr[row + 1] - first_label
        for k in range(begin, end):
            rank = common[k]
            if pick[k] >= noise:
                which = int((pick[k] - noise) / (1.0 - noise) * num_labels)
                label = label_ranks[first_label + min(which, num_labels - 1)]
                wanted = prototypes[label, slot[k]]
                if positions[wanted] < 0:
                    rank = wanted
                else:
                    values[positions[wanted]] += 1.0
            while positions[rank] >= 0:
                rank = rank + 1 if rank + 1 < num_features else 0
            positions[rank] = k
            indices[k] = rank
            values[k] = 1.0
        _weigh_row(begin, end, idf, names, positions, indices, values)


_S11 = np.uint64(11)


@serial
def subsample_words(words, first, key, keep, out):
    """Copy each word i whose draw, of the counter ``first + i``, is below its ``keep`` ``(V,)``.

    Returns how many words ``(n,)`` int32 stay.
    """
    kept = 0
    for i in range(len(words)):
        word = words[i]
        if word >= 0:
            uniform = np.float64(random_bits(key, first + i) >> _S11) * 2.0**-53
            if uniform < keep[word]:
                out[kept] = word
                kept += 1
    return kept
