"""Evaluation of a network: ranking metrics of extreme classification, on the samples of a split."""

from dataclasses import replace
from typing import Any

import numpy as np

from slide.backend import on_host
from slide.data import Batches, SparseDataset, Split, divide
from slide.data.unseen import most_frequent
from slide.nn import SlideNetwork
from slide.nn.answers import Ranked, Reranker
from slide.nn.sampled_linear import SEARCHES
from slide.sparse import Pattern, hits
from slide.utils import checks
from slide.utils.progress_bar import ProgressBar

# What the names of the scores of the network alone begin with, where there is a re-ranker.
NETWORK = "network_"
_BATCH = 1024
# Largest cut-off k of the metrics of all rows, and of metrics of graphs and of recommenders.
TOP, _FURTHER = 5, 20
_BINS = 10  # Of the calibration error.
_FEWEST_ROWS = 10  # Fewer do not tell what was learnt from chance.


def precision_at_k(predicted: np.ndarray, labels: Pattern, k: int) -> float:
    """Share of the first k predictions that are labels, in [0, 1].

    All metrics follow the Extreme Classification Repository: means are over all samples, and one
    without labels counts as a miss. ``predicted`` ``(n, k')`` integers hold the ids of the best
    outputs, best first; -1: there are no more. ``labels`` are of the n samples. It is a ValueError
    if the numbers of samples differ, if there are none, or if k is not in [1, k'].

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import precision_at_k
        >>> labels = Pattern.from_lists([[3], [0, 2]])
        >>> precision_at_k(np.array([[3, 1], [1, 2]]), labels, k=2)
        0.5
    """
    return float(_first_hits(predicted, labels, k).sum(1).mean()) / k


def ndcg_at_k(predicted: np.ndarray, labels: Pattern, k: int) -> float:
    """Discounted gain of the first k predictions over the best possible one, in [0, 1].

    A hit at rank i, counted from 1, gains 1 / log2(i + 1) (Järvelin and Kekäläinen 2002,
    "Cumulated gain-based evaluation of IR techniques").

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import ndcg_at_k
        >>> round(ndcg_at_k(np.array([[1, 3]]), Pattern.from_lists([[3]]), k=2), 3)
        0.631
    """
    found = _first_hits(predicted, labels, k)
    discount = 1 / np.log2(np.arange(2, k + 2))
    gain = found @ discount
    counts = np.minimum(np.diff(labels.indptr), k)
    best = np.concatenate([[0.0], np.cumsum(discount)])[counts]
    return float(np.divide(gain, best, out=np.zeros(len(gain)), where=best > 0).mean())


def recall_at_k(predicted: np.ndarray, labels: Pattern, k: int) -> float:
    """Share of the labels of a sample among the first k predictions, on average, in [0, 1].

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import recall_at_k
        >>> recall_at_k(np.array([[3, 1]]), Pattern.from_lists([[1, 2, 3, 5]]), k=2)
        0.5
    """
    found = _first_hits(predicted, labels, k).sum(1)
    return float((found / np.maximum(np.diff(labels.indptr), 1)).mean())


def reciprocal_ranks(predicted: np.ndarray, labels: Pattern) -> np.ndarray:
    """1 / the rank of each label that is predicted, where other labels of its sample are left out.

    If no label of training is predicted, the ranks are the filtered ones of knowledge graphs
    (Bordes et al. 2013, "Translating embeddings for modeling multi-relational data", section 4.2).

    Returns ``(nnz,)`` float64, one for each label of all samples; 0: it is not predicted. Their
    mean is the mean reciprocal rank; the share of them that is at least 1 / k is Hits@k.

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import reciprocal_ranks
        >>> reciprocal_ranks(np.array([[1, 5, 3]]), Pattern.from_lists([[1, 3, 4]]))
        array([1. , 0.5, 0. ])
    """
    found = _first_hits(predicted, labels, predicted.shape[1])
    ranks = np.arange(1, found.shape[1] + 1) - (np.cumsum(found, 1) - found)
    known = 1 / ranks[found]
    return np.concatenate([known, np.zeros(len(labels.indices) - len(known))])


def calibration_error(scores: np.ndarray, predicted: np.ndarray, labels: Pattern) -> float:
    """Mean distance of predicted probabilities from the shares of right predictions, in [0, 1].

    Predictions are put into ten bins of equal width by their probability, whose distances are
    weighted by their sizes (expected calibration error: Guo et al. 2017, "On calibration of modern
    neural networks", section 2).

    ``scores`` ``(n, k)`` are the probabilities of the predictions.

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import calibration_error
        >>> labels = Pattern.from_lists([[3], [0, 2]])
        >>> calibration_error(np.array([[0.9, 0.1]] * 2), np.array([[3, 1], [1, 2]]), labels)
        0.4
    """
    known = predicted >= 0
    right, sure = hits(predicted, labels)[known], scores[known].astype(np.float64)
    gaps = np.bincount(_bins(sure), right) - np.bincount(_bins(sure), sure)
    return float(np.abs(gaps).sum() / max(len(right), 1))


def chance_calibration_error(scores: np.ndarray, predicted: np.ndarray) -> float:
    """The expected `calibration_error` if each probability is right, in [0, 1].

    It is not 0, because the share of right predictions in a bin varies by chance: their number is
    nearly normal, and differs from the sum of the probabilities by sqrt(2 / pi) of its standard
    deviation on average.

    Example:
        >>> import numpy as np
        >>> from slide.training import chance_calibration_error
        >>> round(chance_calibration_error(np.full((400, 1), 0.5), np.zeros((400, 1), int)), 3)
        0.02
    """
    sure = scores[predicted >= 0].astype(np.float64)
    variances = np.bincount(_bins(sure), np.maximum(sure * (1 - sure), 0))
    return float(np.sqrt(2 / np.pi * variances).sum() / max(len(sure), 1))


def _bins(probabilities: np.ndarray) -> np.ndarray:
    """The bin of each probability."""
    return np.minimum((probabilities * _BINS).astype(int), _BINS - 1)


def inverse_propensities(
    train_labels: Pattern, num_labels: int, a: float = 0.55, b: float = 1.5
) -> np.ndarray:
    """How much a hit of each label counts: rare labels count more.

    A label of n of the R training rows counts 1 + C (n + b)^-a, with C = (ln R - 1) (b + 1)^a (Jain
    et al. 2016, "Extreme multi-label loss functions for recommendation, tagging, ranking and other
    missing label applications", section 5).

    ``a`` and ``b`` are constants of the data set; the defaults are the paper's for most sets.
    Returns ``(N,)`` float64.

    Example:
        >>> from slide import Pattern
        >>> from slide.training import inverse_propensities
        >>> train = Pattern.from_lists([[0], [0], [0], [0, 1]])
        >>> inverse_propensities(train, num_labels=2).round(2)
        array([1.25, 1.39])
    """
    counts = np.bincount(train_labels.indices, minlength=num_labels)
    c = (np.log(max(train_labels.num_rows, 2)) - 1) * (b + 1) ** a
    return 1 + c * (counts + b) ** -a


def psp_at_k(predicted: np.ndarray, labels: Pattern, k: int, inverse: np.ndarray) -> float:
    """Propensity-scored precision, divided by the best possible value, in [0, 1].

    It is defined in Jain et al. 2016, section 5; ``inverse`` is from `inverse_propensities`.

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import psp_at_k
        >>> inverse = np.array([1.0, 3.0])
        >>> psp_at_k(np.array([[1], [1]]), Pattern.from_lists([[0], [1]]), 1, inverse)
        0.75
    """
    gain = (_first_hits(predicted, labels, k) * inverse[np.maximum(predicted[:, :k], 0)]).sum()
    rows = labels.entry_rows()
    weights = inverse[labels.indices]
    order = np.lexsort((-weights, rows))
    rank = np.arange(len(rows)) - labels.indptr[rows]
    best = weights[order][rank < k].sum()
    return float(gain / best) if best > 0 else 0.0


def _first_hits(predicted: np.ndarray, labels: Pattern, k: int) -> np.ndarray:
    """Which of the first k predictions are labels of their sample: ``(n, k)`` bool."""
    most = predicted.shape[1]
    if not isinstance(k, int | np.integer) or not 1 <= k <= most:
        raise ValueError(
            f"k must be a whole number in [1, {most}], the number of predictions, not {k!r}"
        )
    if not len(predicted):
        raise ValueError("there are no rows, so no prediction is right or wrong")
    return hits(predicted[:, :k], labels)


def choose_samples(
    data: SparseDataset, holdout: float, seed: int, kind: str = "auto"
) -> tuple[Split, Split]:
    """Samples to train on, and to evaluate on: held-out training samples, or test samples."""
    train, evaluated = data.train, data.test
    if kind == "items" and any(step.renumbers for step in data.steps):
        raise ValueError(
            "kind=items needs items with one number, as feature and as label; hashed_features, "
            "min_label_count and bins (standardize=false: none) give them others: leave these out, "
            "or leave kind=auto"
        )
    if kind != "auto":
        train = replace(train, kind=kind)
    if holdout:
        train, evaluated = divide(train, holdout, seed)
    if not len(train):
        raise ValueError("the data set has no training rows")
    if not len(train.labels.indices):
        raise ValueError(
            "no training row has a label: in text a row begins with its labels, and one without "
            "labels with a space"
        )
    if not len(evaluated):
        raise ValueError("the data set has no rows to evaluate on; dataset.holdout makes some")
    return train, evaluated


def check_search(sampler: Any, search: str) -> None:
    """Raise ValueError unless a network whose outputs have ``sampler`` can be evaluated so."""
    checks.one_of("evaluation", search, SEARCHES)
    if search == "sampler" and not sampler.has_index:
        name = type(sampler).__name__
        raise ValueError(f"evaluation=sampler needs a sampler with an index; this {name} has none")


def predict_split(
    network: SlideNetwork, split: Split, search: str, ranker: Reranker | None = None
) -> Ranked:
    """The best labels of each sample: 5, or 20 of a ranker of a graph or a recommender."""
    if not len(split):
        raise ValueError("there are no rows to evaluate")
    top = _FURTHER if ranker is not None and ranker.kind in ("graph", "items") else TOP
    most = min(top, network.output.out_features)
    parts = []
    batches = Batches(split, _BATCH, seed=0, shuffle=False)
    for batch in ProgressBar(batches.epoch(0), "evaluate", len(batches), leave=False):
        if ranker is None:
            scores, ids = map(on_host, network.predict(batch.features, most, search))
            parts.append(Ranked.of(top, scores, ids))
        else:
            parts.append(ranker.rank(network, batch.features, top, search))
    return Ranked(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def evaluate(
    network: SlideNetwork,
    split: Split,
    inverse: np.ndarray,
    search: str = "exact",
    ranker: Reranker | None = None,
) -> dict[str, float]:
    """P@k, nDCG@k and propensity-scored P@k for k = 1, 3, 5 over all samples of ``split``.

    Args:
        inverse: ``(N,)`` inverse propensities; see `slide.training.inverse_propensities`.
        search: ``"exact"``, ``"index"`` or ``"sampler"``; see `slide.SampledLinear.top_k`.
        ranker: re-ranks the labels; None: no re-ranking.

    Returns:
        ``p_at_1``, ..., ``ndcg_at_1``, ..., ``psp_at_5``, each in [0, 1]. With a ranker, the same
        of the network alone as ``network_...``, and, if its scores are probabilities,
        ``calibration_error`` of five predictions and ``calibration_error_at_1`` of the first ones
        (`slide.training.calibration_error`), and both by chance alone as ``chance_...``. With one
        of a knowledge graph also ``mrr`` and ``hits_at_k`` for k = 1, 3, 10, where ranks beyond 20
        count as none (`reciprocal_ranks`); with one of a recommender ``recall_at_20`` and
        ``ndcg_at_20``.

    Example:
        >>> import numpy as np
        >>> import slide
        >>> from slide.data import Split
        >>> from slide.training import evaluate
        >>> features = slide.CSR(np.arange(3), np.array([0, 1], np.int32), np.ones(2, np.float32))
        >>> split = Split(features, slide.Pattern.from_lists([[4], [5]]), 2, 6)
        >>> network = slide.SlideNetwork(2, [3], 6, slide.FullSampler)
        >>> scores = evaluate(network, split, inverse=np.ones(6))
        >>> 0 <= scores["p_at_1"] <= 1
        True
    """
    return scores_of(predict_split(network, split, search, ranker), split, inverse, ranker)


def scores_of(
    found: Ranked, split: Split, inverse: np.ndarray, ranker: Reranker | None = None
) -> dict[str, float]:
    """The scores of answers from `predict_split`; `evaluate` explains the other arguments."""
    kind = "other" if ranker is None else ranker.kind
    scores = ranking_scores(found.ids, split, inverse, kind)
    if ranker is None:
        return scores
    alone = ranking_scores(found.network_ids, split, inverse, kind)
    scores |= {f"{NETWORK}{name}": value for name, value in alone.items()}
    if ranker.objective == "p":
        for name, k in (("calibration_error", TOP), ("calibration_error_at_1", 1)):
            first = found.scores[:, :k], found.ids[:, :k]
            scores[name] = calibration_error(*first, split.labels)
            scores[f"chance_{name}"] = chance_calibration_error(*first)
    return scores


def ranking_scores(
    ids: np.ndarray, split: Split, inverse: np.ndarray, kind: str
) -> dict[str, float]:
    """The scores of answers ``ids`` ``(rows, k)`` to rows of a kind; see `evaluate`."""
    cutoffs, labels, own = (1, 3, 5), split.labels, dict[str, float]()
    if kind == "graph":
        ranks = reciprocal_ranks(ids, labels)
        own = {f"hits_at_{k}": float((ranks >= 1 / k).mean()) for k in (1, 3, 10)}
        own["mrr"] = float(ranks.mean())
    elif kind == "items":
        own = {
            "recall_at_20": recall_at_k(ids, labels, 20),
            "ndcg_at_20": ndcg_at_k(ids, labels, 20),
        }
    return own | {
        **{f"p_at_{k}": precision_at_k(ids, labels, k) for k in cutoffs},
        **{f"ndcg_at_{k}": ndcg_at_k(ids, labels, k) for k in cutoffs},
        **{f"psp_at_{k}": psp_at_k(ids, labels, k, inverse) for k in cutoffs},
    }


def log_lines(scores: dict[str, float], reranked: bool) -> list[dict[str, float]]:
    """The scalars of a log: of the network, and then of the re-ranked labels."""
    alone = {n: x for n, x in scores.items() if n.startswith(NETWORK) or not reranked}
    lines = [{f"eval/{name.removeprefix(NETWORK)}": x for name, x in alone.items()}]
    if reranked:
        lines.append({f"reranked/{n}": x for n, x in scores.items() if n not in alone})
    return lines


def frequent_labels(train: Split, num_rows: int, known: Pattern | None, count: int) -> np.ndarray:
    """The most frequent labels as answers ``(num_rows, count)``, without known ones; -1: none."""
    counts = np.bincount(train.labels.indices, minlength=train.num_labels)
    return most_frequent(np.argsort(-counts, kind="stable"), known, num_rows, count)


def learnt_nothing(ids: np.ndarray, frequent: np.ndarray, labels: Pattern) -> bool:
    """Whether answers ``(n, k)`` are right no more often than the most frequent labels.

    The first ones are compared, and all: gains of two standard errors may be chance, which passes
    them in one of forty runs. Fewer than ten rows tell nothing.
    """
    right, others = hits(ids, labels), hits(frequent, labels)
    gains = [right[:, :k].sum(1) - others[:, :k].sum(1) for k in (1, frequent.shape[1])]
    bounds = [2 * gain.std() / len(ids) ** 0.5 for gain in gains]
    return len(ids) >= _FEWEST_ROWS and all(
        gain.mean() <= bound for gain, bound in zip(gains, bounds, strict=True)
    )


def majority_precision(train: Split, evaluated: Split) -> float:
    """P@1 on ``evaluated`` if each prediction is the most frequent label of ``train``."""
    counts = np.bincount(train.labels.indices, minlength=train.num_labels)
    answers = np.full((len(evaluated), 1), counts.argmax())
    return precision_at_k(answers, evaluated.labels, 1)
