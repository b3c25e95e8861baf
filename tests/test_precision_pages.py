"""Pages that are measured in parts: which rows are missing, how rows merge, what tables compare."""

import importlib
import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from slide.data import SparseDataset, Split
from slide.sparse import CSR, Pattern
from slide.training.evaluation import calibration_error

FOLDER = Path(__file__).parent / "benchmarks"
KEYS = ("dataset", "seed")


@pytest.fixture(scope="module")
def bench():
    """The modules of the benchmarks, which import each other by their plain names."""
    pages = ("precision_page", "ablation")
    names = ("rows", "peers", "precision", *pages)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def store(bench, folder, again=False, minutes=0):
    options = Namespace(results=folder, again=again, minutes=minutes)
    return bench.rows.Store("page", KEYS, lambda found: f"{len(found['rows'])} rows\n", options)


CASES = [{"dataset": "a", "seed": 0}, {"dataset": "a", "seed": 1}]


def test_only_rows_that_are_missing_are_measured(bench, tmp_path):
    store(bench, tmp_path).add([CASES[0] | {"p": 1}])
    assert list(store(bench, tmp_path).missing(CASES)) == CASES[1:]
    assert list(store(bench, tmp_path, again=True).missing(CASES)) == CASES
    assert list(store(bench, tmp_path).missing(CASES, code="another version")) == CASES


@pytest.mark.parametrize("name", ["machine", "threads", "code"])
def test_rows_of_other_conditions_are_measured_again(bench, tmp_path, name):
    store(bench, tmp_path).add([CASES[0]])
    path = tmp_path / "page.json"
    found = json.loads(path.read_text())
    found["rows"][0][name] = "another one"
    path.write_text(json.dumps(found))
    assert list(store(bench, tmp_path).missing(CASES[:1])) == CASES[:1]


def test_no_row_begins_after_the_time(bench, tmp_path):
    late = store(bench, tmp_path, minutes=1e-9)
    assert list(late.missing(CASES)) == []
    assert late.left == 2


def test_rows_of_two_calls_are_kept_and_a_new_row_replaces_its_old_one(bench, tmp_path):
    first, second = store(bench, tmp_path), store(bench, tmp_path)
    first.add([CASES[1] | {"p": 1}])
    second.add([CASES[0] | {"p": 2}])
    second.add([CASES[1] | {"p": 3}])
    rows = json.loads((tmp_path / "page.json").read_text())["rows"]
    assert [(row["seed"], row["p"]) for row in rows] == [(0, 2), (1, 3)]
    assert all({"date", "commit", "machine"} <= set(row) for row in rows)
    assert (tmp_path / "page.md").read_text().endswith("2 rows\n")


def scored(bench, value, **case):
    return case | dict.fromkeys(bench.rows.SCORES, value)


def test_the_first_table_compares_with_the_best_peer_with_known_labels_left_out(bench):
    rows = [
        scored(bench, value, dataset="a", method=method, seed=seed)
        for method, seed, value in (
            ("slide", 0, 0.5),
            ("slide", 1, 0.6),
            ("omikuji", None, 0.9),
            ("omikuji" + bench.peers.LEFT_OUT, None, 0.5),
            ("pecos" + bench.peers.LEFT_OUT, None, 0.51),
        )
    ]
    (line, *_) = bench.precision_page.comparisons("a", rows)
    assert line["P@k, ours"] == "55.0 ± 5.0"
    assert line["P@k, best peer"] == "51.0 (pecos)"
    assert line["PSP@k, difference"] == "+4.0"


def test_known_labels_are_left_out_of_the_answers_of_peers(bench):
    # Rows of a knowledge graph; the test row repeats a training row and asks for another label.
    def split(rows, labels):
        pattern = Pattern.from_lists(rows)
        ones = np.ones(len(pattern.indices), np.float32)
        return Split(CSR(*pattern, ones), Pattern.from_lists(labels), 7, 4)

    train, test = split([[0, 5], [0, 6]], [[2, 3], [1]]), split([[0, 5]], [[0]])
    data = SparseDataset("a", train, test, 7, 4)
    asked = []

    def answer(train, judged, left_out):
        asked.append(left_out.tolist())
        return bench.peers.Answers(np.array([[2, 3, 0, -1, -1, -1, -1]]), 1.0, 1.0)

    plain, left_out = bench.peers.measure(bench.peers.Peer("1", answer), "omikuji", data)
    assert asked == [[2]]
    assert (plain["p_at_1"], left_out["p_at_1"]) == (0, 1)
    assert left_out["method"] == "omikuji, known labels left out"


def test_the_bins_give_the_calibration_error(bench):
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(30)[:5] for _ in range(200)])
    ids[::9, 3:] = -1
    labels = Pattern.from_lists([sorted(rng.permutation(30)[:8].tolist()) for _ in ids])
    scores = rng.random(ids.shape)
    bins = bench.precision.reliability(scores, ids, labels)
    gaps = np.abs(np.subtract(bins["right"], bins["scores"])).sum()
    assert sum(bins["answers"]) == (ids >= 0).sum()
    expected = calibration_error(scores, ids, labels)
    assert gaps / (ids >= 0).sum() == pytest.approx(expected, abs=1e-4)
    assert expected > 0.1


def test_a_partly_blind_judge_learns_nothing_from_what_it_does_not_see(bench):
    rng = np.random.default_rng(0)
    columns = rng.random((3000, len(bench.ablation.COLUMNS)), dtype=np.float32)
    right = columns[:, 3] > 0.5  # The score of the linear classifiers.
    judge = bench.ablation.PartlyBlind(bench.ablation.UNSEEN["no linear classifiers"])
    judge.fit(columns, right)
    changed = columns.copy()
    changed[:, 3:6] = 1 - changed[:, 3:6]
    np.testing.assert_array_equal(judge.probabilities(changed), judge.probabilities(columns))
    seeing = bench.ablation.PartlyBlind(bench.ablation.UNSEEN["no network"]).fit(columns, right)
    assert ((seeing.probabilities(columns) > 0.5) == right).mean() > 0.99


def test_an_ablation_compares_the_same_seeds_of_one_commit(bench):
    default, variant = bench.ablation.DEFAULT, "no dropout"
    rows = [
        scored(bench, value, dataset="a", seed=seed, variant=name, code=code)
        for name, seed, value, code in (
            (default, 0, 0.5, "x"),
            (default, 1, 0.7, "x"),
            (variant, 0, 0.4, "x"),
            (variant, 1, 0.5, "x"),
            (variant, 2, 0.9, "x"),
            ("no network", 0, 0.9, "y"),
        )
    ]
    text = bench.ablation.section("a", rows)
    assert "| no dropout | 45.0 ± 5.0 (**-15.0 ± 5.0**) |" in text
    assert "| no network" not in text
    assert "Rows without a row of the recipe of their commit: 2." in text


STAMP = {"date": "2026-01-02", "code": "abc", "machine": "m", "threads": 2}
