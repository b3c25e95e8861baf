"""Batches: each row once an epoch, in an order of the seed, the epoch and the step."""

import numpy as np
import pytest
from helpers.splits import assert_types, make_split, rows

from slide.data import Batches


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


@pytest.mark.parametrize("start", [0, 2, 6])
def test_an_epoch_continues_where_it_was_left(start):
    batches = Batches(make_split(), 4, seed=7)
    whole = [rows(batch) for batch in batches.epoch(5)]
    assert [rows(batch) for batch in Batches(make_split(), 4, 7).epoch(5, start)] == whole[start:]


def test_writing_to_a_batch_changes_no_order():
    batches = Batches(make_split(), 4, seed=7)
    before = batches.batch(0, 0).rows.copy()
    batches.batch(0, 0).rows[:] = 0
    np.testing.assert_array_equal(batches.batch(0, 0).rows, before)


def test_batches_of_an_empty_split():
    assert list(Batches(make_split(0), 4, seed=0).epoch(0)) == []


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
