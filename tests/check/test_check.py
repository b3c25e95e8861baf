"""``python -m slide.check``: what it says of the machine, and that it notices wrong kernels."""

from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from slide import HashTables, RowSparseAdam, SimHash
from slide.check import (
    SELF_TESTS,
    choice_kernels,
    data_kernels,
    describe_machine,
    inner_kernels,
    row_kernels,
    run_self_tests,
    self_test,
)
from slide.check.__main__ import main
from slide.data import dataset
from slide.search import RowIndex

pytestmark = pytest.mark.usefixtures("one_thread")

# What a test calls, and a wrong result in place of a right one.
WRONG = {
    "products on a shared set": ("active_linear", lambda x: x + 0.01),
    "products on a set for each sample": ("active_linear", lambda x: x * torch.nan),
    "losses": ("loss_on_active", lambda x: 1.01 * x),
    "products of sparse matrices": ("csr_matmul", lambda x: x.flip(0)),
    "convolution": ("active_conv2d", lambda x: x[:, 1:]),
    "largest scores": ("exact_top_k", lambda found: (found[0], found[1].flip(1))),
    "random numbers": ("random_below", lambda x: x + 1),
    "numbers in text": ("read_number", lambda found: (found[0] * 1.001, *found[1:])),
    "largest sparse products": ("sparse_top_k", lambda found: (1.01 * found[0], found[1])),
    "rows without entries": ("sparse_top_k", lambda found: (found[0], found[1] + 1)),
    "dropout": ("relu_dropout", lambda x: x * 1.01),
    "decoupled softmax": ("loss_on_active", lambda x: 1.01 * x),
    "Adam on rows": ("active_linear", lambda x: -x),
    "rows as text": ("parse_rows", lambda found: (*found[:2], 1, *found[3:])),
    "words that stay": ("subsample_words", lambda count: count - 1),
    "hashes by maxima": (
        "DWTA",
        lambda family: SimpleNamespace(
            coordinates=family.coordinates, codes=lambda x: family.codes(x) ^ 1
        ),
    ),
    "best ids of lists": ("best_of_voted", lambda ids: ids[:, ::-1]),
    "buckets of codes": ("fold", lambda buckets: buckets + 1),
    "counts of ids": ("count_distinct", lambda count: count + 1),
    "votes of near rows": ("top_votes", lambda found: (*found[:2], 1.01 * found[2])),
}
# Kernels that write into an array, which is one of their arguments or part of one.
WRITERS = {
    "decision trees": ("sum_trees", itemgetter(3)),
    "linear classifiers": ("fit_classifiers", lambda words: words[7].counts),
    "labels of features": ("count_labels", lambda words: words[5].values),
    "entries that are not zero": ("count_nonzeros", itemgetter(1)),
    "generated rows": ("draw_features", itemgetter(11)),
    "votes of buckets": ("vote_per_sample", lambda words: words[6].ids),
    "best rows of buckets": ("rank_buckets", itemgetter(9)),
    "rounded rows": ("sketch_rows", lambda words: words[2][0]),
    "largest scores of rows": ("largest_scores", itemgetter(3)),
    "evidence of candidates": ("fill_evidence", itemgetter(9)),
    "weights of drawn ids": ("stratified_log_weights", itemgetter(3)),
    "largest bounds": ("keep_largest_bounds", itemgetter(5)),
    "entries of rows": ("gather_entries", itemgetter(2)),
    "rows of classifiers": ("list_training_rows", itemgetter(5)),
    "scores of classifiers": ("score_labels", itemgetter(5)),
    "candidates and features": ("relate_candidates", itemgetter(7)),
    "regressions of items": ("regress_items", lambda words: words[9].values),
    "answers to similar questions": ("ask_similar", itemgetter(8)),
}


def home_of(name):
    """The module that calls the kernel of a test."""
    homes = {
        inner_kernels: inner_kernels.INNER_TESTS,
        data_kernels: data_kernels.DATA_TESTS,
        choice_kernels: choice_kernels.CHOICE_TESTS,
        row_kernels: row_kernels.ROW_TESTS,
    }
    return next((home for home, tests in homes.items() if name in tests), self_test)


def test_it_says_what_the_machine_has():
    found = describe_machine()
    assert found["threads"].startswith("1 of ")
    assert f"torch {torch.__version__}" in found["versions"]
    assert "GiB" in found["memory"]


def test_kernels_are_right_here(monkeypatch, capsys):
    monkeypatch.setattr("slide.check.__main__.run_self_tests", lambda: run_self_tests(0.2))
    main()
    said = capsys.readouterr().out
    assert said.count("  right  ") == len(SELF_TESTS)
    assert "WRONG" not in said


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_noticed(monkeypatch, name):
    place, change = WRONG[name]
    home = home_of(name)
    whole = getattr(home, place)
    monkeypatch.setattr(home, place, lambda *a, **k: change(whole(*a, **k)))
    monkeypatch.setattr(self_test, "SELF_TESTS", {name: SELF_TESTS[name]})
    ((found, trials, said),) = run_self_tests(0)
    assert (found, trials) == (name, 1)
    assert said


@pytest.mark.parametrize("name", WRITERS)
def test_kernels_that_write_nothing_are_noticed(monkeypatch, name):
    place, output = WRITERS[name]
    monkeypatch.setattr(home_of(name), place, lambda *words: output(words).fill(0))
    monkeypatch.setattr(self_test, "SELF_TESTS", {name: SELF_TESTS[name]})
    ((_, _, said),) = run_self_tests(0)
    assert said


def test_each_test_is_seen_to_fail():
    assert set(SELF_TESTS) == {*WRONG, *WRITERS, *PARTS, "active sets"}


PARTS = {
    "rows that move between buckets": (HashTables, "move", lambda nothing: nothing),
    "hash tables": (HashTables, "query", lambda found: found._replace(indices=found.indices + 1)),
    "hashes": (SimHash, "codes", lambda codes: codes ^ np.arange(codes.shape[1]) % 2),
    "rows of data": (dataset, "take_labels", lambda found: found._replace(indices=0 * found[1])),
    "index over rows": (RowIndex, "_scan", lambda found: found.flip(0)),
    "Adam": (RowSparseAdam, "_update", lambda nothing: nothing),
}


@pytest.mark.parametrize("name", PARTS)
def test_wrong_parts_are_noticed(monkeypatch, name):
    holder, part, change = PARTS[name]
    whole = getattr(holder, part)
    wrong = (
        (lambda *_: None) if part in ("_update", "move") else (lambda *words: change(whole(*words)))
    )
    monkeypatch.setattr(holder, part, wrong)
    monkeypatch.setattr(self_test, "SELF_TESTS", {name: SELF_TESTS[name]})
    ((_, _, said),) = run_self_tests(0)
    assert said


def test_a_wrong_kernel_ends_with_a_status(monkeypatch, capsys):
    monkeypatch.setattr("slide.check.__main__.run_self_tests", lambda: [("Adam", 3, "is off")])
    with pytest.raises(SystemExit, match="error: 1 kernels are wrong on this machine"):
        main()
    assert "WRONG  Adam: is off" in capsys.readouterr().out


def test_the_same_seed_tries_the_same(monkeypatch):
    drawn = []
    test = {"draws": lambda rng: drawn.append((rng.random(), torch.rand(1).item()))}
    monkeypatch.setattr(self_test, "SELF_TESTS", test)
    before = torch.get_rng_state()
    for _ in range(2):
        list(run_self_tests(0, seed=7))
    assert drawn[0] == drawn[1]
    assert drawn[0][0] == np.random.default_rng(7).random()
    assert torch.equal(torch.get_rng_state(), before)
