"""Labels of rows that have a whole set of features, against counting in loops."""

from itertools import combinations

import numpy as np
import pytest
from helpers.matrices import make_pattern, ones_of, rows_of

from slide import FullSampler, SlideNetwork
from slide.data import Split
from slide.ranking import Conjunctions, EnsembleRanker
from slide.ranking.base_scorer import Queries
from slide.ranking.scorers import conjunctions
from slide.sparse import Pattern
from slide.utils.array_checks import Stored

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES, LABELS, ROWS = 9, 6, 60


def ones(pattern):
    """Rows whose values do not count."""
    return ones_of(pattern, 0.3)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    features = make_pattern(rng, rng.integers(0, 5, ROWS), FEATURES)
    return ones(features), make_pattern(rng, rng.integers(0, 3, ROWS), LABELS)


@pytest.fixture
def model(rows):
    return Conjunctions().fit(*rows, FEATURES, LABELS)


def naive_shares(features, labels):
    """For each set of several rows the share of them that has each label."""
    found = {}
    for own, answers in zip(rows_of(features), rows_of(labels), strict=True):
        for size in range(1, len(own) + 1):
            for chosen in combinations(sorted(own), size):
                counts = found.setdefault(chosen, np.zeros(LABELS + 1))
                counts[answers] += 1
                counts[LABELS] += 1
    return {key: each[:-1] / each[-1] for key, each in found.items() if each[-1] > 1}


def test_sets_have_the_shares_of_their_rows(rows, model):
    shares = naive_shares(*rows)
    assert len(model.keys) == len(shares)
    assert {1, 2, 3} <= {len(key) for key in shares}
    for key, expected in shares.items():
        sets = conjunctions._sets(ones(Pattern.from_lists([key])), None)[1]
        place = np.searchsorted(model.keys, sets[-1])  # The whole set is the last one.
        own = slice(*model.lists.indptr[place : place + 2])
        found = np.zeros(LABELS)
        found[model.lists.indices[own]] = model.lists.values[own]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_probabilities_are_means_of_the_shares(rows, model):
    model.weights = np.random.default_rng(1).random(len(model.keys)).astype(np.float32)
    sets = model.find(rows[0])
    total = np.bincount(sets.entry_rows(), sets.values, ROWS)
    np.testing.assert_allclose(total[np.diff(sets.indptr) > 0], 1, rtol=1e-5)
    found = model.relate(sets, np.tile(np.arange(LABELS), (ROWS, 1))).reshape(ROWS, LABELS)
    of_all = np.maximum(np.bincount(rows[1].indices, minlength=LABELS), 1) / ROWS
    for b, own in enumerate(rows_of(sets)):
        mean = np.zeros(LABELS)
        for place in own:
            part = slice(*model.lists.indptr[place : place + 2])
            mean[model.lists.indices[part]] += model.weights[place] * model.lists.values[part]
        mean /= max(model.weights[own].sum(), 1e-9)
        np.testing.assert_allclose(found[b], np.log(mean + 0.01 * of_all), rtol=1e-4)
    kept = np.random.default_rng(2).random(found.shape) < 0.5
    some = np.where(kept, np.arange(LABELS), -1)
    np.testing.assert_array_equal(model.relate(sets, some), found[kept])


def test_a_slot_that_says_nothing_has_little_weight():
    """The first slot decides the label in 9 of 10 rows; sets of the second one are as large."""
    rng = np.random.default_rng(0)
    slots = rng.integers(4, size=(2000, 2)) + np.array([0, 4])
    answers = np.where(rng.random(2000) < 0.9, slots[:, 0], rng.integers(8, size=2000))
    features, labels = (Pattern.from_lists(np.c_[each].tolist()) for each in (slots, answers))
    model = Conjunctions().fit(ones(features), labels, 8, 8)
    first, second, _ = rows_of(model.find(ones(Pattern.from_lists([[2, 6]]))))[0]
    assert model.weights[first] > 20 * model.weights[second]


@pytest.mark.parametrize(
    ("rows", "begins"),
    [
        ([[0, 3, 7], [2, 5, 6], [1]], [0, 3, 6]),
        ([[7, 3, 0], [5, 7]], [0, 3, 7]),
        ([[n, n + 1] for n in range(9)], None),
        ([[4], []], [0]),
    ],
)
def test_slots_are_ranges_of_numbers(rows, begins):
    found = conjunctions._slots(ones(Pattern.from_lists(rows)), 10)
    assert (None if found is None else found.tolist()) == begins


@pytest.mark.parametrize(("count", "sets"), [(0, 0), (6, 63), (7, 63), (10, 55), (11, 11)])
def test_a_row_has_64_sets_at_most(count, sets):
    rows = ones(Pattern.from_lists([range(count), [0]]))
    bounds, keys, kinds = conjunctions._sets(rows, None)
    assert bounds.tolist() == [0, sets, sets + 1]
    assert len(set(keys[:-1].tolist())) == sets
    assert kinds.max() == {0: 1, 6: 6, 7: 3, 10: 2, 11: 1}[count]


@pytest.mark.parametrize(
    ("lengths", "width", "suits"),
    [([4] * 9, 50, True), ([10, 30], 90, True), ([1, 1, 3], 50, False), ([12] * 9, 50, False),
     ([4] * 9, 7, False), ([], 50, False)],
)  # fmt: skip
def test_it_is_for_rows_of_few_features(lengths, width, suits):
    features = ones(make_pattern(np.random.default_rng(0), lengths, width))
    labels = Pattern.from_lists([[0] for _ in lengths])
    assert Conjunctions().suits(Split(features, labels, width, 1)) == suits


def test_of_many_sets_a_part_of_the_rows_is_counted(rows, monkeypatch):
    some = np.arange(0, ROWS, 3)
    parts = [Pattern.from_lists([rows_of(each)[b] for b in some]) for each in rows]
    expected = Conjunctions().fit(ones(parts[0]), parts[1], FEATURES, LABELS)
    every = len(conjunctions._sets(rows[0], None)[1])
    monkeypatch.setattr(conjunctions, "MOST_COUNTED", every // 2 - 1)
    found = Conjunctions().fit(*rows, FEATURES, LABELS)
    np.testing.assert_array_equal(found.keys, expected.keys)
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_the_most_probable_labels_are_candidates(rows, model):
    model.proposed = 3
    seen = Pattern.from_lists([[b % LABELS] for b in range(ROWS)])
    queries = Queries(rows[0], seen, None, "exact", 1, np.zeros(LABELS))
    named = model.propose(queries)
    found = model.relate(named.more, np.tile(np.arange(LABELS), (ROWS, 1))).reshape(ROWS, LABELS)
    of_all = model.label_shares * 0.01
    for b, ids in enumerate(named.ids.tolist()):
        means = np.exp(found[b]) - of_all
        means[b % LABELS] = 0
        known = [n for n in ids if n >= 0]
        assert b % LABELS not in known
        assert len(known) == min((means > 1e-6).sum(), 3)
        np.testing.assert_allclose(means[known], -np.sort(-means)[: len(known)], rtol=1e-3)


def test_impossible_keys_are_refused(model):
    numbers, arrays = model.state()
    arrays["keys"] = arrays["keys"][::-1].copy()
    with pytest.raises(ValueError, match="keys must not fall"):
        Conjunctions().restore(Stored(numbers, arrays), LABELS, FEATURES)


@pytest.mark.not_as_python
def test_a_ranker_of_long_rows_does_without_it():
    rng = np.random.default_rng(0)
    features = ones(make_pattern(rng, [12] * 300, 40))
    split = Split(features, make_pattern(rng, [2] * 300, 30), 40, 30)
    network = SlideNetwork(40, [4], 30, FullSampler)
    ranker = EnsembleRanker().fit(network, split.slice(0, 200), split.slice(200, 300))
    assert "conjunctions" not in ranker.scorers
    assert "conjunctions_rank" not in ranker.layout.names
