"""What training rows are: counts propose it, and precision on held-out rows decides."""

from typing import NamedTuple

import numpy as np

from slide.data.dataset import Split
from slide.data.kind import (
    Proposal,
    find_seen,
    labels_and_items,
    propose_kinds,
    row_keys,
    usual_kind,
)
from slide.search import sparse_top_k
from slide.search.row_blocks import label_shares
from slide.sparse import check_pattern, hits
from slide.utils.sizes import mean_name, validation_cutoffs

# 2,000 rows tell precisions apart that differ by a point; a fifth of the rows at most.
_HELD, _LARGEST_SHARE = 2000, 5
# As many pairs of a feature and a label are counted at most, which takes seconds.
_MOST_PAIRS = 1 << 24
# What each kind is called, and whose labels are left out of the answers.
KIND_NAMES = {
    "graph": ("a knowledge graph", "the labels of equal rows"),
    "items": ("a recommender", "the own items of a row"),
    "dense": ("measurements or images", ""),
    "other": ("features with labels", ""),
}


class KindChoice(NamedTuple):
    """What rows are taken for.

    Attributes:
        kind: see `slide.data.kind_of`.
        why: a sentence with what else was weighed, and the key that overrides it.

    Example:
        >>> from slide.data.row_kinds import KindChoice
        >>> KindChoice("items", "items, as trainer.kind says").kind
        'items'
    """

    kind: str
    why: str


def choose_kind(train: Split) -> KindChoice:
    """What training rows are: counts propose a kind, and answers to held-out rows decide.

    Feature-label co-occurrence answers held-out rows as rows of this kind, with seen labels left
    out, and as other rows. A kind that the counts find likely is taken unless its mean of P@1, P@3
    and P@5 is lower by more than a standard error of the difference; one that they find possible,
    if it is higher by more. In a graph, rows are held out whose features another row repeats;
    without any the counts decide.

    Args:
        train: training rows; what they are said to be (`slide.data.Split.kind`) counts alone.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split
        >>> from slide.data.row_kinds import choose_kind
        >>> from slide.sparse import CSR, Pattern
        >>> rng = np.random.default_rng(0)
        >>> baskets = np.argsort(rng.random((200, 20)), axis=1)[:, :8]
        >>> seen, later = (Pattern.from_lists(part) for part in (baskets[:, :4], baskets[:, 4:]))
        >>> choose_kind(Split(CSR(*seen, np.ones(800, np.float32)), later, 20, 20)).kind
        'items'
    """
    if (kind := train.kind) != "auto":
        return KindChoice(kind, f"{kind} ({KIND_NAMES[kind][0]}), as trainer.kind says")
    (proposals, against), taken = propose_kinds(train), usual_kind(train)
    usual, weighed = taken, []
    for proposal in proposals:
        said, holds = _weigh(train, proposal)
        weighed.append(said)
        if holds and taken == usual:
            taken = proposal.kind
    others = " or ".join(kind for kind in ("graph", "items", usual) if kind != taken)
    counts = "; ".join([*weighed, *against])
    why = f"{taken} ({KIND_NAMES[taken][0]}); {counts}; trainer.kind={others} overrides it"
    return KindChoice(taken, why)


def _weigh(train: Split, proposal: Proposal) -> tuple[str, bool]:
    """What held-out rows say of a proposal, and whether it holds."""
    rows, kind = np.arange(len(train)), proposal.kind
    if kind == "graph":
        _, numbers, times = np.unique(row_keys(train.features), False, True, True)
        rows = np.flatnonzero(times[numbers] > 1)
    draws = np.random.default_rng(0)
    held = draws.permutation(rows)[: min(_HELD, len(rows) // 2, len(train) // _LARGEST_SHARE)]
    if len(held) < 2:
        return f"{kind}: {proposal.why}, so none compares", proposal.likely
    others = np.setdiff1d(np.arange(len(train)), held)
    pairs = len(train.features.indices) / len(train) * len(train.labels.indices)
    if pairs > _MOST_PAIRS:
        others = np.sort(draws.permutation(others)[: int(len(others) * _MOST_PAIRS / pairs)])
    learnt, asked = train.take(others), train.take(held)
    own, other = (_precisions(learnt, asked, each) for each in (kind, "other"))
    gap, error = (own - other).mean(), (own - other).std() / len(held) ** 0.5
    measure = mean_name(validation_cutoffs(train.num_labels))
    said = (
        f"{kind} or not: {proposal.why}; {measure} without {KIND_NAMES[kind][1]} "
        f"{own.mean():.3f}, with them {other.mean():.3f} on {len(held):,} held-out rows"
    )
    return said, bool(gap >= -error if proposal.likely else gap > error)


def _precisions(train: Split, held: Split, kind: str) -> np.ndarray:
    """The mean of P@1, P@3 and P@5 for each held-out row ``(B,)``, of answers as for a kind."""
    seen = None if kind == "other" else find_seen(train, kind).of(held.features)
    labels, cut_offs = train.labels, validation_cutoffs(train.num_labels)
    if kind == "items":
        labels = labels_and_items(train)
    sizes = train.num_features, train.num_labels
    check_pattern("features", train.features, None, sizes[0])
    check_pattern("labels", labels, len(train), sizes[1])
    lists, _ = label_shares(train.features, labels, *sizes)
    ids = sparse_top_k(held.features, lists, sizes[1], cut_offs[-1], seen)[1]
    right = hits(ids.astype(np.int64), held.labels)
    return np.mean([right[:, :k].mean(1) for k in cut_offs], axis=0)
