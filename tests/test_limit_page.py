"""What the page on the limit of precision computes from candidates and answers."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from helpers.matrices import make_csr

from slide.data import Split
from slide.ranking.evidence import COLUMNS, Evidence
from slide.sparse import Pattern


@pytest.fixture(scope="module")
def limit():
    """The module of the benchmark, which imports others by their plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent / "benchmarks")
        yield importlib.import_module("limit")


@pytest.fixture
def rows(limit):
    """Two rows with three and two candidates, and two labels that omikuji names for each."""
    ids = np.array([[4, 2, 7], [1, 5, -1]])
    labels, rng = Pattern.from_lists([[7, 3], [1]]), np.random.default_rng(0)
    split = Split(make_csr(rng, np.array([1, 1]), 6), labels, 6, 9)
    columns = np.arange(5 * len(COLUMNS), dtype=np.float32).reshape(5, -1)
    named, scores = np.array([[2, 3], [5, -1]]), np.array([[0.9, 0.4], [0.7, 0.0]])
    return limit.Rows(split, Evidence(ids, columns, ids), named, scores)


def test_a_judge_sees_score_and_rank_of_each_candidate(limit, rows):
    assert rows.right().tolist() == [False, False, True, True, False]
    columns, none = rows.columns(), limit.NAMED
    assert (columns[:, :-2] == rows.evidence.columns).all()
    assert np.allclose(columns[:, -2], [0, 0.9, 0, 0, 0.7])
    assert columns[:, -1].tolist() == [none, 0, none, none, 0]


def test_candidates_are_sorted_by_score_or_by_the_answers(limit, rows):
    best = limit.ranked(rows, np.array([0.1, 0.3, 0.2, 0.5, 0.6]))
    assert best.tolist() == [[2, 7, 4], [5, 1, -1]]
    assert limit.right_first(rows.evidence.ids, rows).tolist() == [[7, 4, 2], [1, 5, -1]]
    every = limit.join(rows.evidence.ids, rows.named)
    first = limit.right_first(every, rows)[:, :2]
    assert [set(ids) & {7, 3, 1} for ids in first.tolist()] == [{7, 3}, {1}]
    five = np.pad(first, ((0, 0), (0, 3)), constant_values=-1)
    assert limit.precision(five, rows.split)["p_at_1"] == 1.0


def test_the_page_has_a_line_for_each_method(limit):
    stamp = {"date": "d", "code": "c", "machine": "m", "threads": 2}
    rows = [
        {
            "dataset": "debian",
            "seed": 0,
            "method": name,
            "p_at_1": 0.5,
            "p_at_3": 0.4,
            "p_at_5": 0.3,
        }
        | stamp
        for name in limit.METHODS
    ]
    text = limit.page({"rows": rows})
    for name in limit.METHODS:
        assert f"| {name} | 50.0 | 40.0 | 30.0 |" in text
