"""Transforms of rows and of data sets, compared with dense twins."""

import json
import math
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers import job, naive_rows
from helpers.matrices import make_csr
from helpers.splits import assert_same_rows

from slide.data import (
    RowTransform,
    SparseDataset,
    Split,
    row_transform,
    synthetic,
    transform,
    xmc,
)
from slide.data.cache import cached
from slide.data.dataset import Block
from slide.data.transforms import (
    StepOptions,
    choose_standardization,
    count_steps,
    feature_moments,
)
from slide.model.resizing import with_features
from slide.sparse import CSR, Pattern, as_csr, as_pattern
from slide.training.evaluation import evaluate, inverse_propensities
from slide.utils.array_checks import Stored


@pytest.mark.parametrize("size", [1e-30, 3e38])
def test_rows_of_any_size_get_length_one(size):
    features = CSR(
        np.array([0, 2, 2, 3]),
        np.array([3, 1, 5], np.int32),
        np.array([size, -size, size], np.float32),
    )
    made = row_transform.normalize_rows(features)
    np.testing.assert_allclose(made.values, [0.5**0.5, -(0.5**0.5), 1], rtol=1e-6)


def test_hashing_keeps_inner_products_on_average():
    """E <hash(x), hash(y)> = <x, y> (Weinberger et al. 2009, lemma 2)."""
    rows = make_csr(np.random.default_rng(1), [30, 30], 50)

    def dense(found, width):
        made = np.zeros((2, width))
        made[found.entry_rows(), found.indices] = found.values
        return made

    products = []
    for seed in range(3000):
        made = row_transform.hash_features(rows, *row_transform.hash_columns(50, 8, seed), 8)
        products.append(np.prod(dense(made, 8), axis=0).sum())
    error = np.std(products) / math.sqrt(len(products))
    assert abs(np.mean(products) - np.prod(dense(rows, 50), axis=0).sum()) < 4 * error
    assert error < 0.2


def test_hashed_columns_and_signs_are_uniform_and_independent():
    columns, signs = row_transform.hash_columns(200_000, 10)
    assert (columns.dtype, signs.dtype) == (np.int32, np.float32)
    cells = np.bincount(2 * columns + (signs > 0), minlength=20)
    statistic = ((cells - 10_000) ** 2 / 10_000).sum()
    assert statistic < 43.8, "the 0.999 quantile of chi2 with 19 degrees of freedom"
    again = row_transform.hash_columns(200_000, 10, seed=1)[0]
    assert 0.09 < (columns == again).mean() < 0.11
    prefix = row_transform.hash_columns(10, 10)[0]
    np.testing.assert_array_equal(prefix, columns[:10])


# Transformed data sets, compared with a looped twin.


FEATURES, LABELS = 40, 12


def make_rows(rng, rows):
    """Counts, some of them 0; label l is rarer the higher l, and label 0 occurs nowhere."""
    features = make_csr(rng, rng.integers(0, 9, rows), FEATURES)
    features = features._replace(values=rng.integers(0, 6, len(features.values)).astype("f4"))
    lists = [[l for l in range(1, LABELS) if rng.random() < 0.5 / (1 + l)] for _ in range(rows)]
    return Block(features, Pattern.from_lists(lists))


def make_data(folder, train=None, test=None, state=1, **options):
    """A cached data set of 57 and 23 rows, or of other blocks."""
    rng = np.random.default_rng(0)
    parts = {"train": train or make_rows(rng, 57), "test": test or make_rows(rng, 23)}
    options |= {"blocks": lambda part: [parts[part]], "num_columns": lambda: (FEATURES, LABELS)}
    return cached(folder, name="made", key={"made": 1}, state={"state": state}, **options)


def to_lists(part):
    """``[({feature: value}, [label, ...]), ...]``"""
    return [(dict(pairs), own) for own, pairs in naive_rows.to_lists(part.features, part.labels)]


def naive(data, split, tf_idf, l2_norm, hashed_features, min_label_count):
    """The twin of `transform`: rows as dictionaries, sums as loops."""
    train = to_lists(data.train)
    uses = Counter(j for row, _ in train for j, value in row.items() if value)
    counts = Counter(label for _, labels in train for label in labels)
    kept = [label for label in range(data.num_labels) if counts[label] >= min_label_count]
    columns, signs = row_transform.hash_columns(data.num_features, max(hashed_features, 1))
    for row, labels in to_lists(split):
        if tf_idf:
            n = len(train)
            row = {j: v * (math.log((1 + n) / (1 + uses[j])) + 1) for j, v in row.items()}
        if hashed_features:
            sums = dict.fromkeys(sorted(int(columns[j]) for j in row), 0.0)
            for j, v in row.items():
                sums[int(columns[j])] += v * float(signs[j])
            row = {j: v for j, v in sums.items() if v}
        if l2_norm:
            norm = math.sqrt(sum(v * v for v in row.values()))
            row = {j: v / (norm or 1) for j, v in row.items()}
        yield row, [kept.index(label) for label in labels if label in kept]


ARGUMENTS = [
    {"tf_idf": True},
    {"l2_norm": True},
    {"hashed_features": 7},
    {"min_label_count": 5},
    {"tf_idf": True, "l2_norm": True},
    {"tf_idf": True, "hashed_features": 7, "l2_norm": True, "min_label_count": 3},
]
NOTHING = {"tf_idf": False, "l2_norm": False, "hashed_features": 0, "min_label_count": 0}


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda a: "+".join(a))
def test_a_set_is_its_naive_twin(tmp_path, monkeypatch, arguments):
    monkeypatch.setattr(Split.blocks, "__defaults__", (1, 1))
    data = make_data(tmp_path, propensity=(0.6, 2.6))
    made = transform(data, **arguments)
    assert (made.name, made.propensity) == ("made", (0.6, 2.6))
    for found, given in ((made.train, data.train), (made.test, data.test)):
        expected = list(naive(data, given, **(NOTHING | arguments)))
        assert len(found) == len(given) == len(expected)
        assert (found.num_features, found.num_labels) == (made.num_features, made.num_labels)
        for (row, labels), (twin, twin_labels) in zip(to_lists(found), expected, strict=True):
            assert labels == twin_labels
            assert list(row) == list(twin), "the order of a row"
            np.testing.assert_allclose(list(row.values()), list(twin.values()), rtol=1e-6)
    assert made.num_features == arguments.get("hashed_features", FEATURES)
    assert (made.num_labels < LABELS) == ("min_label_count" in arguments)


def test_the_result_is_cached_beside_its_source(tmp_path, monkeypatch):
    data = make_data(tmp_path)
    made = transform(data, l2_norm=True)
    assert made.folder.parent == data.folder.parent
    meta = json.loads((made.folder / "meta.json").read_text())
    assert meta["source"]["key"]["of"] == data.folder.name
    assert isinstance(made.train.features.values.base, np.memmap)

    def forbid(self, features):
        raise AssertionError("computed again")

    monkeypatch.setattr(RowTransform, "features", forbid)
    assert to_lists(transform(data, l2_norm=True).train) == to_lists(made.train)
    assert transform(data, l2_norm=True).num_labels == LABELS
    with pytest.raises(AssertionError, match="computed again"):
        transform(data, tf_idf=True)
    with pytest.raises(AssertionError, match="computed again"):
        transform(make_data(tmp_path, state=2), l2_norm=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tf_idf": 1}, "tf_idf must be true or false, not 1"),
        ({"hashed_features": -1}, "hashed_features must be a whole number of at least 0, not -1"),
        ({"hashed_features": 40}, "hashed_features must be below .* features of made, 40, not 40"),
        ({"min_label_count": 1.5}, "min_label_count must be a whole number of at least 0, not 1.5"),
        ({"min_label_count": 58}, r"min_label_count must be at most \d+, or no label .*: 58"),
    ],
)
def test_arguments_out_of_range(tmp_path, arguments, message):
    data = make_data(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=message):
        transform(data, **arguments)
    left = [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert sorted(left) == [path for path in before if path.suffix != ".lock"]


@pytest.mark.parametrize(("rows", "part"), [(" 1:1 3:2\n", "labels"), ("1 \n2 #\n", "features")])
def test_sets_without_any_label_or_feature(tmp_path, rows, part):
    (tmp_path / "train.txt").write_text(rows)
    (tmp_path / "test.txt").write_text(rows)
    data = xmc(name="mine", root=tmp_path, cache=tmp_path, format="svmlight")
    with pytest.raises(ValueError, match=f"^mine has no {part}: no row has any$"):
        transform(data, l2_norm=True)


@pytest.mark.parametrize("split", ["train", "test"])
def test_negative_values_are_no_counts(tmp_path, split):
    rows = make_rows(np.random.default_rng(0), 20)
    rows.features.values[3] = -0.5
    data = make_data(tmp_path, **{split: rows})
    with pytest.raises(ValueError, match=r"tf-idf needs counts, values of at least 0, not -0\.5"):
        transform(data, tf_idf=True)
    assert len(transform(data, l2_norm=True).train) == len(data.train)


def test_values_beyond_float32(tmp_path):
    rows = make_rows(np.random.default_rng(0), 20)
    rows.features.values[:] = 3e38
    data = make_data(tmp_path, train=rows)
    with pytest.raises(ValueError, match=r"a transformed value must be at most 3\.4\d*e\+38, not"):
        transform(data, tf_idf=True)


def test_sets_in_memory_and_without_rows(tmp_path):
    none = Block(CSR(*Pattern.from_lists([]), np.zeros(0, np.float32)), Pattern.from_lists([]))
    split = Split(*none[:2], FEATURES, LABELS)
    data = SparseDataset("mine", split, split, FEATURES, LABELS)
    assert transform(data) is data
    assert transform(data, **NOTHING) is data
    with pytest.raises(ValueError, match="mine is not in a cache folder"):
        transform(data, l2_norm=True)
    data = make_data(tmp_path, train=none, test=none)
    made = transform(data, tf_idf=True, l2_norm=True, hashed_features=3)
    assert (len(made.train), len(made.test), made.num_features) == (0, 0, 3)
    with pytest.raises(ValueError, match="min_label_count must be at most 0"):
        transform(data, min_label_count=1)


@pytest.mark.compiled_only
def test_memory_is_bounded_by_a_block(tmp_path, monkeypatch):
    data = synthetic(
        cache=tmp_path, num_features=1000, num_labels=500, train_samples=60_000, test_samples=10
    )
    entries = 1 << 15
    assert data.train.features.indptr[-1] > 50 * entries
    monkeypatch.setattr(Split.blocks, "__defaults__", (1 << 16, entries))
    tracemalloc.start()
    transform(data, tf_idf=True, l2_norm=True, hashed_features=100, min_label_count=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * entries, "bytes; the features of all rows alone take 8 an entry"


@pytest.mark.parametrize("hashed", [0, 15])
def test_steps_do_the_same_to_rows_to_come(tmp_path, hashed):
    data = make_data(tmp_path)
    options = {"tf_idf": True, "l2_norm": True, "min_label_count": 9, "hashed_features": hashed}
    made = transform(data, **options)
    for found in (made, transform(data, **options)):  # Computed, and opened again.
        (steps,) = found.steps
        assert steps.num_columns == (made.num_features, made.num_labels)
        again = RowTransform.restored(Stored(steps.settings(), steps.arrays()))
        for one in (steps, again):
            rows = Block(one.features(data.test.features), one.labels(data.test.labels))
            assert_same_rows(rows, made.test)
    assert data.steps == ()
    twice = transform(transform(data, tf_idf=True), l2_norm=True)
    rows = data.test.features
    for steps in twice.steps:
        rows = steps.features(rows)
    np.testing.assert_array_equal(rows.values, twice.test.features.values)


def make_split(dense, labels):
    return Split(as_csr(dense), as_pattern(labels, 3), dense.shape[1], 3)


def measurements(rows=300, seed=0):
    """Two features tell the label; a third one, a thousand times as large, does not."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, rows)
    centres = np.array([[0, 0], [3, 0], [0, 3]], np.float32)[labels]
    dense = np.hstack([centres + rng.normal(0, 0.5, (rows, 2)), rng.normal(0, 1000, (rows, 1))])
    return dense.astype(np.float32), labels


def test_features_whose_scale_says_how_much_they_tell_stay(capsys):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    dense = rng.normal(size=(300, 12)).astype(np.float32)
    dense[:, :3] += 5 * np.eye(3)[labels]
    assert not choose_standardization(make_split(dense, labels), StepOptions(l2_norm=True))
    assert "transform.standardize=true or common or bins overrides it" in capsys.readouterr().err


def test_coordinates_keep_the_ratios_of_their_scales(capsys):
    """The label is the cell of two coordinates; a third feature varies less, and tells nothing."""
    rng = np.random.default_rng(0)
    dense = (rng.random((600, 3)) * [100, 100, 1] + 20).astype(np.float32)
    split = make_split(dense, (dense[:, 0] // 20 + dense[:, 1] // 20).astype(int) % 3)
    assert choose_standardization(split, StepOptions(l2_norm=True)) == "common"
    said = "features are taken standardized together: on 600 dense training rows, P@1 of nearest n"
    assert said in capsys.readouterr().err
    steps = count_steps(split, standardize="common")
    found = steps.features(as_csr(dense)).values.reshape(600, 4)
    scale = np.sqrt(dense.var(0).mean())
    np.testing.assert_allclose(found[:, :3], (dense - dense.mean(0)) / scale, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[:, 3], np.sqrt(3))


def test_few_features_of_other_scales_become_bins(capsys):
    """The label is the cell of two features of unlike scales; a third one tells nothing."""
    rng = np.random.default_rng(0)
    dense = (rng.lognormal(0, 2, (2000, 3)) * [1e-3, 1e3, 1]).astype(np.float32)
    ranks = dense.argsort(0).argsort(0) // 500
    split = make_split(dense, (ranks[:, 0] + ranks[:, 1]) % 3)
    assert choose_standardization(split, StepOptions(l2_norm=True)) == "bins"
    assert "features are taken in bins: on 2,000 dense" in capsys.readouterr().err
    steps = count_steps(split, standardize="bins", l2_norm=True)
    found = steps.features(split.features)
    assert steps.num_columns[0] == 3 * (128 + 16) == found.indices.max() + 1
    np.testing.assert_array_equal(np.diff(found.indptr), 6)
    np.testing.assert_allclose(found.values, 6**-0.5)
    again = RowTransform.restored(Stored(steps.settings(), steps.arrays()))
    np.testing.assert_array_equal(again.features(split.features).indices, found.indices)
    with pytest.raises(ValueError, match="features are in bins, so there can be no new ones"):
        with_features([steps], 1)
    wide = np.hstack([dense, rng.random((2000, 30))]).astype(np.float32)
    choose_standardization(make_split(wide, ranks[:, 0] % 3), StepOptions(l2_norm=True))
    assert "in bins" not in capsys.readouterr().err, "of many features each tells little"
    for name, array, said in (
        ("bin_bounds", np.array([0, 5, 3, 381]), "bin_bounds must rise from 0 to 381"),
        ("bin_bounds", np.array([0, 127, 254, 380]), "bin_bounds must rise from 0 to 381"),
        ("bin_edges", steps.bin_edges[::-1].copy(), "bin_edges must ascend within a feature"),
    ):
        with pytest.raises(ValueError, match=said):
            RowTransform.restored(Stored(steps.settings(), steps.arrays() | {name: array}))


@pytest.mark.parametrize(
    "steps", [{"l2_norm": False}, {"tf_idf": True}, {"hashed_features": 2}, {"zeros": 4}]
)
def test_other_steps_and_sparse_rows_are_not_asked(steps, capsys):
    dense, labels = measurements()
    wide = np.hstack([dense, np.zeros((len(dense), steps.get("zeros", 0)), np.float32)])
    options = {"l2_norm": True} | {name: each for name, each in steps.items() if name != "zeros"}
    assert not choose_standardization(make_split(wide, labels), StepOptions(**options))
    assert not capsys.readouterr().err


def test_moments_are_those_of_the_dense_rows(monkeypatch):
    rng = np.random.default_rng(1)
    dense = rng.normal(1e6, 3, (50, 4)) * (rng.random((50, 4)) < 0.7)
    dense[:, 3] = 7
    dense = dense.astype(np.float32)
    monkeypatch.setattr(Split.blocks, "__defaults__", (8, 8))
    means, scales = feature_moments(make_split(dense, np.zeros(50, int)))
    expected = dense.astype(np.float64)
    np.testing.assert_allclose(means, expected.mean(0))
    np.testing.assert_allclose(scales[:3], 1 / expected.std(0)[:3])
    assert scales[3] == 0


def test_rows_are_standardized_and_end_with_a_constant():
    dense, labels = measurements(40)
    steps = count_steps(make_split(dense, labels), standardize=True)
    found = steps.features(as_csr(dense)).values.reshape(40, 4)
    expected = (dense - dense.mean(0)) / dense.std(0)
    np.testing.assert_allclose(found[:, :3], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[:, 3], np.sqrt(3))
    assert steps.num_columns == (4, 3)
    again = RowTransform.restored(Stored(steps.settings(), steps.arrays()))
    np.testing.assert_array_equal(again.features(as_csr(dense)).values, found.ravel())
    empty = CSR(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    assert np.isfinite(steps.features(empty).values).all()
    with pytest.raises(ValueError, match="there can be no new ones"):
        with_features([steps], 1)


def test_a_data_set_in_a_cache(tmp_path, capsys):
    dense, labels = measurements()
    split = make_split(dense, labels)
    block = [Block(split.features, split.labels)]
    options = {"blocks": lambda part: block, "num_columns": lambda: (3, 3)}
    data = cached(tmp_path, name="made", key={"made": 1}, state={}, **options)
    for _ in range(2):  # Computed, and opened again.
        made = transform(data, standardize="auto", l2_norm=True)
        assert (made.num_features, made.steps[0].standardizes) == (4, True)
        said = capsys.readouterr().err
        assert "features are taken standardized one by one: " in said
        assert "transform.standardize=false or common or bins overrides it" in said
    same = transform(data, standardize=False, l2_norm=True)
    assert (same.num_features, same.steps[0].standardizes) == (3, False)


# Runs use the constants of their data set, and its transformed rows.


def test_a_run_uses_the_constants_of_its_set(tmp_path):
    data = replace(job.make_data(tmp_path), propensity=(0.6, 2.6))
    trainer = job.make_trainer(tmp_path, data)
    expected = inverse_propensities(data.train.labels, data.num_labels, 0.6, 2.6)
    np.testing.assert_array_equal(trainer.inverse, expected)
    assert (expected != inverse_propensities(data.train.labels, data.num_labels)).any()
    summary = trainer.fit()
    inverse = summary["psp_at_1"], summary["psp_at_3"], summary["psp_at_5"]
    again = evaluate(trainer.network, data.test, expected)
    assert inverse == tuple(round(again[f"psp_at_{k}"], 6) for k in (1, 3, 5))
    (line,) = job.lines(tmp_path / "run", "eval/psp_at_1")
    assert {"eval/psp_at_3", "eval/psp_at_5"} <= set(line)


def test_a_run_trains_on_the_transformed_set_and_a_resumed_one_keeps_it(tmp_path):
    words = ["transform.hashed_features=30", "transform.min_label_count=2"]
    job.main(*job.tiny(tmp_path, *words, "trainer.max_steps=1"))
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    data = job.make_data(tmp_path, **job.WITH_HELD)
    expected = transform(data, hashed_features=30, min_label_count=2)
    assert (summary["features"], summary["labels"]) == (30, expected.num_labels)
    assert expected.num_labels < job.SIZES["num_labels"]
    job.main(f"resume={run}", "trainer.max_steps=2")
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    message = job.failure(f"resume={run}", "transform.hashed_features=20")
    assert "a resumed run keeps its transform.hashed_features" in message
