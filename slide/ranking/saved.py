"""A re-ranker as numbers and tensors of a model folder, also of those of earlier versions."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.nn.answers import Reranker
from slide.ranking.base_scorer import FIRST_FEATURES
from slide.ranking.ensemble import EnsembleRanker
from slide.utils.array_checks import Stored

# Where the numbers of earlier models are now; "." stands between a scorer and its number.
_NUMBERS = {
    "depth": ("network.proposed",),
    "voted": ("neighbours.proposed",),
    "associated": ("cooccurrence.proposed",),
    "negatives": ("linear.negatives",),
    "neighbours": ("neighbours.count",),
    "idf": ("neighbours.weighted",),
    "num_rows": ("neighbours.num_rows", "cooccurrence.num_rows"),
    "bias": ("linear.bias",),
    "counts_items": ("linear.counts_items",),
    "judge_base": ("final_ranker.base",),
    "judge_slope": ("final_ranker.slope",),
    "judge_trust": ("final_ranker.weights",),
    "excludes_known": ("excludes_seen",),
}
# Where their arrays are now, by what the names begin with.
_ARRAYS = {
    "classifiers.": ("linear.weights.",),
    "neighbours.": ("neighbours.search.",),
    "row_labels.": ("neighbours.labels.", "analogous.labels.", "seen.labels."),
    "associations.unseen": ("cooccurrence.unseen",),
    "associations.label_shares": ("cooccurrence.label_shares",),
    "associations.": ("cooccurrence.lists.",),
    "feature_weights": ("neighbours.feature_weights",),
    "judge.": ("final_ranker.",),
    "known.": ("seen.",),
    "substitutes.": ("analogous.similar.",),
    "questions.rests": ("analogous.rests",),
    "questions.": ("analogous.questions.",),
}


def ranker_state(ranker: Reranker) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The numbers of a trained ranker, and its arrays by name; of the same ones the first."""
    numbers, arrays = ranker.state()
    same: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, array in arrays.items():
        # Labels of training rows are in several scorers.
        before = [each for each in tensors if ".labels." in each and ".labels." in name]
        first = next((each for each in before if np.array_equal(array, arrays[each])), None)
        if first is None:
            tensors[name] = torch.from_numpy(np.require(array, requirements=("C", "W")))
        else:
            same[name] = first
    return {**numbers, "same": same}, tensors


def restored_ranker(stored: Stored, num_labels: int, num_features: int) -> EnsembleRanker:
    """The ranker that had this `ranker_state`; the arrays are views."""
    numbers, arrays = stored.numbers, dict(stored.arrays)
    if "scorers" not in numbers:
        for name in ("objective", "known", "kind"):  # An error names the one that is not there.
            stored.get(name)
        numbers, arrays = _renamed(numbers, arrays, num_labels, num_features)
    for name, first in stored.of(numbers, arrays).mapping("same").items():
        if first not in arrays:
            stored.refuse_array(str(first), f"be there, as {name} is the same")
        arrays[name] = arrays[first]
    return EnsembleRanker.restored(stored.of(numbers, arrays), num_labels, num_features)


def _renamed(
    settings: dict[str, Any], arrays: dict[str, Any], labels: int, features: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    graph = settings["kind"] == "graph"
    found: dict[str, Any] = {
        "neighbours": {"num_labels": labels},
        "linear": {"num_features": features},
        **({"analogous": {"num_labels": labels}} if graph else {}),
    }
    kept = {name: settings[name] for name in ("objective", "known", "kind")}
    for name, value in settings.items():
        for new in _NUMBERS.get(name, ()):
            scorer, _, key = new.rpartition(".")
            (found.setdefault(scorer, {}) if scorer else kept)[key] = value
    # Features of analogous queries were 0 where there were none; they are the last ones.
    names = [name for name in FIRST_FEATURES if graph or not name.startswith("analogous")]
    final = found.pop("final_ranker")
    kept |= {"features": names, "final_ranker": final, "scorers": found, "same": {}}
    moved: dict[str, Any] = {}
    for name, array in arrays.items():
        prefix = next((each for each in _ARRAYS if name.startswith(each)), "")
        moved |= {new + name.removeprefix(prefix): array for new in _ARRAYS.get(prefix, ("",))}
    return kept, moved
