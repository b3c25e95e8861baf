"""The index of a sampler as numbers and tensors, for search among its candidates.

An index is built again from the weights, at the first search. A sampler or a hash family that a
user wrote is not kept.
"""

from functools import partial
from typing import Any

from torch import Tensor

from slide.hashing import DWTA, SimHash
from slide.sampling import (
    ActiveSampler,
    FaissProposer,
    IndexProposer,
    LSHProposer,
    Sampler,
    never,
)
from slide.utils.array_checks import Expected, Stored

_FAMILIES = {"simhash": SimHash, "dwta": DWTA}
# What is built again, and from which numbers.
_REBUILT = {
    "faiss": (FaissProposer, ("kind", "probes", "neighbours")),
    "index": (IndexProposer, ("best", "most_seen")),
    "lsh": (LSHProposer, ("hashes_per_table", "num_tables", "probes")),
}


def index_settings(sampler: Sampler | None) -> dict[str, Any] | None:
    """The numbers of an index; None: there is none that can be kept."""
    proposer = getattr(sampler, "proposer", None)
    known = {made: kind for kind, (made, _) in _REBUILT.items()}
    if type(sampler) is not ActiveSampler or type(proposer) not in known:
        return None
    kind = known[type(proposer)]
    found = {name: getattr(proposer, name) for name in (*_REBUILT[kind][1], "seed")}
    if isinstance(proposer, LSHProposer):
        # Where sets hold all outputs there is no index.
        if sampler.active >= sampler.out_features:
            return None
        family: Any = proposer.family
        names = {made: name for name, made in _FAMILIES.items()}
        if getattr(family, "func", family) not in names:
            return None
        options = dict(getattr(family, "keywords", {}))
        found |= {"family": names[getattr(family, "func", family)], "options": options}
    return {"proposer": kind} | found


def index_tensors(sampler: Sampler | None) -> dict[str, Tensor]:
    """What an index has of its inputs; the rest of it follows from the weights."""
    proposer = getattr(sampler, "proposer", None)
    if index_settings(sampler) is None or not isinstance(proposer, LSHProposer):
        return {}
    return proposer.projection()


def restored_index(stored: Stored, in_features: int, out_features: int) -> Sampler:
    """A sampler with the index that had these `index_settings` and `index_tensors`.

    It is for prediction: its index does not follow changes of the weights.

    Raises:
        ValueError: for settings or tensors of no index.
    """
    kind, names = _REBUILT[stored.one_of("proposer", _REBUILT)]
    made = {name: stored.get(name) for name in names}
    if kind is LSHProposer:
        family = _FAMILIES[stored.one_of("family", _FAMILIES)]
        made["family"] = partial(family, **stored.mapping("options"))
    # No set is chosen: the size of a set must only be below the number of outputs.
    options = {"active": 1, "rebuild": never, "seed": stored.get("seed")}
    sampler = ActiveSampler(in_features, out_features, partial(kind, **made), **options)
    if isinstance(sampler.proposer, LSHProposer):
        own = sampler.proposer.projection()
        shapes = {name: Expected(tuple(each.shape), "float32") for name, each in own.items()}
        sampler.proposer.project_by(**{n: stored.tensor(n, each) for n, each in shapes.items()})
    return sampler
