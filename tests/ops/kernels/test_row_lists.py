"""Rows in lists are rounded, and means and spreads follow them."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.naive_arrays import round_list

from slide.ops.kernels.largest import ChangedRows, RowLists, put_rows

STARTS, WIDTH = np.array([0, 1, 20, 23, 60]), 7
N = STARTS[-1]


def empty_lists(biased):
    return RowLists(
        STARTS,
        np.arange(N, dtype=np.int32),
        # Whatever lies in the memory: a scale of 0 makes zeros of it.
        np.random.default_rng(9).integers(-128, 128, (N, WIDTH)).astype(np.int8),
        *(np.zeros(N, np.float32) for _ in range(2)),
        np.zeros((len(STARTS) - 1, WIDTH + biased), np.float32),
        np.zeros(len(STARTS) - 1, np.float32),
    )


def put(lists, rows, biases, places, ids):
    """Row ``ids[i]`` into place ``places[i]``; places are sorted."""
    owner = np.searchsorted(STARTS, places, side="right") - 1
    numbers, begins = np.unique(owner, return_index=True)
    places = places.astype(np.int32)
    changed = ChangedRows(rows, rows.view(np.int32), biases, ids, places)
    put_rows(changed, np.append(begins, len(places)), numbers, lists)


def check(lists, rows, biases):
    """The lists are those of these rows, in their order."""
    biased = len(biases) > 0
    if not biased:
        biases = np.zeros(N, np.float32)
    np.testing.assert_array_equal(lists.biases, biases)
    for number, (begin, end) in enumerate(pairwise(STARTS)):
        own = slice(begin, end)
        codes, scales, mean, spread = round_list(rows[own], biases[own])
        np.testing.assert_array_equal(lists.codes[own], codes)
        np.testing.assert_allclose(lists.scales[own], scales, rtol=1e-6)
        np.testing.assert_allclose(lists.means[number], mean[: WIDTH + biased], atol=1e-5)
        assert lists.spreads[number] == pytest.approx(spread, rel=1e-3, abs=5e-3)


@pytest.mark.parametrize("biased", [False, True])
def test_lists_follow_their_rows(biased):
    """From nothing, and then change by change, with rows that are not finite between others."""
    rng = np.random.default_rng(3)
    lists, rows = empty_lists(biased), rng.standard_normal((N, WIDTH)).astype(np.float32)
    biases = rng.standard_normal(N * biased).astype(np.float32)
    put(lists, rows, biases, np.arange(N), np.arange(N))
    check(lists, rows, biases)
    for step in range(6):
        places = np.sort(rng.choice(N, 25, replace=False))
        rows[places] = 3 * rng.standard_normal((25, WIDTH)) * rng.random((25, 1))
        if biased:
            biases[places] = rng.standard_normal(25)
            biases[places[3 * step]] = -np.inf
        rows[places[step]] = 0
        rows[places[2 + step], step] = (np.nan, np.inf, -np.inf)[step % 3]
        # As rows of their own, in any order.
        order = rng.permutation(25)
        own = biases[places[order]] if biased else biases
        put(lists, rows[places[order]], own, places, np.argsort(order))
        check(lists, rows, biases)


def test_a_row_that_is_too_short_to_be_rounded():
    lists, biases = empty_lists(False), np.empty(0, np.float32)
    rows = np.full((N, WIDTH), 1e-37, np.float32)
    put(lists, rows, biases, np.arange(N), np.arange(N))
    assert not lists.codes.any()
    assert not lists.means.any()
    assert not lists.spreads.any()
