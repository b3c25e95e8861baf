"""Evaluation of a network: precision on a split."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from slide.backend import on_host
from slide.data import Batches, SparseDataset, Split, divide
from slide.nn import SlideNetwork
from slide.nn.sampled_linear import SEARCHES
from slide.ranking import EnsembleRanker, Ranked
from slide.training import metrics
from slide.utils import checks
from slide.utils.progress_bar import ProgressBar

# What the names of the scores of the network alone begin with, where there is a re-ranker.
NETWORK = "network_"
_BATCH = 1024
_TOP = 5


def choose_rows(
    data: SparseDataset, share: float, seed: int, kind: str = "auto"
) -> tuple[Split, Split]:
    """Rows to train on, and rows to evaluate on.

    Args:
        data: the data set.
        share: share of the training rows that is set aside for evaluation; 0: the test rows are
            used for evaluation.
        seed: seed of the choice of these rows.
        kind: what the rows are; see `slide.data.Split`.

    Raises:
        ValueError: if there are no rows to train or evaluate on, or none to train on has a label;
            for items that have other numbers as features than as labels.
    """
    train, judged = data.train, data.test
    if kind == "items" and any(step.renumbers for step in data.steps):
        raise ValueError(
            "kind=items needs items with one number, as feature and as label; hashed_features and "
            "min_label_count give them others: leave these out, or leave kind=auto"
        )
    if kind != "auto":
        train = replace(train, kind=kind)
    if share:
        train, judged = divide(train, share, seed)
    if not len(train):
        raise ValueError("the data set has no training rows")
    if not len(train.labels.indices):
        raise ValueError(
            "no training row has a label: in text a row begins with its labels, and one without "
            "labels with a space"
        )
    if not len(judged):
        raise ValueError("the data set has no rows to evaluate on; dataset.holdout makes some")
    return train, judged


def check_search(sampler: Any, search: str) -> None:
    """Raise ValueError unless a network whose outputs have ``sampler`` can be evaluated so."""
    checks.one_of("evaluation", search, SEARCHES)
    if search == "sampler" and not sampler.has_index:
        name = type(sampler).__name__
        raise ValueError(f"evaluation=sampler needs a sampler with an index; this {name} has none")


def predict_split(
    network: SlideNetwork, split: Split, search: str, ranker: EnsembleRanker | None = None
) -> Ranked:
    """The 5 best labels of each row; without a ranker, the scores are those of the network."""
    if not len(split):
        raise ValueError("there are no rows to evaluate")
    most = min(_TOP, network.output.out_features)
    parts = []
    batches = Batches(split, _BATCH, seed=0, shuffle=False)
    for batch in ProgressBar(batches.epoch(0), "evaluate", len(batches), leave=False):
        if ranker is None:
            scores, ids = map(on_host, network.predict(batch.features, most, search))
            parts.append(Ranked.of(_TOP, scores, ids))
        else:
            parts.append(ranker.rank(network, batch.features, _TOP, search))
    return Ranked(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def evaluate(
    network: SlideNetwork,
    split: Split,
    inverse: np.ndarray,
    search: str = "exact",
    ranker: EnsembleRanker | None = None,
) -> dict[str, float]:
    """P@k, nDCG@k and propensity-scored P@k for k = 1, 3, 5 over all rows of ``split``.

    Args:
        network: the network to evaluate.
        split: rows with labels.
        inverse: ``(N,)`` inverse propensities; see `slide.training.inverse_propensities`.
        search: ``"exact"``, ``"index"`` or ``"sampler"``; see `slide.SampledLinear.top_k`.
        ranker: re-ranks the labels; None: no re-ranking.

    Returns:
        ``p_at_1``, ..., ``ndcg_at_1``, ..., ``psp_at_5``, each in [0, 1]. With a ranker, the same
        of the network alone as ``network_...``, and ``calibration_error``, if its scores are
        probabilities (`slide.training.metrics.calibration_error`).

    Raises:
        ValueError: for a split without rows, an unknown search, or ``"sampler"`` with a sampler
            that has no index.

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
    found: Ranked, split: Split, inverse: np.ndarray, ranker: EnsembleRanker | None = None
) -> dict[str, float]:
    """The scores of answers; the arguments and the result are those of `evaluate`.

    Args:
        found: from `predict_split`, with the same split and ranker.
        split: rows with labels.
        inverse: ``(N,)`` inverse propensities.
        ranker: that re-ranked the labels; None: there was none.
    """
    scores = _scores(found.ids, split, inverse)
    if ranker is None:
        return scores
    alone = _scores(found.network_ids, split, inverse)
    scores |= {f"{NETWORK}{name}": value for name, value in alone.items()}
    if ranker.objective == "p":
        scores["calibration_error"] = metrics.calibration_error(
            found.scores, found.ids, split.labels
        )
    return scores


def log_lines(scores: dict[str, float], reranked: bool) -> list[dict[str, float]]:
    """The scalars of a log: those of the network, and then those of the re-ranked labels."""
    alone = {n: x for n, x in scores.items() if n.startswith(NETWORK) or not reranked}
    lines = [{f"eval/{name.removeprefix(NETWORK)}": x for name, x in alone.items()}]
    if reranked:
        lines.append({f"reranked/{n}": x for n, x in scores.items() if n not in alone})
    return lines


def _scores(found: np.ndarray, split: Split, inverse: np.ndarray) -> dict[str, float]:
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
    """P@1 on ``judged`` if each prediction is the most frequent label of ``train``."""
    counts = np.bincount(train.labels.indices, minlength=train.num_labels)
    answers = np.full((len(judged), 1), counts.argmax())
    return metrics.precision_at_k(answers, judged.labels, 1)
