"""The re-ranker as a whole, on generated data that its parts can learn."""

import copy

import numpy as np
import pytest
import torch
from helpers import job
from helpers.inner_products import COMPILED
from helpers.matrices import ones_of

from slide import FullSampler, SlideNetwork
from slide.data import SeenLabels, Split, holdout
from slide.ranking import EnsembleRanker, LinearClassifiers
from slide.ranking.final_ranker import FinalRanker
from slide.ranking.scorers import neighbours
from slide.ranking.scorers.neighbours import num_near_rows
from slide.sparse import Pattern, hits
from slide.utils import progress_bar

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return job.make_data(folder, train_samples=600 if COMPILED else 300, test_samples=200)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return SlideNetwork(60, [8], 80, FullSampler)


@pytest.fixture(scope="module")
def fitted(data, network):
    train, held = holdout(data.train, 0.3, 0)
    return EnsembleRanker(depth=20, voted=20).fit(network, train, held)


@pytest.mark.not_as_python
def test_it_is_better_than_its_parts(data, network, fitted):
    """The network is untrained; the final ranker learns how much each of the others counts."""
    features, labels = data.test.features, data.test.labels
    found = fitted.rank(network, features, 5)
    votes = fitted.scorers["neighbours"].votes(features, 5).ids
    precision = {
        name: hits(ids, labels).mean()
        for name, ids in [("all", found.ids), ("network", found.network_ids), ("votes", votes)]
    }
    assert precision["all"] > 2 * precision["network"]
    assert precision["all"] > 0.85 * precision["votes"]


@pytest.mark.not_as_python
@pytest.mark.parametrize("objective", ["p", "psp"])
def test_answers_do_not_depend_on_their_number(data, network, fitted, objective):
    """Beyond its depth of 20 the network names more labels, down to all 80."""
    ranker = copy.copy(fitted)
    ranker.objective, ranker.inverse = objective, np.linspace(1, 5, 80)
    few = ranker.rank(network, data.test.features, 20)
    np.testing.assert_array_equal(few.network_ids, network.predict(data.test.features, 20)[1])
    named = np.isfinite(few.scores) & (few.ids >= 0)
    for k in (21, 50, 80):
        found = ranker.rank(network, data.test.features, k)
        np.testing.assert_array_equal(found.ids[:, :20][named], few.ids[named])
        np.testing.assert_array_equal(found.scores[:, :20][named], few.scores[named])
        assert (np.diff(found.scores) <= 0).all()
    np.testing.assert_array_equal(np.sort(found.ids), np.tile(np.arange(80), (200, 1)))


@pytest.mark.compiled_only
def test_psp_favours_rare_labels(data, network):
    train, held = holdout(data.train, 0.3, 0)
    inverse = 1 + 9 / (1 + np.bincount(train.labels.indices, minlength=80))
    whole = {"depth": 80, "voted": 80}
    plain = EnsembleRanker(**whole).fit(network, train, held, inverse)
    rare = EnsembleRanker(objective="psp", **whole).fit(network, train, held, inverse)
    frequency = [
        plain.frequency[each.rank(network, data.test.features, 3).ids].mean()
        for each in (plain, rare)
    ]
    assert frequency[1] < frequency[0]
    every = plain.rank(network, data.test.features, 80)
    weighted = np.sort(-every.scores * inverse[every.ids])[:, :3]
    found = rare.rank(network, data.test.features, 3)
    np.testing.assert_allclose(found.scores, -weighted, rtol=1e-5)


@pytest.mark.compiled_only
@pytest.mark.parametrize(("known", "left_out"), [("auto", True), ("keep", False)])
def test_known_labels_of_a_graph_are_no_answers(network, known, left_out):
    """Rows of two features, no two of them equal; each row is asked for again."""
    rng = np.random.default_rng(0)
    pairs = [(a, 10 + b) for a in range(10) for b in range(50)]
    features = ones_of(pairs)
    labels = Pattern.from_lists([sorted({a, 10 + b, int(rng.integers(80))}) for a, b in pairs])
    train = Split(features, labels, 60, 80)
    ranker = EnsembleRanker(known=known).fit(network, train, train.slice(0, 100))
    again = hits(ranker.rank(network, features, 3).ids, labels)
    assert again.any() != left_out
    assert any(note.startswith("known labels") for note in ranker.notes) == left_out


@pytest.mark.parametrize(
    ("rows", "many", "kind", "count"),
    [(39, 8, "other", 20), (40, 8, "other", 50), (39, 9, "other", 50), (39, 8, "items", 50)],
)
def test_rare_labels_have_fewer_near_rows(rows, many, kind, count, monkeypatch):
    """Two labels a row, and eight labels: ten rows a label from 40 rows on."""
    monkeypatch.setattr(neighbours, "MANY", many)
    labels = Pattern.from_lists([[n % 8, (n + 1) % 8] for n in range(rows)])
    features = ones_of([[n % 5] for n in range(rows)])
    assert num_near_rows(Split(features, labels, 5, 8), kind) == count


@pytest.mark.not_as_python
def test_few_labels_are_all_negatives_but_the_right_ones(data, network):
    rows, classifiers = data.train, LinearClassifiers(C=1.0)
    sizes = data.num_features, data.num_labels
    classifiers.fit(rows.features, rows.labels, None, *sizes)
    again = EnsembleRanker(negatives=data.num_labels // 4).fit(network, rows, data.test)
    for learnt in (again, EnsembleRanker(negatives=5).fit(network, rows, data.test)):
        equal = np.array_equal(learnt.scorers["linear"].weights.values, classifiers.weights.values)
        assert equal == (learnt is again)
        cost = 1.0 if learnt is again else 4.0
        assert cost == learnt.scorers["linear"].solver.C
        assert (learnt.scorers["linear"].intercepts is not None) == (learnt is again)


@pytest.mark.parametrize(
    "kind", [pytest.param("items", marks=pytest.mark.not_as_python), "graph", "other"]
)
def test_negatives_are_no_right_answers(network, monkeypatch, kind):
    """Neither labels of a row, nor its own items, nor other answers to the same question."""
    rng, asked = np.random.default_rng(0), []
    questions = rng.integers([0, 30], [30, 60], (300, 2))
    features = ones_of(questions.tolist())
    labels = Pattern.from_lists(rng.integers(80, size=(300, 1)).tolist())
    # Without weights of rows, items have regressions, which need no negatives.
    train = Split(features, labels, 60, 80, np.ones(300) if kind == "items" else None, kind)
    fit = LinearClassifiers.fit

    def spy(self, features, labels, candidates, *more, **named):
        asked.append((features, labels, candidates))
        return fit(self, features, labels, candidates, *more, **named)

    monkeypatch.setattr(LinearClassifiers, "fit", spy)
    EnsembleRanker(negatives=7).fit(network, train.slice(0, 250), train.slice(250, 300))
    rows, right, negatives = asked[0]
    padded = np.full((250, 7), -1)
    sizes = np.diff(negatives.indptr)
    padded[np.arange(7) < sizes[:, None]] = negatives.indices
    assert np.median(sizes) == 7
    assert not hits(padded, right).any()
    known = {
        "items": Pattern(rows.indptr, rows.indices),
        "graph": SeenLabels(train.slice(0, 250)).of(rows),
        "other": right,
    }
    assert not hits(padded, known[kind]).any()


@pytest.mark.not_as_python
def test_the_better_neighbours_are_chosen(data, network, monkeypatch):
    train, held = holdout(data.train, 0.3, 0)
    found = {}
    for idf in (False, True):
        ranker = EnsembleRanker()
        ranker.scorers["neighbours"].weighted = idf
        model = ranker.scorers["neighbours"].fit(train.features, train.labels, 60, 80)
        found[idf] = hits(model.votes(held.features, 5).ids, held.labels).sum()
    ranker = EnsembleRanker().fit(network, train, held)
    assert ranker.scorers["neighbours"].weighted == max(found, key=found.__getitem__)
    assert found[True] != found[False]


@pytest.mark.not_as_python
@pytest.mark.parametrize(("share", "slow"), [(0.01, True), (0.04, False)])
def test_scorers_learn_from_all_rows_in_the_end(data, network, share, slow):
    """Slow ones only where a twentieth was held out, or the linear model alone decides."""
    train, held = holdout(data.train, share, 0)
    ranker = EnsembleRanker().fit(network, train, held, every=data.train)
    assert (ranker.final_ranker.trees is None) == (share == 0.01)
    whole = EnsembleRanker().fit(network, train, held)
    whole._learn(data.train, exclude=False, slow=slow)
    _, found = ranker.state()
    for name, array in whole.state()[1].items():
        if not name.startswith("final_ranker."):
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth must be a whole number of at least 1, not 0"),
        ({"negatives": 0}, "negatives must be a whole number of at least 1, not 0"),
        ({"objective": "f1"}, "objective must be one of p, psp, not 'f1'"),
        ({"known": "yes"}, "known must be one of auto, exclude, keep, not 'yes'"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EnsembleRanker(**options)


@pytest.mark.not_as_python
def test_a_failed_training_leaves_no_ranker(data, network, fitted, monkeypatch):
    ranker = copy.deepcopy(fitted)

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(FinalRanker, "fit", fail)
    with pytest.raises(MemoryError):
        ranker.fit(network, *holdout(data.train, 0.3, 0))
    with pytest.raises(RuntimeError, match="call fit first"):
        ranker.rank(network, data.test.features, 5)


@pytest.mark.not_as_python
def test_bars_of_long_phases(tmp_path, monkeypatch, capsys):
    data = job.make_data(tmp_path, train_samples=300)
    train, held = holdout(data.train, 0.5, seed=0)
    network = job.make_network(data)
    EnsembleRanker(negatives=10).fit(network, train, held)
    assert capsys.readouterr().err == "", "short phases have none"
    monkeypatch.setattr(progress_bar, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress_bar, "LINE_EVERY", 0.0)
    EnsembleRanker(negatives=10).fit(network, train, held)
    said = capsys.readouterr().err
    for name in ("candidates", "co-occurrence", "classifiers", "ranking features"):
        assert f"{name}: " in said
