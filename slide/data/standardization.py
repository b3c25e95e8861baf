"""Whether dense rows are standardized: nearest neighbours of training rows decide."""

from dataclasses import replace

import numpy as np

from slide.data.dataset import Split
from slide.data.kind import usual_kind
from slide.data.row_transform import RowTransform
from slide.sparse import hits
from slide.utils.progress_bar import log

# 5,000 rows tell precisions apart that differ by a point, and their cosines take half a second.
_COMPARED = 5000
# Ten neighbours: the default of most studies of nearest neighbours lies between 5 and 20.
_NEIGHBOURS = 10
# 512 rows of cosines at a time take 10 MB.
_BLOCK = 512


def feature_moments(train: Split) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each feature, and one over its deviation; 0 for a feature that never differs."""
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
    return means, np.where(varies, 1 / np.where(varies, deviations, 1), 0)


def should_standardize(
    train: Split, *, tf_idf: bool = False, l2_norm: bool = False, hashed_features: int = 0
) -> bool:
    """Whether ``standardize="auto"`` standardizes features; the log says why.

    The nearest neighbours of training rows, by cosine, vote for their labels. Features are
    standardized if the first answer of these neighbours is right more often then, by more than a
    standard error of the difference. Rows that are not dense, and rows that other steps change or
    leave at their length, are not standardized.

    Args:
        train: training rows.
        tf_idf, l2_norm, hashed_features: as in `slide.data.transform`.
    """
    if not l2_norm or tf_idf or hashed_features:
        return False
    if usual_kind(train) != "dense" or len(train) < 2 or not len(train.labels.indices):
        return False
    rows = np.random.default_rng(0).permutation(len(train))[:_COMPARED]
    sample = train.take(np.sort(rows))
    as_they_are = RowTransform(train.num_features, train.num_labels, l2_norm=True)
    means, scales = feature_moments(sample)
    standardized = replace(as_they_are, feature_means=means, feature_scales=scales)
    without, beside = (_neighbours_right(sample, each) for each in (as_they_are, standardized))
    gap = beside - without
    chosen = bool(gap.mean() > gap.std() / len(gap) ** 0.5)
    log(
        f"rows      features are {'' if chosen else 'not '}standardized: P@1 of nearest neighbours "
        f"is {100 * beside.mean():.1f} with that and {100 * without.mean():.1f} without, of "
        f"{len(gap):,} dense training rows; transform.standardize={str(not chosen).lower()} "
        "overrides it"
    )
    return chosen


def _neighbours_right(sample: Split, steps: RowTransform) -> np.ndarray:
    """For each row, whether the label with most votes of its nearest other rows is its own."""
    from scipy import sparse  # Imported here, so that `import slide` stays fast.

    features, labels = steps.features(sample.features), sample.labels
    dense = np.zeros((len(sample), steps.num_columns[0]), np.float32)
    dense[features.entry_rows(), features.indices] = features.values
    ones = np.ones(len(labels.indices), np.float32)
    shape = len(sample), sample.num_labels
    votes = sparse.csr_array((ones, labels.indices, labels.indptr), shape)
    count, right = min(_NEIGHBOURS, len(sample) - 1), []
    for begin in range(0, len(sample), _BLOCK):
        part = dense[begin : begin + _BLOCK]
        cosines = part @ dense.T
        cosines[np.arange(len(part)), np.arange(begin, begin + len(part))] = -2  # Not its own.
        near = np.argpartition(cosines, -count, axis=1)[:, -count:]
        weights = np.take_along_axis(cosines, near, axis=1).ravel()
        voters = (weights, near.ravel(), np.arange(len(part) + 1) * count)
        answers = (sparse.csr_array(voters, shape=(len(part), len(sample))) @ votes).argmax(axis=1)
        answers = np.asarray(answers, np.int64).reshape(-1, 1)
        right.append(hits(answers, labels.slice(begin, begin + len(part)))[:, 0])
    return np.concatenate(right).astype(np.float64)
