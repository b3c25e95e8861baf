"""Data sets made from data sets: other features, rows of length 1, frequent labels only.

`transform` does the steps that are asked for in this order. Rows that a run later uses for
validation count as training rows here.

* tf-idf: the value of feature j, a count, becomes ``value * (ln((1 + n) / (1 + n_j)) + 1)``, where
  n_j of the n training rows have the feature.
* Standardization: features are brought to mean 0 and deviation 1 over the training rows, each of
  them or, by a common factor, on average, which keeps the ratios of distances. A constant feature
  is added, so that rows of length 1 still tell how far they lie from the mean. Or else each
  feature becomes bins (`slide.data.bins`), which tell any function of it.
* Hashing: feature j is added, with a random sign, to a random one of fewer columns (Weinberger et
  al., "Feature hashing for large scale multitask learning", ICML 2009, section 2). The features of
  a row are in ascending order then, and sums of 0 are left out.
* L2 norm: rows are divided by their length, but for rows without features.
* Labels of fewer training rows than asked for are left out, and the others get new numbers, in the
  same order. All rows stay, even without labels, so metrics are about the labels that are left.
"""

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slide.data.bins import MOST_BINNED, SAMPLED, bin_edges
from slide.data.cache import cached
from slide.data.dataset import Block, SparseDataset, Split
from slide.data.kind import MOSTLY_NONZERO, nonzero_share
from slide.data.row_transform import (
    STEP_ARRAYS,
    RowTransform,
    dense_rows,
    row_counts,
    tf_idf_weights,
)
from slide.sparse import hits, row_bounds
from slide.utils import checks
from slide.utils.array_checks import Stored
from slide.utils.progress_bar import ProgressBar, log

# Part of the cache's key. Increase it when the same arguments give other rows.
TRANSFORM_VERSION = 2
# 5,000 rows tell precisions apart that differ by a point, and their cosines take half a second.
_COMPARED = 5000
# Ten neighbours: the default of most studies of nearest neighbours lies between 5 and 20.
_NEIGHBOURS = 10
# MiB of distances at a time.
_DISTANCES = 16
# How features may be standardized, and what the log calls it.
_WAYS: dict[Any, str] = {
    False: "as they are",
    True: "standardized one by one",
    "common": "standardized together",
    "bins": "in bins",
}


def transform(
    data: SparseDataset,
    *,
    tf_idf: bool = False,
    standardize: bool | str = False,
    l2_norm: bool = False,
    hashed_features: int = 0,
    min_label_count: int = 0,
) -> SparseDataset:
    """Opens a transformed data set, and computes it the first time.

    `slide.data.transforms` gives the formulas of the steps. ``steps`` of the result does them to
    rows to come. Memory is bounded by a block of rows and a few numbers a column.

    Args:
        data: a data set with a cache folder, where the result gets one, too.
        tf_idf: weight counts by tf-idf.
        standardize: bring features to mean 0 and deviation 1, and add a constant one; ``"common"``:
            with the same factor for all features; ``"bins"``: make them bins by quantiles instead;
            ``"auto"``: the best of them where rows are dense, ``l2_norm`` is true, no other step
            changes features, and it helps.
        l2_norm: divide rows by their length.
        hashed_features: number of columns after hashing; 0: no hashing.
        min_label_count: n, the fewest training rows of a label; 0: all labels stay.

    Returns:
        The data set over memory-mapped arrays; ``data`` itself if no step is asked for.

    Raises:
        ValueError: an argument is out of range, a value is negative and tf-idf is asked for, no
            label has enough rows, or ``data`` has no features, no labels or no cache folder.

    Example:
        >>> import tempfile
        >>> from slide.data import synthetic, transform
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=50, test_samples=5)
        ...     small = transform(data, hashed_features=100, min_label_count=2)
        >>> data.num_features, small.num_features, small.num_labels < data.num_labels
        (10000, 100, True)
    """
    options = StepOptions(tf_idf, standardize, l2_norm, hashed_features, min_label_count)
    arguments = asdict(options.decided(data.train))
    if not arguments["standardize"]:
        del arguments["standardize"]
    if not any(arguments.values()):
        return data
    if data.folder is None:
        raise ValueError(f"{data.name} is not in a cache folder: the result has no folder")
    for part, count in (("features", data.num_features), ("labels", data.num_labels)):
        if not count:
            raise ValueError(f"{data.name} has no {part}: no row has any")
    if hashed_features >= data.num_features:
        raise ValueError(
            f"hashed_features must be below the number of features of {data.name}, "
            f"{data.num_features}, not {hashed_features}"
        )
    # Counted when the first block is asked for, if there is no cache.
    steps = functools.cache(lambda: count_steps(data.train, **arguments))
    found = cached(
        data.folder.parent,
        name=data.name,
        key={"transform": arguments, "version": TRANSFORM_VERSION, "of": data.folder.name},
        state=data.source["state"],
        blocks=lambda part: _blocks(steps(), getattr(data, part)),
        num_columns=lambda: steps().num_columns,
        extra=lambda: steps().arrays(),
        propensity=data.propensity,
    )
    assert found.folder is not None
    steps_of = (*data.steps, _opened(data, arguments, found.folder))
    names = ("label_names", "vectorizer", "columns", "test_row_names")
    kept = {name: getattr(data, name) for name in names}
    return replace(found, steps=steps_of, **kept)


@dataclass(frozen=True)
class StepOptions:
    """The arguments of `transform`, which explains them."""

    tf_idf: bool = False
    standardize: bool | str = False
    l2_norm: bool = False
    hashed_features: int = 0
    min_label_count: int = 0

    def __post_init__(self) -> None:
        checks.flag("tf_idf", self.tf_idf)
        ways = [way for way in (*_WAYS, "auto") if type(way) is type(self.standardize)]
        if self.standardize not in ways:
            said = "standardize must be true, false, common, bins or auto"
            raise ValueError(f"{said}, not {self.standardize!r}")
        checks.flag("l2_norm", self.l2_norm)
        checks.whole("hashed_features", self.hashed_features, 0)
        checks.whole("min_label_count", self.min_label_count, 0)

    def decided(self, train: Split) -> "StepOptions":
        """The same, with what ``standardize="auto"`` comes to."""
        if self.standardize != "auto":
            return self
        return replace(self, standardize=choose_standardization(train, self))


def count_steps(train: Split, **arguments: Any) -> RowTransform:
    """The steps of some arguments of `transform`, with what they count in training rows."""
    options, weights, kept = StepOptions(**arguments).decided(train), None, None
    if options.tf_idf:
        weights = tf_idf_weights(rows_with_each("features", train), len(train))
    if options.min_label_count:
        counts, least = rows_with_each("labels", train), options.min_label_count
        kept = np.flatnonzero(counts >= least).astype(np.int32)
        if not len(kept):
            said = f"at most {counts.max(initial=0)}, or no label is left: {least}"
            raise ValueError(f"min_label_count must be {said}")
    steps = RowTransform(
        train.num_features,
        train.num_labels,
        l2_norm=options.l2_norm,
        hashed_features=options.hashed_features,
        tf_idf_weights=weights,
        label_ids=kept,
    )
    return _standardized(steps, train, options.standardize)


def _standardized(steps: RowTransform, train: Split, way: bool | str) -> RowTransform:
    """The steps, and a way to standardize beside them."""
    if not way:
        return steps
    if way == "bins":
        rows = np.random.default_rng(0).permutation(len(train))[:SAMPLED]
        features = train.take(np.sort(rows)).features
        edges = bin_edges(dense_rows(features, train.num_features))
        bounds = row_bounds(np.array([len(each) for each in edges]))
        return replace(steps, bin_edges=np.concatenate(edges), bin_bounds=bounds)
    means, scales = feature_moments(train, common=way == "common")
    return replace(steps, feature_means=means, feature_scales=scales)


def rows_with_each(part: str, split: Split) -> np.ndarray:
    """How many rows have each of the ``"features"`` or ``"labels"``."""
    counts = np.zeros(getattr(split, f"num_{part}"), np.int64)
    for block in split.blocks():
        counts += row_counts(getattr(block, part), len(counts))
    return counts


def _opened(data: SparseDataset, arguments: dict[str, Any], folder: Path) -> RowTransform:
    files = {name: folder / f"{name}.npy" for name in STEP_ARRAYS}
    arrays = {name: np.load(path) for name, path in files.items() if path.is_file()}
    sizes = {"num_features": data.num_features, "num_labels": data.num_labels}
    return RowTransform.restored(Stored({**arguments, **sizes}, arrays, f"{folder}", f"{folder}"))


def _blocks(steps: RowTransform, split: Split) -> Iterator[Block]:
    with ProgressBar(total=len(split), unit=" rows", desc="transforming") as bar:
        for part in split.blocks():
            yield Block(steps.features(part.features), steps.labels(part.labels))
            bar.update(len(part))


def feature_moments(train: Split, common: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each feature, and one over its deviation; 0 for a feature that never differs.

    ``common``: one over the root of the mean variance, for all features that differ.
    """
    rows, width = max(len(train), 1), train.num_features
    sums, squares = np.zeros(width), np.zeros(width)
    for part in train.blocks():
        sums += np.bincount(part.features.indices, part.features.values, width)
    means = sums / rows
    for part in train.blocks():
        columns, values = part.features.indices, part.features.values
        missing = len(part) - np.bincount(columns, minlength=width)
        squares += np.bincount(columns, (values - means[columns]) ** 2, width) + missing * means**2
    deviations = np.sqrt(squares / rows)
    # Below a millionth of the mean a deviation is what rounding to float32 leaves of a constant.
    varies = deviations > 1e-6 * np.abs(means)
    if common and varies.any():
        deviations = np.where(varies, np.sqrt(np.mean(deviations[varies] ** 2)), deviations)
    return means, np.where(varies, 1 / np.where(varies, deviations, 1), 0)


def choose_standardization(train: Split, options: StepOptions) -> bool | str:
    """How ``standardize="auto"`` standardizes features, as `transform` takes it; the log says why.

    Nearest neighbours of dense training rows must then be right more often, by more than a
    standard error of the difference.
    """
    if not options.l2_norm or options.tf_idf or options.hashed_features:
        return False
    if nonzero_share(train.features, train.num_features) <= MOSTLY_NONZERO:
        return False
    if len(train) < 2 or not len(train.labels.indices):
        return False
    rows = np.random.default_rng(0).permutation(len(train))[:_COMPARED]
    sample, right = train.take(np.sort(rows)), {}
    ways = [way for way in _WAYS if way != "bins" or train.num_features <= MOST_BINNED]
    for way in ways:
        steps = RowTransform(train.num_features, train.num_labels, l2_norm=True)
        right[way] = _neighbours_right(sample, _standardized(steps, sample, way))
    best = max(ways, key=lambda way: right[way].mean())
    gap = right[best] - right[False]
    chosen = best if gap.mean() > gap.std() / len(gap) ** 0.5 else False
    said = ", ".join(f"{100 * right[way].mean():.1f} {_WAYS[way]}" for way in ways)
    others = " or ".join(str(way).lower() for way in ways if way != chosen)
    log(
        f"rows      features are taken {_WAYS[chosen]}: on {len(gap):,} dense training rows, P@1 "
        f"of nearest neighbours is {said}; transform.standardize={others} overrides it"
    )
    return chosen


def _neighbours_right(sample: Split, steps: RowTransform) -> np.ndarray:
    """For each row, whether the label with most votes of its nearest other rows is its own."""
    from scipy import sparse  # Imported here, so that `import slide` stays fast.
    from sklearn import config_context
    from sklearn.neighbors import NearestNeighbors

    features, labels = steps.features(sample.features), sample.labels
    dense = np.zeros((len(sample), steps.num_columns[0]), np.float32)
    dense[features.entry_rows(), features.indices] = features.values
    ones = np.ones(len(labels.indices), np.float32)
    shape = len(sample), sample.num_labels
    votes = sparse.csr_array((ones, labels.indices, labels.indptr), shape)
    count = min(_NEIGHBOURS, len(sample) - 1)
    search = NearestNeighbors(n_neighbors=count, metric="cosine", algorithm="brute").fit(dense)
    with config_context(working_memory=_DISTANCES):
        distances, near = search.kneighbors()  # Without the row itself.
    voters = ((1 - distances).ravel(), near.ravel(), np.arange(len(sample) + 1) * count)
    answers = (sparse.csr_array(voters, shape=(len(sample),) * 2) @ votes).argmax(axis=1)
    return hits(np.asarray(answers, np.int64).reshape(-1, 1), labels)[:, 0].astype(np.float64)
