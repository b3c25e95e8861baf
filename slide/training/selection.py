"""How a run chooses its outputs: recall beside chance, and what that costs."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import on_host
from slide.nn import SampledLinear, SlideNetwork
from slide.search import exact_top_k
from slide.utils.checks import counted

_CANDIDATES, _FILLED = "selection/candidates", "selection/filled"
_SEEN = "look_up/rows_seen_share"
_RECALL, _CHANCE = "selection/recall_without_labels", "selection/chance"
# Names in the log of what a summary has the means of.
_MEASURED = {
    "candidates": _CANDIDATES,
    "filled": _FILLED,
    "recall_at_10": _RECALL,
    "chance_recall_at_10": _CHANCE,
    "rows_seen_share": _SEEN,
}
_PHRASES = (
    "{active_mean:,.0f} outputs each",
    "{candidates:,.1f} of them looked up, {filled:,.1f} drawn at random, the others labels",
    "recall of the ten best {recall_at_10:.3f} (by chance {chance_recall_at_10:.3f})",
    "{rows_seen_share:.1%} of the rows read",
    "{directions}",
    "{num_tables} (L)",
    "{hashes_per_table} in a code (K)",
    "{rebuilds} and upkeep {rebuild_seconds:.1f} s",
    "measurements took {measuring_seconds:.1f} s",
)
# What stands behind the counts in these phrases.
_NOUNS = {
    "directions": ("direction",),
    "num_tables": ("table",),
    "hashes_per_table": ("hash", "hashes"),
    "rebuilds": ("rebuild",),
}
# Fewer measurements than this do not show that a recall is no more than chance.
_FEWEST = 5
# Tables warn if an input reads more than this share of all outputs, or if their buckets have
# dropped more than this share of the outputs.
_MANY, _LOST = 0.5, 0.5
_HELPS = "raise hash.hashes_per_table (K)"


class Recall(NamedTuple):
    """Shares of the k largest inner products that an active set holds, in [0, 1].

    Of all outputs; of all but labels of the sample; and the latter for a set drawn uniformly.
    """

    with_labels: float
    without_labels: float
    chance: float


@torch.no_grad()
def selection_recall(
    layer: SampledLinear, inputs: Tensor, active: ActiveSet, k: int = 10, samples: int = 16
) -> Recall:
    """What an active set holds of the outputs with the largest inner products; it is slow."""
    if active.complete:
        return Recall(1.0, 1.0, 1.0)
    rows, labels, count = layer.out_features, active.label_ids(), len(inputs)
    chosen = np.arange(min(samples, count))
    if active.groups is not None:  # The first sample of a group is one that looks up.
        order, bounds = active.groups.order, active.groups.bounds
        chosen = order[bounds[:-1][np.diff(bounds) > 0]][:samples]
    inputs, own = inputs[torch.from_numpy(chosen).to(inputs.device)], [labels[:0]] * len(chosen)
    if active.targets is not None:
        every = np.split(labels, active.targets.indptr[1:-1])
        own = [every[b] for b in chosen]
    most = min(k + max(map(len, own), default=0), rows)
    best = on_host(exact_top_k(inputs, layer.weight, layer.bias, most)[1])
    shared, found = np.unique(labels), []
    in_set, is_label = np.zeros(rows, bool), np.zeros(rows, bool)
    for b, ranked in enumerate(best):
        ids = on_host(active.row(int(chosen[b])))
        known = shared if active.shared else np.unique(own[b])
        in_set[ids], is_label[known] = True, True
        ranked = ranked[ranked >= 0]
        others = ranked[~np.isin(ranked, own[b])][:k]
        drawn = (len(ids) - len(known)) / max(1, rows - len(known))
        chance = np.where(is_label[others], 1.0, drawn)
        parts = in_set[ranked[:k]], in_set[others], chance
        found.append([each.mean() if len(each) else np.nan for each in parts])
        in_set[ids], is_label[known] = False, False
    kept = [[x for x in each if x == x] for each in zip(*found, strict=True)]
    return Recall(*(float(np.mean(each)) if each else 1.0 for each in kept or [[]] * 3))


def inspect_selection(
    layer: SampledLinear, inputs: Tensor, active: ActiveSet, samples: int = 16
) -> dict[str, float]:
    """Scalars for the log: `selection_recall`, and the statistics of the sampler."""
    if active.complete:
        return {}
    layer = getattr(layer, "local", layer)
    recall = selection_recall(layer, inputs, active, samples=samples)
    found = {
        "selection/recall": recall.with_labels,
        _RECALL: recall.without_labels,
        _CHANCE: recall.chance,
        **layer.sampler.statistics(),
    }
    if (seen := found.get("look_up/rows_seen")) is not None:
        found[_SEEN] = seen / layer.out_features
    return found


def selection_figures(
    log: Sequence[Mapping[str, float]], network: SlideNetwork
) -> dict[str, float]:
    """The choice of outputs in the summary, beside sizes and seconds; see `_MEASURED`."""
    late = _second_half(log)
    values = {name: _values(late, scalar) for name, scalar in _MEASURED.items()}
    found = {name: round(mean(each), 6) for name, each in values.items() if each}
    rebuilds = sum(getattr(layer.sampler, "rebuilds", 0) for layer in network.layers())
    proposer = _proposer(network)
    found |= {} if proposer is None else proposer.sizes()
    return {**found, "rebuilds": rebuilds} if rebuilds else found


def _proposer(network: SlideNetwork) -> Any:
    layer = getattr(network.output, "local", network.output)
    return getattr(layer.sampler, "proposer", None)


def _sizes_given(proposer: Any) -> bool:
    """Whether somebody gave K or L; few outputs need no tables, and have them by default."""
    sizes = (getattr(proposer, name, None) for name in ("hashes_per_table", "num_tables"))
    return any(each is not None for each in sizes)


def buckets_line(network: SlideNetwork) -> str:
    """What the buckets hold after the first build, if K or L was given; ``""``: nothing to say."""
    proposer = _proposer(network)
    found = proposer.statistics() if _sizes_given(proposer) else {}
    names = (f"tables/{name}" for name in ("mean_bucket", "largest_bucket", "left_out_share"))
    held, largest, lost = (found.get(name, 0) for name in names)
    if not held:
        return ""
    said = f"{held:,.1f} outputs in a bucket on average, {largest:,} in the largest"
    if lost:
        said += f"; {lost:.1%} of the entries do not fit"
    return f"{said}: {_HELPS}" if lost > _LOST else said


def selection_line(summary: Mapping[str, Any]) -> str:
    """The figures of a summary in one line."""
    known = {
        name: counted(summary[name], *noun) for name, noun in _NOUNS.items() if name in summary
    }
    said = []
    for phrase in _PHRASES:
        try:
            said.append(phrase.format_map({**summary, **known}))
        except KeyError:  # A figure that is not known.
            continue
    return "; ".join(said)


def selection_warnings(log: Sequence[Mapping[str, float]], network: SlideNetwork) -> list[str]:
    """Sentences on look-ups that are of no use, and on the keys that help."""
    found, late = [], _second_half(log)
    if _sizes_given(_proposer(network)):
        shares = (_values(late, name) for name in (_SEEN, "tables/left_out_share"))
        seen, lost = (mean(each) if each else 0.0 for each in shares)
        if lost > _LOST:
            found.append(
                f"{lost:.1%} of the entries of hash tables are in buckets with too many outputs, "
                f"which look-ups leave out: {_HELPS}"
            )
        elif seen > _MANY:
            found.append(
                f"an input reads {seen:.1%} of the outputs, so look-ups save little: raise "
                "hash.hashes_per_table (K) or lower hash.num_tables (L)"
            )
    pairs = [(line[_RECALL], line[_CHANCE]) for line in late if _CANDIDATES in line]
    gains = [recall - chance for recall, chance in pairs]
    # Chance alone passes two standard errors in one of forty runs.
    if len(gains) >= _FEWEST and mean(gains) <= 2 * stdev(gains) / len(gains) ** 0.5:
        recall, chance = (mean(each) for each in zip(*pairs, strict=True))
        few = mean(_values(late, _CANDIDATES)) < 1
        helps = "raise sampler.active, if labels fill the sets, or " if few else ""
        found.append(
            f"look-ups find few of the ten best outputs (recall {recall:.3f}, by chance "
            f"{chance:.3f}): {helps}compare precision with that of sampler=uniform, which takes "
            "less time"
        )
    return found


def _second_half(log: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """The lines of the later half of the steps: what comes first, the run has left behind."""
    last = max((line["step"] for line in log), default=0)
    return [line for line in log if 2 * line["step"] > last]


def _values(log: Sequence[Mapping[str, float]], name: str) -> list[float]:
    return [line[name] for line in log if name in line]
