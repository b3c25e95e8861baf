"""How good a network is: precision over a whole split, and recall of its selection."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from slide import checks
from slide.active_set import ActiveSet
from slide.data import Batches, Split
from slide.nn.network import SlideNetwork
from slide.nn.sampled_linear import SampledLinear
from slide.ranking.linear_ranker import LinearRanker
from slide.search.exact import exact_top_k
from slide.training import metrics

_BATCH = 1024
_TOP = 5


def check_search(network: SlideNetwork, search: str) -> None:
    """Raise ValueError unless ``network`` can be evaluated by ``search``."""
    checks.one_of("evaluation", search, ("exact", "index"))
    if search == "index":
        network.output.check_index()


def predict_split(
    network: SlideNetwork, split: Split, search: str, ranker: LinearRanker | None = None
) -> np.ndarray:
    """Ids ``(rows, 5)`` of the best outputs of each row, best first; -1: no more."""
    k = min(_TOP, network.output.out_features)
    depth = k if ranker is None else min(max(k, ranker.depth), network.output.out_features)
    found = np.full((len(split), _TOP), -1, np.int64)
    batches = Batches(split, _BATCH, seed=0, shuffle=False)
    for batch in tqdm(batches.epoch(0), "evaluate", len(batches), leave=False, disable=None):
        scores, ids = (each.numpy() for each in network.predict(batch.features, depth, search))
        if ranker is not None:
            _, ids = ranker.rerank(batch.features, ids, scores, k)
        found[batch.rows, :k] = ids
    return found


def evaluate(
    network: SlideNetwork,
    split: Split,
    inverse: np.ndarray,
    search: str = "exact",
    ranker: LinearRanker | None = None,
) -> dict[str, float]:
    """P@k, nDCG@k and propensity-scored P@k for k = 1, 3, 5 over all rows of ``split``.

    Args:
        network: to be judged.
        split: rows with labels.
        inverse: ``(N,)`` inverse propensities (`slide.training.metrics.inverse_propensities`).
        search: see `slide.nn.network.SlideNetwork.predict`.
        ranker: has the last word on the order.
    """
    found = predict_split(network, split, search, ranker)
    scores: dict[str, float] = {}
    for name, metric in _METRICS.items():
        for k in (1, 3, 5):
            scores[f"{name}_at_{k}"] = metric(found, split, k, inverse)
    return scores


_METRICS: dict[str, Callable[[np.ndarray, Split, int, np.ndarray], float]] = {
    "p": lambda found, split, k, _: metrics.precision_at_k(found, split.labels, k),
    "ndcg": lambda found, split, k, _: metrics.ndcg_at_k(found, split.labels, k),
    "psp": lambda found, split, k, inverse: metrics.psp_at_k(found, split.labels, k, inverse),
}


def majority_precision(train: Split, judged: Split) -> float:
    """P@1 on ``judged`` of always answering the most frequent label of the rows of ``train``."""
    counts = np.bincount(train.labels.indices, minlength=train.num_labels)
    answers = np.full((len(judged), 1), counts.argmax())
    return metrics.precision_at_k(answers, judged.labels, 1)


@torch.no_grad()
def selection_recall(
    layer: SampledLinear, inputs: Tensor, active: ActiveSet, k: int = 10, samples: int = 32
) -> float:
    """Which share of the k largest inner products of an input its active set holds.

    Costs a look at all outputs for each sample, so it is for now and then.

    Args:
        layer: that chose the set.
        inputs: ``(B, D)``, its inputs.
        active: the set.
        k: how many of the true largest.
        samples: how many of the inputs are looked at.
    """
    if active.complete:
        return 1.0
    k = min(k, layer.out_features)
    _, best = exact_top_k(inputs[:samples], layer.weight, layer.bias, k)
    held = [np.isin(row, active.row(b)).mean() for b, row in enumerate(best.numpy())]
    return float(np.mean(held))


def inspect_selection(layer: SampledLinear, inputs: Tensor, active: ActiveSet) -> dict[str, float]:
    """Scalars for the log: `selection_recall`, and how full hash tables are.

    Args:
        layer: that chose the set.
        inputs: ``(B, D)``, its inputs.
        active: the set.
    """
    return {
        "selection/recall": selection_recall(layer, inputs, active),
        **layer.sampler.statistics(),
    }
