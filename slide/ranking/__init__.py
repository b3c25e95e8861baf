"""The re-ranker: base scorers score labels, and a final ranker combines what they say.

The final ranker learns from held-out rows how much each scorer counts (stacking).
"""

from typing import Any

from slide.data.row_kinds import KindChoice as KindChoice
from slide.data.row_kinds import choose_kind as choose_kind
from slide.nn.answers import Ranked as Ranked
from slide.ranking.ensemble import EnsembleRanker as EnsembleRanker
from slide.ranking.scorers.analogous import AnalogousQueries as AnalogousQueries
from slide.ranking.scorers.cooccurrence import Cooccurrence as Cooccurrence
from slide.ranking.scorers.item_similarity import ItemSimilarity as ItemSimilarity
from slide.ranking.scorers.linear import LinearClassifiers as LinearClassifiers
from slide.ranking.scorers.neighbours import Neighbours as Neighbours

# Names of the version before.
_RENAMED = {"Associations": Cooccurrence, "Substitutes": AnalogousQueries}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        return _RENAMED[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
