"""Splits, data sets, batches, and what `describe` counts."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern
from helpers.naive_rows import to_lists
from helpers.splits import assert_types, make_split, rows, split_of

from slide.data import Batches, SparseDataset, Split, fingerprint, holdout
from slide.data.describe import describe


def test_split_refuses_parts_of_different_length():
    split = make_split()
    with pytest.raises(ValueError, match="features have 23 rows, labels 22"):
        Split(split.features, split.slice(0, 22).labels, 50, 30)


@pytest.mark.parametrize(("start", "stop"), [(0, 23), (0, 0), (7, 23), (23, 23)])
def test_slice_is_a_view_of_rows(start, stop):
    split = make_split()
    part = split.slice(start, stop)
    assert_types(part)
    assert part.features.indptr[0] == part.labels.indptr[0] == 0
    assert rows(part) == rows(split)[start:stop]
    if len(part.features.values):
        assert np.shares_memory(part.features.values, split.features.values)
    for bad in ((-1, 3), (4, 3), (0, 24)):
        with pytest.raises(IndexError, match=rf"\[{bad[0]}, {bad[1]}\) are not within \[0, 23\)"):
            split.slice(*bad)


@pytest.mark.parametrize("order", [[], [22, 0, 5, 5], list(range(23))])
def test_take_copies_rows_in_order(order):
    split = make_split()
    part = split.take(np.array(order, np.int64))
    assert_types(part)
    assert rows(part) == [rows(split)[i] for i in order]
    assert not np.shares_memory(part.features.values, split.features.values)
    for bad in (-1, 23):
        with pytest.raises(IndexError, match=rf"row {bad} is not in \[0, 23\)"):
            split.take(np.array([0, bad]))


@pytest.mark.parametrize(("fraction", "size"), [(0.25, 6), (0.001, 1), (0.999, 22)])
def test_holdout_divides_the_rows(fraction, size):
    split = make_split()
    rest, aside = holdout(split, fraction, seed=1)
    assert len(aside) == size
    assert sorted(rows(rest) + rows(aside)) == sorted(rows(split))
    again = holdout(split, fraction, seed=1)
    assert [rows(part) for part in again] == [rows(rest), rows(aside)]
    assert rows(holdout(split, 0.5, seed=1)[1]) != rows(holdout(split, 0.5, seed=2)[1])


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan")])
def test_holdout_checks_the_fraction(fraction):
    with pytest.raises(ValueError, match=r"fraction must be in \(0, 1\)"):
        holdout(make_split(), fraction, seed=0)
    with pytest.raises(ValueError, match="1 training row cannot be divided"):
        holdout(make_split(1), 0.5, seed=0)


@pytest.mark.parametrize(("rows", "entries"), [(1, 10), (5, 1000), (1000, 12), (1000, 1), (99, 99)])
def test_blocks_are_all_rows_in_order_and_bounded(rows, entries):
    rng = np.random.default_rng(3)
    features = make_csr(rng, rng.integers(0, 20, 50), 40)
    split = Split(features, make_pattern(rng, rng.integers(0, 8, 50), 12), 40, 12)
    parts = list(split.blocks(rows, entries))
    found = [row for part in parts for row in to_lists(part.features, part.labels)]
    assert found == to_lists(split.features, split.labels)
    sizes = [(len(part.features.indices), len(part.labels.indices)) for part in parts]
    for part, own in zip(parts, sizes, strict=True):
        assert 1 <= len(part) <= rows
        assert len(part) == 1 or max(own) <= entries
        assert not own[0] or np.shares_memory(part.features.values, features.values)
    # As few blocks as that allows: the next row would not have fitted.
    for part, own, following in zip(parts, sizes, parts[1:], strict=False):
        row = following.slice(0, 1)
        more = own[0] + len(row.features.indices), own[1] + len(row.labels.indices)
        assert len(part) == rows or max(more) > entries


def test_weights_of_rows_are_part_of_a_fingerprint():
    """A run that goes on with other weights is another run."""
    split = make_split()
    weights = np.arange(1.0, 24)
    plain, weighted, other = (
        fingerprint(replace(split, weights=each)) for each in (None, weights, weights[::-1])
    )
    assert len({plain, weighted, other}) == 3


# Batches: each row once an epoch, in an order of the seed, the epoch and the step.


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
def test_each_row_occurs_once_an_epoch(shuffle, batch_size):
    split = make_split()
    batches = Batches(split, batch_size, seed=0, shuffle=shuffle)
    seen = []
    for batch in batches.epoch(0):
        assert_types(batch)
        assert batch.rows.dtype == np.int64
        assert rows(batch) == [rows(split)[i] for i in batch.rows]
        seen.append(batch.rows)
    assert len(seen) == len(batches) == -(-23 // batch_size)
    assert all(len(part) == batch_size for part in seen[:-1])
    order = np.concatenate(seen).tolist()
    assert sorted(order) == list(range(23))
    assert (order == sorted(order)) is not shuffle


def test_batches_depend_on_seed_epoch_and_step_alone():
    split = make_split()
    one, other = Batches(split, 4, seed=7), Batches(split, 4, seed=7)
    forward = {(e, i): one.batch(e, i).rows.tolist() for e in range(3) for i in range(len(one))}
    backward = {key: other.batch(*key).rows.tolist() for key in reversed(forward)}
    assert forward == backward
    orders = [[forward[e, i] for i in range(len(one))] for e in range(3)]
    orders.append([batch.rows.tolist() for batch in Batches(split, 4, seed=8).epoch(0)])
    assert len({str(order) for order in orders}) == 4
    one.batch(2, 0).rows[:] = 0  # Writing to a batch changes no order.
    for start in (0, 2, 6):
        found = [batch.rows.tolist() for batch in one.epoch(2, start)]
        assert found == [forward[2, i] for i in range(start, len(one))]


def test_batches_check_their_arguments():
    split = make_split()
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        Batches(split, 0, seed=0)
    with pytest.raises(ValueError, match="seed must not be negative, not -1"):
        Batches(split, 4, seed=-1)
    batches = Batches(split, 4, seed=0)
    for index in (-1, 6):
        with pytest.raises(IndexError, match=rf"step {index} is not in \[0, 6\)"):
            batches.batch(0, index)
    with pytest.raises(IndexError, match="epoch must not be negative, not -1"):
        batches.batch(-1, 0)
    with pytest.raises(IndexError, match=r"step 7 is not in \[0, 6\]"):
        batches.epoch(0, start=7)


def described(train, test):
    return describe(SparseDataset("made", train, test, train.num_features, train.num_labels))


def test_the_table():
    rows = [[0, 1, 2], [], [0], [0, 1]]
    train = split_of(rows, [[0, 1], [0], [], [0, 5, 1]], 5, 6)
    test = split_of([[0], range(5)], [[0, 2, 4], [2, 5]], 5, 6)
    assert described(train, test) == (
        "made                                  train     test\n"
        "rows                                      4        2\n"
        "features                                  5\n"
        "labels                                    6\n"
        "non-zeros a row (most)              1.5 (3)  3.0 (5)\n"
        "labels a row (most)                 1.5 (3)  2.5 (3)\n"
        "rows without features                     1        0\n"
        "rows without labels                       1        0\n"
        "training rows of a label, least           0\n"
        "training rows of a label, 10 %            0\n"
        "training rows of a label, median          0\n"
        "training rows of a label, 90 %            2\n"
        "training rows of a label, 99 %            2\n"
        "training rows of a label, most            3\n"
        "labels without a training row        50.0 %\n"
        "labels with one training row         16.7 %\n"
        "test labels without a training row            60.0 %\n"
        "  each distinct label once                    50.0 %\n"
    )
