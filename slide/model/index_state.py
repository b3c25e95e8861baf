"""The index of a sampler as numbers and tensors, for search among its candidates.

Hash tables are kept as they are. An index of FAISS and lists of near rows are built again from the
weights, at the first search. A sampler or a hash family that a user wrote is not kept.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from slide.hashing import DWTA, LearnedSimHash, SimHash
from slide.kernels.buckets import Buckets
from slide.sampling import (
    ActiveSampler,
    FaissProposer,
    IndexProposer,
    LookUp,
    LSHProposer,
    Sampler,
    Upkeep,
    never,
)

_FAMILIES = {"simhash": SimHash, "dwta": DWTA, "learned": LearnedSimHash}
# What is built again, and from which numbers.
_REBUILT = {
    "faiss": (FaissProposer, ("kind", "probes", "neighbours")),
    "index": (IndexProposer, ("best", "most_seen")),
}


def build_tables(layer: Any) -> None:
    """Build the hash tables of an output layer that has none, as after its outputs changed.

    Where sets hold all outputs there are none.
    """
    sampler = layer.sampler
    if isinstance(getattr(sampler, "proposer", None), LSHProposer) and not sampler.holds_index:
        sampler.update(layer.weight, layer.bias, None)


def index_settings(sampler: Sampler | None) -> dict[str, Any] | None:
    """The numbers of an index; None: there is none that can be kept."""
    proposer = getattr(sampler, "proposer", None)
    if type(sampler) is not ActiveSampler:
        return None
    for kind, (rebuilt, names) in _REBUILT.items():
        if type(proposer) is rebuilt:
            return {"proposer": kind} | {name: getattr(proposer, name) for name in (*names, "seed")}
    family = proposer.hash.family if type(proposer) is LSHProposer else None
    known = {kind: name for name, kind in _FAMILIES.items()}
    if proposer is None or type(family) not in known or not sampler.holds_index:
        return None
    numbers = ("hashes_per_table", "num_tables", "bin_size")
    return {
        "proposer": "lsh",
        "family": known[type(family)],
        "numbers": {name: getattr(family, name) for name in numbers if hasattr(family, name)},
        "bucket_capacity": proposer.tables.bucket_capacity,
        "center": proposer.hash.center,
        "norm": proposer.hash.norm,
        "probes": proposer.probes,
        "seed": proposer.seed,
        "draw": proposer.draw,
    }


def index_tensors(sampler: Sampler | None) -> dict[str, Tensor]:
    """The arrays of an index; none if it is built again."""
    proposer = getattr(sampler, "proposer", None)
    if index_settings(sampler) is None or not isinstance(proposer, LSHProposer):
        return {}
    tables = proposer.tables.state_dict()
    arrays = {f"buckets.{name}": torch.from_numpy(array) for name, array in tables.items()}
    family = proposer.hash.family
    if isinstance(family, LearnedSimHash):  # No seed draws these directions.
        arrays["directions"] = torch.from_numpy(family.directions.copy())
    return {**arrays, "mean_input": proposer.hash.mean_input.clone()}


def restored_index(
    settings: dict[str, Any], tensors: dict[str, Tensor], in_features: int, out_features: int
) -> Sampler:
    """A sampler with the index that had these `index_settings` and `index_tensors`.

    It is for prediction: its index does not follow changes of the weights.
    """
    if settings["proposer"] in _REBUILT:
        kind, names = _REBUILT[settings["proposer"]]
        proposer = partial(kind, **{name: settings[name] for name in names})
    else:
        family = partial(_FAMILIES[settings["family"]], **settings["numbers"])
        options = {name: settings[name] for name in ("bucket_capacity", "center", "norm")}
        options["look_up"] = LookUp(settings.get("probes", 0))  # Older folders do not have it.
        proposer = partial(LSHProposer, family=family, upkeep=Upkeep(0), **options)
    # No set is chosen: the size of a set must only be below the number of outputs.
    options = {"active": 1, "rebuild": never, "seed": settings["seed"]}
    sampler = ActiveSampler(in_features, out_features, proposer, **options)
    if isinstance(sampler.proposer, LSHProposer):
        state = {name: tensor.numpy() for name, tensor in tensors.items()}
        arrays = {name: state[f"buckets.{name}"] for name in Buckets._fields}
        shape = sampler.proposer.tables.buckets.starts.shape
        if arrays["starts"].shape != shape:
            raise ValueError(f"tables of shape {arrays['starts'].shape} do not fit {shape}")
        sampler.proposer.restore_tables(Buckets(**arrays), tensors["mean_input"], settings["draw"])
        family = sampler.proposer.hash.family
        if isinstance(family, LearnedSimHash):
            family.load_state_dict({"directions": state["directions"]})
        sampler.take_index()
    return sampler
