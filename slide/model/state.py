"""A network, and the index of its sampler, as numbers and tensors."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from slide.hashing import DWTA, SimHash
from slide.nn import SlideNetwork
from slide.nn.stored_layers import StoredInputLinear, StoredLinear
from slide.sampling import (
    ActiveSampler,
    FullSampler,
    IndexProposer,
    LSHProposer,
    Sampler,
    never,
)
from slide.utils import checks
from slide.utils.array_checks import Expected, Stored
from slide.utils.quantized import DTYPES_OF_FILES, QuantizedRows

# Rows of int8 have other names than weights, so that an older slide does not take them for these.
_CODES, _SCALES = ".int8", ".scales"
# How a network is trained, for one that learns on.
_TRAINING = ("dropout", "input_dropout", "precision")


def network_parts(network: SlideNetwork, dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The shape of a network and how it is trained, and its weights in the type of the file.

    Biases, and scales of rows of int8, are float32. Rows that were opened in the type stay.
    """
    checks.one_of("dtype", dtype, DTYPES_OF_FILES)
    widths = [layer.out_features for layer in network.layers()]
    settings = {"features": network.first.in_features, "widths": widths, "dtype": dtype}
    training = network.dropout, network.input_dropout, network.output.precision
    found = {}
    for name, layer in _named_layers(network):
        assert layer.bias is not None
        found[f"{name}.bias"] = layer.bias.detach().float()
        stored = layer.rows if isinstance(layer, StoredInputLinear | StoredLinear) else None
        if dtype == "float32":
            found[f"{name}.weight"] = layer.weight.detach().float()
            continue
        if stored is None or stored.codes.dtype != DTYPES_OF_FILES[dtype]:
            stored = QuantizedRows.of(layer.weight.detach(), dtype)
        if stored.scales is None:
            found[f"{name}.weight"] = stored.codes
        else:
            found[f"{name}.weight{_CODES}"] = stored.codes
            found[f"{name}.weight{_SCALES}"] = stored.scales
    return settings | dict(zip(_TRAINING, training, strict=True)), found


def restored_network(stored: Stored, finite: bool = True) -> SlideNetwork:
    """The network that had these settings and tensors, for prediction: it computes all outputs.

    With ``finite`` all weights are read, and refused where they are not finite.
    """
    widths = [stored.count("features", 1), *stored.list_of("widths", whole=True)]
    if len(widths) < 3:
        raise ValueError("a network needs the widths of two layers at least")
    *hidden, outputs = widths[1:]
    names = ["first", *(f"hidden.{number}" for number in range(len(hidden) - 1)), "output"]
    # Compared before layers of these widths are made, which take as much memory.
    parts = {
        name: _taken_layer(stored, name, fan, width, finite)
        for name, fan, width in zip(names, widths, widths[1:], strict=False)
    }
    # Made with one feature and one output, since drawing the first weights of all takes seconds,
    # and so does PyTorch's device "meta", which imports the compiler.
    options = {name: stored.get(name) for name in _TRAINING}
    network = SlideNetwork(1, hidden, 1, FullSampler, **options)
    first, output = network.first, network.output
    first.in_features = widths[0]
    output.out_features, output.sampler = outputs, FullSampler(hidden[-1], outputs)
    kinds = {"first": StoredInputLinear, "output": StoredLinear}
    precision = output.precision
    for name, layer in _named_layers(network):
        rows, bias = parts[name]
        if isinstance(rows, QuantizedRows) and name in kinds:
            setattr(network, name, kinds[name](rows, bias))
        else:
            layer.weight = nn.Parameter(rows.float(), requires_grad=False)
            layer.bias = nn.Parameter(bias, requires_grad=False)
    network.output.precision = precision
    return network.eval()


def _named_layers(network: SlideNetwork) -> Iterator[tuple[str, Any]]:
    yield "first", network.first
    for number, layer in enumerate(network.hidden):
        yield f"hidden.{number}", layer
    yield "output", network.output


def _taken_layer(
    stored: Stored, layer: str, fan: int, width: int, finite: bool
) -> tuple[Tensor | QuantizedRows, Tensor]:
    """The weights of a layer, which may be quantized, and its biases."""
    name, shape = f"{layer}.weight", (width, fan)
    if layer == "first":  # It has a row for each feature.
        shape = fan, width
    bias = stored.tensor(f"{layer}.bias", Expected((width,), "float32"))
    if f"{name}{_CODES}" in stored:
        codes = stored.tensor(f"{name}{_CODES}", Expected(shape, "int8"))
        scales = stored.tensor(f"{name}{_SCALES}", Expected(shape[:1], "float32", 0))
        return QuantizedRows(codes, scales), bias
    short = str(getattr(stored.arrays.get(name), "dtype", "")) == "torch.bfloat16"
    kind = "bfloat16" if short else "float32"
    found = stored.tensor(name, Expected(shape, kind, finite=finite))
    return QuantizedRows(found) if short else found, bias


_FAMILIES = {"simhash": SimHash, "dwta": DWTA}
# What is built again, and from which numbers.
_REBUILT = {
    "index": (IndexProposer, ("best", "most_seen")),
    "lsh": (LSHProposer, ("hashes_per_table", "num_tables", "probes")),
}


def index_parts(sampler: Sampler | None) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The numbers of an index, None unless it can be kept, and what it has of its inputs.

    The rest of it follows from the weights.
    """
    proposer = getattr(sampler, "proposer", None)
    known = {made: kind for kind, (made, _) in _REBUILT.items()}
    if type(sampler) is not ActiveSampler or type(proposer) not in known:
        return None, {}
    kind = known[type(proposer)]
    found = {name: getattr(proposer, name) for name in (*_REBUILT[kind][1], "seed")}
    if not isinstance(proposer, LSHProposer):
        return {"proposer": kind} | found, {}
    family: Any = proposer.family
    names = {made: name for name, made in _FAMILIES.items()}
    name, options = names.get(getattr(family, "func", family)), getattr(family, "keywords", {})
    # Where sets hold all outputs there is no index.
    if name is None or sampler.active >= sampler.out_features:
        return None, {}
    found |= {"family": name, "options": dict(options)}
    return {"proposer": kind} | found, proposer.projection()


def restored_index(stored: Stored, in_features: int, out_features: int) -> Sampler:
    """A sampler for prediction; its index does not follow changes of the weights."""
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
