"""Factors of the items of a recommender by alternating least squares: rows of few items, too."""

from typing import Any, ClassVar

import numpy as np
import torch

from slide.data import labels_and_items
from slide.data.unseen import best_unseen
from slide.ops.item_factors import solve_factors, sum_products
from slide.ranking import base_scorer as base
from slide.runtime import num_threads
from slide.search import column_lists, exact_top_k
from slide.search.row_blocks import ones_of
from slide.sparse import CSR, Pattern, check_pattern
from slide.utils import checks
from slide.utils.array_checks import Expected, Stored
from slide.utils.progress_bar import ProgressBar
from slide.utils.sizes import mean_name

# 3 steps of conjugate gradients from the factors of the pass before; a query, which has none, 16.
_STEPS, _QUERY_STEPS = 3, 16
# With held-out rows besides, factors change little.
_PASSES_MORE = 2
# First factors of this size: scores near 0.
_FIRST = 0.1
# Sums of products are of 64 parts of the rows, whatever the number of threads.
_PARTS = 64
# What is tried for `ItemFactors.unobserved`: on six sets, 30, 100, 300 and 1,000 were each the best
# of some, and precision mostly has one peak: a smaller one is tried only if the smallest so far is
# the best. The models that are compared have 16 factors, which take a tenth of the time of 64, and
# say the same.
_TRIED, _FACTORS_OF_TRIAL = (300.0, 1000.0, 100.0, 30.0), 16


class ItemFactors(base.BaseScorer):
    """Scores items by products of factors of a row and of each item (iALS).

    Items that never share a row may have similar factors, because they share rows with the same
    further items; counts of pairs do not know that. The factors minimise the squared error of 1 for
    the items of rows and of 0 for all pairs of a row and an item, which count less (Hu et al. 2008,
    "Collaborative filtering for implicit feedback datasets"). The penalty of a row or item is
    larger, the more items or rows it has (Rendle et al. 2022, "Revisiting the performance of iALS
    on item recommendation benchmarks", section 3). Each half of a pass makes some steps of
    conjugate gradients (Takács et al. 2011, "Applications of the conjugate gradient method for
    implicit feedback collaborative filtering").

    Args:
        factors: number of factors of an item.
        unobserved: number of items of a row that all items together count as; None: held-out
            rows decide.
        penalty: of the squared factors of a row or an item, for each of its items or rows.
        passes: over rows and items.
        proposed: number of candidates.
    """

    name, kinds, slow = "item_factors", ("items",), True
    features: ClassVar = base.scored("item_factors", base.BEHIND, base.RANK)
    counts, numbers = ("factors", "passes", "proposed"), ("unobserved", "penalty")
    factors: int
    passes: int

    def __init__(
        self,
        factors: int = 64,
        unobserved: float | None = None,
        penalty: float = 0.01,
        passes: int = 5,
        proposed: int = 20,
    ):
        self.set_counts(factors=factors, passes=passes, proposed=proposed)
        if unobserved is not None:
            checks.positive("unobserved", unobserved)
        checks.positive("penalty", penalty)
        self.penalty, self.unobserved = penalty, unobserved or _TRIED[0]
        self._tried = _TRIED if unobserved is None else (unobserved,)
        # Factors of labels and of features, which may become other items; the weighted sum of the
        # products of the factors of all items.
        self.labels = self.own = self.gram = np.zeros((0, factors), np.float32)

    def fit(
        self, items: Pattern, num_features: int, num_items: int, more: bool = False
    ) -> "ItemFactors":
        """Learn factors from rows of items; items from ``num_features`` on are no features.

        ``more``: begin with the factors that there are; fewer passes suffice then.
        """
        check_pattern("items", items, None, num_items)
        of_items = Pattern(*column_lists(ones_of(items), num_items)[:2])
        draws, share = np.random.default_rng(0), self.unobserved / max(num_items, 1)
        if more and len(self.labels):
            found, passes = _resized(self.labels, num_items).copy(), min(_PASSES_MORE, self.passes)
        else:
            found = draws.standard_normal((num_items, self.factors), np.float32)
            passes = self.passes
            found *= _FIRST / self.factors**0.5
        rows = np.zeros((items.num_rows, self.factors), np.float32)
        for _ in ProgressBar(range(passes), "factors of items", passes, leave=False):
            self._solve(items, found, self._gram(found, share), self.unobserved, _STEPS, rows)
            weight = share * items.num_rows
            self._solve(of_items, rows, self._gram(rows, share), weight, _STEPS, found)
        self.labels, self.gram = found, self._gram(found, share)
        self.own = _resized(found, num_features)
        return self

    def _gram(self, factors: np.ndarray, share: float) -> np.ndarray:
        """The sum of all products of factors, times a share."""
        found = np.empty((_PARTS, self.factors, self.factors), np.float32)
        sum_products(factors, found)
        return np.float32(share) * found.sum(0)

    def _solve(
        self,
        rows: Pattern,
        other: np.ndarray,
        gram: np.ndarray,
        more: float,
        steps: int,
        found: np.ndarray,
    ) -> None:
        """Factors of rows, of which ``more`` further items count in the penalty."""
        penalty = (self.penalty * (np.diff(rows.indptr) + more)).astype(np.float32)
        scratch = np.empty((num_threads(), 3, self.factors), np.float32)
        solve_factors(rows, other, gram, penalty, steps, scratch, found)

    def of_rows(self, features: CSR) -> np.ndarray:
        """The factors ``(B, factors)`` float32 of rows of items; values do not count."""
        check_pattern("features", features, None, len(self.own))
        found = np.zeros((features.num_rows, self.factors), np.float32)
        rows = Pattern(features.indptr, features.indices)
        self._solve(rows, self.own, self.gram, self.unobserved, _QUERY_STEPS, found)
        return found

    def best(self, rows: np.ndarray, k: int, left_out: Pattern | None = None) -> np.ndarray:
        """The k items ``(B, k)`` with the largest scores that are not left out; -1: no more."""
        labels = torch.from_numpy(self.labels)
        left_out = Pattern.from_lists([[]] * len(rows)) if left_out is None else left_out

        def best(some: np.ndarray, depth: int) -> np.ndarray:
            return exact_top_k(torch.from_numpy(rows[some]), labels, None, depth)[1].numpy()

        return best_unseen(left_out, k, len(labels), best)

    def learn(self, training: base.Training) -> None:
        train, held = training.train, training.held
        learnt = labels_and_items(train), train.num_features, train.num_labels
        if held is not None and len(self._tried) > 1:
            found: dict[float, float] = {}
            for unobserved in self._tried:
                if len(found) > 1 and max(found, key=lambda each: found[each]) > min(found):
                    break
                few = min(self.factors, _FACTORS_OF_TRIAL)
                model = ItemFactors(few, unobserved, self.penalty, self.passes).fit(*learnt)
                found[unobserved] = training.precision(
                    lambda rows, *more, m=model: m.best(m.of_rows(rows), *more)
                )
            self.unobserved = max(found, key=lambda each: found[each])
            figures = ", ".join(f"{value / 100:.3f} with {each:g}" for each, value in found.items())
            training.notes.append(
                f"factors of items: all items count as {self.unobserved:g} of a row; "
                f"{mean_name(training.cut_offs)} {figures} on {len(training.trial):,} held-out rows"
            )
        self.fit(*learnt, more=held is None)

    def propose(self, queries: base.Queries) -> base.Named:
        rows = self.of_rows(queries.features)
        return base.Named(
            self.best(rows, min(self.proposed, queries.num_labels), queries.seen), rows
        )

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        rows = np.repeat(np.arange(len(more)), np.diff(candidates.starts))
        found = np.einsum("cf,cf->c", more[rows], self.labels[candidates.flat(candidates.ids)])
        return {"item_factors": found}

    def arrays(self) -> dict[str, np.ndarray]:
        found = {"labels": self.labels, "gram": self.gram}
        if not np.shares_memory(self.own, self.labels):  # Else they are the first labels.
            found["own"] = self.own
        return found

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        super().restore(stored, num_labels, num_features)
        self.unobserved, self.penalty = (stored.number(n, 0) for n in ("unobserved", "penalty"))
        for name, rows in {"labels": num_labels, "gram": self.factors, "own": num_features}.items():
            if name != "own" or name in stored:
                setattr(self, name, stored.array(name, Expected((rows, self.factors), "float32")))
            else:
                self.own = _resized(self.labels, num_features)

    def grown(self, labels: int, features: int) -> "ItemFactors":
        own = _resized(self.own, len(self.own) + features)
        return self.with_(labels=_resized(self.labels, len(self.labels) + labels), own=own)

    def selected(self, kept: np.ndarray, num_labels: int) -> "ItemFactors":
        return self.with_(labels=self.labels[kept])


def _resized(rows: np.ndarray, count: int) -> np.ndarray:
    """The first ``count`` rows, or all, and then rows of 0."""
    if count <= len(rows):
        return rows[:count]  # A view: mostly labels and features are the same items.
    return np.pad(rows, ((0, count - len(rows)), (0, 0)))
