"""Rows of requests as a matrix. A further kind of row is a case of `_row`."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from slide.model import Model
from slide.predict.numbering import Numbering, number_features
from slide.serve.schema import Row
from slide.sparse import CSR, row_bounds

_Arrays = tuple[np.ndarray, np.ndarray]


def rows_to_csr(rows: Sequence[Row], model: Model) -> CSR:
    """The rows as a matrix ``(B, D)``; values of a feature that a row names twice are added up.

    Args:
        rows: of a request.
        model: says how many features there are, and their names.

    Raises:
        ValueError: for a row that is no row of the model.
    """
    more = model, Numbering.of(model), _of_texts(rows, model)
    found = [_row_of_place(place, row, *more) for place, row in enumerate(rows)]
    indptr = row_bounds([len(indices) for indices, _ in found])
    indices, values = (np.concatenate(each) for each in zip(*found, strict=True))
    return CSR(indptr, indices, values)


def _of_texts(rows: Sequence[Row], model: Model) -> Iterator[_Arrays]:
    """What the rows of texts become, made in one call."""
    texts = [row.text for row in rows if row.text is not None]
    if not texts or model.vectorizer is None:
        return
    indptr, indices, values = model.rows_of(texts)
    for start, end in pairwise(indptr):
        yield indices[start:end], values[start:end]


def _row_of_place(
    place: int, row: Row, model: Model, counted: Numbering, texts: Iterator[_Arrays]
) -> _Arrays:
    try:
        return _row(row, model, counted, texts)
    except (ValueError, TypeError) as error:
        raise ValueError(f"row {place}: {error}") from error


def _row(row: Row, model: Model, counted: Numbering, texts: Iterator[_Arrays]) -> _Arrays:
    """Numbers of features, int32, and their values, float32; those of a text are the next."""
    if [row.indices, row.features, row.text].count(None) != 2:
        raise ValueError("give it either indices (and values), or features, or a text")
    if row.values is not None and row.indices is None:
        raise ValueError("values go with indices; features and texts have their own")
    if row.text is not None:
        if model.vectorizer is None:
            raise ValueError("the model takes rows of features, not texts")
        return next(texts)
    if row.features is not None:
        pairs = number_features(row.features, model, counted)
        return _arrays(list(pairs), list(pairs.values()))
    assert row.indices is not None
    values = [1.0] * len(row.indices) if row.values is None else row.values
    if len(values) != len(row.indices):
        raise ValueError(f"{len(row.indices)} indices do not fit {len(values)} values")
    first = counted.first_feature
    end = first + model.num_features
    for bad in (max(row.indices, default=first), min(row.indices, default=first)):
        if not first <= bad < end:
            raise ValueError(f"feature {bad} is not in [{first}, {end})")
    columns = [index - first for index in row.indices] if first else row.indices
    if len(set(columns)) == len(columns):
        return _arrays(columns, values)
    sums: dict[int, float] = {}
    for index, value in zip(columns, values, strict=True):
        sums[index] = sums.get(index, 0.0) + value
    return _arrays(list(sums), list(sums.values()))


def _arrays(indices: list[int], values: list[float]) -> _Arrays:
    with np.errstate(over="ignore"):
        array = np.array(values, np.float64).astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError("the values of a feature add up to more than a float32 holds")
    return np.array(indices, np.int32), array
