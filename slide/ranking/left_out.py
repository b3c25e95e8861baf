"""Base scorers of saved models that slide no longer has."""

from typing import Any, ClassVar

import numpy as np

from slide.data import Split
from slide.ranking import base_scorer as base

# Their features, and what they said of a candidate of which they knew nothing.
LEFT_OUT: dict[str, tuple[dict[str, str], tuple[float, ...]]] = {
    "conjunctions": (
        base.scored("conjunctions", base.BEHIND, base.RANK, base.BEST),
        (-12.0, 0.0, 20.0, -12.0),
    ),
    "item_factors": (base.scored("item_factors", base.BEHIND, base.RANK), (0.0, 0.0, 20.0)),
}


class LeftOut(base.BaseScorer):
    """Says the same of all candidates, so that the trees of the model find their features."""

    counts: ClassVar = ()
    derives = False

    def __init__(self, name: str):
        self.name = name  # pyright: ignore[reportAttributeAccessIssue]
        self.features, self._said = LEFT_OUT[name]  # pyright: ignore[reportAttributeAccessIssue]
        self.nothing = self._said[0]

    def suits(self, train: Split) -> bool:
        return False

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        count = candidates.starts[-1]
        pairs = zip(self.features, self._said, strict=True)
        return {name: np.full(count, said, np.float32) for name, said in pairs}
