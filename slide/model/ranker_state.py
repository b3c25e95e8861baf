"""A trained re-ranker as numbers and tensors, with the lists that it searches.

It holds what was made from the training rows: lists of neighbours and associations, known labels.
These lists can be searched as they lie in the file. Of dense rows it holds the index of FAISS,
which is copied into memory.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.data import SeenItems, SeenLabels
from slide.ops.kernels.base_scorers import Questions
from slide.ops.kernels.trees import Trees
from slide.ranking import Associations, EnsembleRanker, LinearClassifiers, Neighbours, Substitutes
from slide.ranking.dense_search import DenseSearch
from slide.ranking.list_search import ListSearch
from slide.sparse import CSR, Pattern


def ranker_settings(ranker: EnsembleRanker) -> dict[str, Any]:
    """The numbers of a ranker."""
    if not len(ranker.inverse):
        raise RuntimeError("the ranker is not trained: call fit first")
    return {
        "depth": ranker.depths.network,
        "voted": ranker.depths.neighbours,
        "associated": ranker.depths.associations,
        "negatives": ranker.negatives,
        "objective": ranker.objective,
        "known": ranker.known,
        "kind": ranker.kind,
        "excludes_known": ranker.known_labels is not None,
        "neighbours": ranker.neighbours.count,
        "idf": ranker.neighbours.weighted,  # The name of earlier versions.
        "num_rows": ranker.neighbours.fitted().num_rows,
        "longest": ranker.associations.longest,
        "bias": ranker.classifiers.solver.bias,
        "counts_items": ranker.classifiers.counts_items,
        "judge_base": ranker.judge.base,
        "judge_slope": ranker.judge.slope,
        "judge_trust": list(map(float, ranker.judge.trust)),
    }


def ranker_tensors(ranker: EnsembleRanker) -> dict[str, Tensor]:
    """The arrays of a trained ranker, by name."""
    assert ranker.classifiers.weights is not None
    search = ranker.neighbours.fitted()
    found = {
        **_named("classifiers", ranker.classifiers.weights),
        **{f"neighbours.{name}": array for name, array in search.state().items()},
        **_named("row_labels", Pattern(*ranker.neighbours.labels[:2])),
        **_named("associations", ranker.associations.lists),
        "associations.unseen": ranker.associations.unseen,
        "associations.label_shares": ranker.associations.label_shares,
        "feature_weights": search.weights,
        "frequency": ranker.frequency,
        "inverse": ranker.inverse,
    }
    if ranker.judge.trees is not None:
        found |= _named("judge", ranker.judge.trees)
    if isinstance(ranker.known_labels, SeenItems) and ranker.known_labels.items is not None:
        found["known.items"] = ranker.known_labels.items
    if isinstance(ranker.known_labels, SeenLabels):
        found["known.keys"] = ranker.known_labels.keys.view(np.int64)
        found["known.rows"] = ranker.known_labels.rows
    if not ranker.substitutes.empty:
        found |= _named("substitutes", ranker.substitutes.similar)
        found |= _named("questions", ranker.substitutes.questions)
        found["questions.rests"] = ranker.substitutes.rests.view(np.int64)
    whole = {name: np.require(array, requirements=("C", "W")) for name, array in found.items()}
    return {name: torch.from_numpy(array) for name, array in whole.items()}


def restored_ranker(settings: dict[str, Any], tensors: dict[str, Tensor]) -> EnsembleRanker:
    """The ranker that had these `ranker_settings` and `ranker_tensors`; the arrays are views."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    numbers = ("depth", "voted", "associated", "negatives", "objective", "known")
    ranker = EnsembleRanker(
        LinearClassifiers(bias=settings["bias"]),
        neighbours=settings["neighbours"],
        **{name: settings[name] for name in numbers},
    )
    ranker.frequency, ranker.inverse = arrays["frequency"], arrays["inverse"]
    labels: Pattern = _taken(Pattern, "row_labels", arrays)
    num_labels = len(ranker.frequency)
    near = Neighbours(settings["neighbours"], settings["idf"])
    search = DenseSearch if "neighbours.index" in arrays else ListSearch
    state = {name: arrays[f"neighbours.{name}"] for name in search.ARRAYS}
    how = settings["num_rows"], settings["idf"]
    near.search = search.restored(state, arrays["feature_weights"], *how)
    near.num_labels = num_labels
    near.labels = CSR(labels.indptr, labels.indices, np.ones(len(labels.indices), np.float32))
    ranker.neighbours = near
    ranker.associations = Associations(settings["longest"])
    ranker.associations.lists = _taken(CSR, "associations", arrays)
    ranker.associations.num_labels = num_labels
    ranker.associations.unseen = arrays["associations.unseen"]
    ranker.associations.label_shares = arrays["associations.label_shares"]
    if "questions.rests" in arrays:  # Models of an earlier slide have none.
        ranker.substitutes = _substitutes(arrays, labels, num_labels)
    ranker.classifiers.weights = _taken(CSR, "classifiers", arrays)
    ranker.classifiers.num_features = len(ranker.associations.unseen)
    ranker.classifiers.counts_items = settings.get("counts_items", False)
    ranker.judge.base = settings["judge_base"]
    ranker.judge.slope = settings.get("judge_slope", 1.0)
    ranker.judge.trust = settings.get("judge_trust", ranker.judge.trust)
    if "judge.roots" in arrays:
        ranker.judge.trees = _taken(Trees, "judge", arrays)
    elif "judge_trust" not in settings:
        raise ValueError(
            "this model is of an earlier slide, which ranked in another way after few hits: make "
            "it again, or open it with that one"
        )
    ranker.kind = settings["kind"]
    if settings["excludes_known"] and ranker.kind == "items":
        ranker.known_labels = SeenItems(num_labels, arrays.get("known.items"))
    elif settings["excludes_known"]:
        keys = arrays["known.keys"].view(np.uint64)
        ranker.known_labels = SeenLabels.restored(keys, arrays["known.rows"], labels)
    return ranker


def _substitutes(arrays: dict[str, np.ndarray], labels: Pattern, num_labels: int) -> Substitutes:
    found = Substitutes()
    found.num_labels, found.rests = num_labels, arrays["questions.rests"].view(np.uint64)
    found.questions, found.labels = _taken(Questions, "questions", arrays), labels
    found.similar = _taken(CSR, "substitutes", arrays)
    return found


def _named(prefix: str, arrays: Any) -> dict[str, np.ndarray]:
    return {f"{prefix}.{name}": array for name, array in arrays._asdict().items()}


def _taken(kind: Any, prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    return kind(*(arrays[f"{prefix}.{name}"] for name in kind._fields))
