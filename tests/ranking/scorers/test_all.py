"""What holds for every base scorer: it is kept, it grows and is cut, and threads change nothing."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern

from slide import runtime
from slide.data import Split
from slide.ranking.base_scorer import Candidates, Queries, Training
from slide.ranking.scorers import SCORERS
from slide.sparse import row_bounds
from slide.utils.array_checks import Stored

ROWS, FEATURES, LABELS = 60, 30, 24
NO_SCORES = "network", "frequency"
# Without the network, which learns nothing here, and counts of labels, which the ranker has; few
# candidates of a scorer would be left out.
OPTIONS = {name: {"proposed": LABELS + 2} for name in SCORERS if name not in NO_SCORES}
OPTIONS |= {"linear": {}, "analogous": {}}
OPTIONS["label_tree"] |= {"cluster": 3}
IMPOSSIBLE = [
    *((name, each, 0) for name in OPTIONS for each in OPTIONS[name] if each != "cluster"),
    *(("linear", name, 0) for name in ("C", "max_iter", "tol")),
    *(("linear", "bias", 1), ("linear", "threshold", -1)),
    *(("neighbours", "count", 0), ("item_similarity", "shrink", -1)),
    *((name, "proposed", 0) for name in NO_SCORES),
    *(("label_tree", name, 0) for name in ("C", "cluster", "beam")),
]


def learnt(name, **changes):
    rng = np.random.default_rng(0)
    # Items are labels; questions of two features are similar if there are few of them.
    length, width = {"analogous": (2, 8)}.get(name, (4, LABELS if "item" in name else FEATURES))
    features, labels = make_csr(rng, [length] * ROWS, width), make_pattern(rng, [2] * ROWS, LABELS)
    features = features._replace(values=np.abs(features.values) + np.float32(0.1))
    train = replace(Split(features, labels, width, LABELS), **changes)
    scorers = {name: SCORERS[name](**OPTIONS[name]) for name in {name, "neighbours"}}
    return Training(train, "other", None, None, scorers, []).learnt(name), train


def every_score(scorer, features, labels):
    """Its numbers ``(B, N)`` of all labels, by name."""
    ids = np.tile(np.arange(labels)[::-1], (features.num_rows, 1))
    candidates = Candidates(ids, row_bounds((ids >= 0).sum(1)))
    queries = Queries(features, None, None, "exact", 1, np.zeros(labels))
    found = scorer.score(queries, candidates, scorer.propose(queries).more)
    return {name: each.reshape(ids.shape)[:, ::-1] for name, each in found.items()}


@pytest.mark.parametrize("name", OPTIONS)
def test_it_is_kept_and_grows_and_is_cut(name):
    scorer, train = learnt(name)
    whole = every_score(scorer, train.features, LABELS)
    assert len(np.unique(next(iter(whole.values())))) > 5
    again = SCORERS[name]()
    again.restore(Stored(*scorer.state()), LABELS, train.num_features)
    grown, grown_again = scorer.grown(2, 1), SCORERS[name]()
    grown_again.restore(Stored(*grown.state()), LABELS + 2, train.num_features + 1)
    kept = np.arange(1, LABELS, 2)
    cases = {
        "again": (again, LABELS, lambda each: each),
        "cut": (scorer.selected(kept, LABELS), len(kept), lambda each: each),
        "grown": (grown, LABELS + 2, lambda each: each[:, :LABELS]),
        "grown again": (grown_again, LABELS + 2, lambda each: each[:, :LABELS]),
    }
    for case, (other, labels, part) in cases.items():
        found = every_score(other, train.features, labels)
        for column, expected in whole.items():
            wanted = expected[:, kept] if case == "cut" else expected
            np.testing.assert_allclose(
                part(found[column]), wanted, rtol=1e-4, atol=1e-5, err_msg=f"{case}: {column}"
            )


@pytest.mark.parametrize("name", OPTIONS)
def test_threads_change_nothing(name):
    before, states = runtime.num_threads(), []
    for threads in (1, 0):  # 0: all
        runtime.set_threads(threads)
        scorer, train = learnt(name)
        states.append(scorer.state()[1] | every_score(scorer, train.features, LABELS))
    runtime.set_threads(before)
    for each, array in states[0].items():
        np.testing.assert_array_equal(states[1][each], array)


def test_classifiers_take_the_weights_of_rows():
    plain, weighted = (
        learnt("linear", weights=weights)[0] for weights in (None, np.linspace(0.1, 9, ROWS))
    )
    assert not np.array_equal(weighted.weights.values, plain.weights.values)


@pytest.mark.parametrize("name", [name for name in OPTIONS if "item" not in name])
def test_numbers_out_of_range_are_refused(name):
    for sizes in ({"num_labels": 2}, {"num_features": 2}):
        with pytest.raises(ValueError, match=rf"{next(iter(sizes))[4:]} must lie in \[0, 2\)"):
            learnt(name, **sizes)
    if name != "neighbours":  # They score what near rows name.
        scorer, train = learnt(name)
        with pytest.raises(ValueError, match=f"ids must be below {LABELS}, not {LABELS}"):
            every_score(scorer, train.features, LABELS + 1)


@pytest.mark.parametrize(("name", "setting", "value"), IMPOSSIBLE)
def test_impossible_settings_are_refused(name, setting, value):
    with pytest.raises(ValueError, match=f"{setting} must be .*not {value}"):
        SCORERS[name](**{setting: value})
