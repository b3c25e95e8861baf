"""What a step costs at sizes between the measured ones, and on more cores: fitted, and predicted.

The time of a step on p cores is s + w / p (Amdahl 1967, "Validity of the single processor approach
to achieving large scale computing capabilities"). On one number of cores it is

    a + b H + c H log2(N / 2^14) + d H log2(D / 10^4)      a, b, c, d >= 0

for H hidden units, N outputs and D features: a call costs a, the work on rows of H numbers b, and
the larger the tables, the more of these rows come from far away. Fitted by least squares of the
relative errors.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rows import Row
from scipy.optimize import nnls

# name: the column of a row; without the first, those that do not vary among the rows are left out.
TERMS: dict[str, Callable[[Row], float]] = {
    "a": lambda row: 1.0,
    "b H": lambda row: row["hidden"],
    "c H log2(N / 2^14)": lambda row: row["hidden"] * max(0.0, math.log2(row["outputs"] / 2**14)),
    "d H log2(D / 10^4)": lambda row: row["hidden"] * max(0.0, math.log2(row["features"] / 10**4)),
}
# The same for bytes.
BYTES: dict[str, Callable[[Row], float]] = {
    "a process": lambda row: 1.0,
    "an output": lambda row: row["outputs"],
    "a weight of the outputs": lambda row: row["outputs"] * row["hidden"],
    "a weight of the features": lambda row: row["features"] * row["hidden"],
}


class Fit(NamedTuple):
    """A sum of terms.

    Attributes:
        terms: names of its terms, keys of ``of``.
        factors: of each of them, not negative.
        of: columns by name.
    """

    terms: tuple[str, ...]
    factors: tuple[float, ...]
    of: dict[str, Callable[[Row], float]]

    def __call__(self, row: Row) -> float:
        """The value for a row with the sizes ``outputs``, ``features`` and ``hidden``."""
        pairs = zip(self.terms, self.factors, strict=True)
        return sum(factor * self.of[term](row) for term, factor in pairs)

    def errors(self, rows: list[Row], value: Callable[[Row], float]) -> list[float]:
        """Relative errors, without their signs."""
        return [abs(self(row) / value(row) - 1) for row in rows]


def fit(
    rows: list[Row],
    value: Callable[[Row], float],
    of: dict[str, Callable[[Row], float]] | None = None,
) -> Fit:
    """The factors, none of them negative, with the least squares of the relative errors.

    Args:
        rows: sizes that were measured.
        value: what was measured, above 0.
        of: columns by name; None: `TERMS`.
    """
    columns = TERMS if of is None else of
    first, *others = columns
    # Columns that are multiples of one another cannot be told apart: the first of them stays.
    kept, directions = [first], [_direction(columns[first], rows)]
    for name in others:
        direction = _direction(columns[name], rows)
        if all(abs(direction @ each) < 1 - 1e-9 for each in directions) and direction.any():
            kept.append(name)
            directions.append(direction)
    matrix = np.array([[columns[name](row) / value(row) for name in kept] for row in rows])
    scale = np.abs(matrix).max(0)
    shares = nnls(matrix / scale, np.ones(len(rows)))[0]
    factors = np.where(shares > 1e-9, shares, 0) / scale  # Rounding errors are no terms.
    return Fit(tuple(kept), tuple(factors.tolist()), columns)


def _direction(column: Callable[[Row], float], rows: list[Row]) -> np.ndarray:
    values = np.array([column(row) for row in rows], float)
    return values / (np.linalg.norm(values) or 1.0)


def on_cores(one: float, several: float, measured: int, cores: int) -> float:
    """The time on ``cores`` cores from that on one and on ``measured`` cores, by s + w / p.

    Args:
        one, several: times on one core and on ``measured`` of them, above 0.
        measured: above 1.
        cores: number of cores to predict for.
    """
    parallel = min(max((one - several) * measured / (measured - 1), 0.0), one)
    return one - parallel + parallel / cores


def largest_outputs(memory: Fit, limit: float, features: int, hidden: int) -> int:
    """How many outputs fit into ``limit`` bytes; 0: none."""

    def needed(outputs: int) -> float:
        return memory({"outputs": outputs, "features": features, "hidden": hidden})

    each = needed(2) - needed(1)
    return max(int((limit - needed(0)) / each), 0) if each > 0 else 0
