"""The folder of a model: ``model.json``, and files of tensors that are opened as memory maps.

A network, the index of its sampler and a re-ranker are numbers and tensors there. Lists of a
re-ranker are searched as they lie in their file; only the index of FAISS over dense rows is copied.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slide.data import RowTransform, TextVectorizer
from slide.data.columns import Columns
from slide.hashing import DWTA, SimHash
from slide.model.card import is_card, write_card
from slide.nn import SlideNetwork
from slide.nn.answers import RerankerFormat
from slide.nn.stored_layers import StoredInputLinear, StoredLinear
from slide.sampling import (
    ActiveSampler,
    FullSampler,
    LSHProposer,
    Sampler,
    SketchProposer,
    never,
)
from slide.utils import checks
from slide.utils.array_checks import Expected, Stored
from slide.utils.files import alone_in
from slide.utils.names import KINDS, Names
from slide.utils.provided import provider
from slide.utils.quantized import DTYPES_OF_FILES, QuantizedRows
from slide.utils.run_folders import resume_word
from slide.utils.tensor_folder import (
    NEW_FILES,
    SUFFIX,
    FolderKind,
    Written,
    check_files,
    listed_files,
    read_folder,
    read_tensors,
    write_folder,
)

MODEL_FILE = "model.json"
# The files of tensors that a model may have.
PARTS = ("network", "ranker", "index", "steps", "names", "vectorizer")
# Models of format 4, of slide 0.1.0, have other names for the numbers and arrays of a re-ranker.
MODEL_FOLDER = FolderKind("model", MODEL_FILE, format=5, oldest=4)


def read_model_folder(folder: Path, verify: bool = True) -> dict[str, Any]:
    """Read and check ``model.json``; with ``verify`` compare the SHA-256 of all files."""
    try:
        content = read_folder(MODEL_FOLDER, folder)
    except FileNotFoundError as error:
        if (folder / "config.yaml").is_file() and not (folder / MODEL_FILE).is_file():
            said = f"{error}; the run has not ended, {resume_word(folder)} goes on with it"
            raise FileNotFoundError(said) from None
        raise
    if verify:
        check_files(MODEL_FOLDER, folder, content, content["files"])
    return content


def check_target(folder: Path) -> None:
    """Raise ValueError if a model cannot be saved as ``folder``: something else is there."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a model needs a folder")
    with alone_in(folder):  # While another process replaces a model there is no list.
        paths = folder.iterdir() if folder.is_dir() else ()
        # An interrupted call may have left the others.
        others = [
            path
            for path in paths
            if path.name != NEW_FILES and SUFFIX not in path.name and not is_card(path)
        ]
        if others and listed_files(folder / MODEL_FILE) is None:
            raise ValueError(f"{folder} holds something else than a model: name a new folder")


def write_model(
    folder: Path, model: Any, dtype: str = "float32", weights: Written | None = None
) -> None:
    """Write a `slide.model.Model` and its card.

    ``weights``: the file that several processes have written.
    """
    network, ranker = model.network, model.ranker
    layers, own_weights = network_parts(network, dtype)
    files = {} if weights else {"network": own_weights}
    numbers, tensors = (None, None) if ranker is None else _reranker_format().ranker_state(ranker)
    # Of several processes each has an index of its own rows, of no use to one.
    index_numbers, index = index_parts(None if weights else network.output.sampler)
    content: dict[str, Any] = {
        "name": model.name,
        "features": model.num_features,
        "labels": model.num_labels,
        "network": layers,
        "index": index_numbers,
        "ranker": numbers,
        "steps": [step.settings() for step in model.steps],
        "settings": model.settings,
    }
    if model.vectorizer is not None:
        content["vectorizer"] = model.vectorizer.settings()
        if model.vectorizer.num_features < model.num_features and model.vectorizer.terms:
            content["vectorizer"]["terms"] = model.vectorizer.num_features
        if model.vectorizer.idf is not None:
            files["vectorizer"] = {"idf": torch.from_numpy(np.array(model.vectorizer.idf))}
    steps = {
        f"{number}.{name}": torch.from_numpy(np.array(array))
        for number, step in enumerate(model.steps)
        for name, array in step.arrays().items()
    }
    names = {}
    for prefix in ("label_names", "feature_names"):
        found: Names | None = getattr(model, prefix)
        content[prefix] = None if found is None else found.kind
        if found is not None:
            names |= found.tensors(prefix)
    parts = {"index": index, "ranker": tensors, "steps": steps, "names": names}
    files |= {name: part for name, part in parts.items() if part}
    write_folder(MODEL_FOLDER, folder, content, files, [weights] if weights else [])
    write_card(folder, model, dtype)


def restored_parts(folder: Path, content: dict[str, Any], verify: bool) -> dict[str, Any]:
    """What a model in a folder is made of: the arguments of `slide.model.Model`."""
    whole = Stored(content, {}, f"{folder / MODEL_FILE}")
    settings = whole.mapping("settings")
    if isinstance(settings.get("columns"), dict):
        Columns.restored(settings["columns"], f"{folder / MODEL_FILE}")

    def stored(name: str, numbers: Any) -> Stored:
        """Numbers of the list, and the arrays of the file of that name, if there is one."""
        file = f"{name}{SUFFIX}"
        arrays = read_tensors(folder, name) if file in content["files"] else {}
        return Stored(numbers, arrays, f"{folder / MODEL_FILE}", f"{folder / file}")

    if verify:  # By a mapping that is closed again: pages that were only checked are not kept.
        restored_network(stored("network", whole.mapping("network")))
    network = restored_network(stored("network", whole.mapping("network")), finite=False)
    sizes = network.output.out_features, network.first.in_features
    if whole.get("index") is not None:
        index = stored("index", whole.mapping("index"))
        network.output.sampler = restored_index(index, network.output.in_features, sizes[0])
    ranker = None
    if whole.get("ranker") is not None:
        saved = stored("ranker", whole.mapping("ranker"))
        ranker = _reranker_format().restored_ranker(
            saved, num_labels=sizes[0], num_features=sizes[1]
        )
    arrays = stored("steps", {})
    steps = [
        RowTransform.restored(arrays.part(f"{number}", numbers))
        for number, numbers in enumerate(whole.objects("steps"))
    ]
    text = stored("names", {})
    names = {
        which: None
        if whole.get(which) is None
        else Names.restored(text.part(which, {}), whole.one_of(which, KINDS))
        for which in ("label_names", "feature_names")
    }
    vectorizer = content.get("vectorizer")
    if vectorizer is not None:
        vectorizer = _restored_vectorizer(stored("vectorizer", vectorizer), names["feature_names"])
    return {
        "network": network,
        "ranker": ranker,
        "steps": steps,
        "settings": settings,
        "name": whole.text("name"),
        "vectorizer": vectorizer,
        **names,
    }


def _reranker_format() -> RerankerFormat:
    return provider(RerankerFormat.__name__)  # A model without a re-ranker does not import it.


def _restored_vectorizer(stored: Stored, names: Names | None) -> TextVectorizer:
    """A vectorizer whose terms are the first names of features."""
    settings, idf = dict(stored.numbers), None
    count = stored.count("terms", 1, len(names or ())) if "terms" in settings else None
    settings.pop("terms", None)
    terms = names if count is None or names is None else names.first(count)
    if settings.get("kind", "TfidfVectorizer") == "TfidfVectorizer":
        # log((1 + n) / (1 + df)) + 1 is below 50; a row of weights up to a million is finite.
        idf = stored.array("idf", Expected((len(terms or ()),), "float64", 0, 1e6))
    try:
        return TextVectorizer.restored(settings, terms, idf)
    except (ValueError, TypeError) as error:
        return stored.refuse(f"be a vectorizer of texts: {error}")


# Rows of int8 have names of their own, so that an older slide does not take them for weights.
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
    """The network of `network_parts`, for prediction: it computes all outputs.

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
    "tables": (LSHProposer, ("hashes_per_table", "num_tables", "probes")),
    "sketch": (SketchProposer, ()),
}
# In slide 0.1.0 one class had tables where a size of them was given, and else scanned sketches; and
# lists of rows were an index that predictions do not need.
_EARLIER = ("lsh", "index")


def index_parts(sampler: Sampler | None) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The numbers of an index, None unless it can be kept, and what it has of its inputs.

    The rest of it follows from the weights.
    """
    proposer: Any = getattr(sampler, "proposer", None)
    known = {made: kind for kind, (made, _) in _REBUILT.items()}
    # Where sets hold all outputs there is no index.
    if type(sampler) is not ActiveSampler or sampler.active >= sampler.out_features:
        return None, {}
    if type(proposer) not in known:
        return None, {}
    kind = known[type(proposer)]
    found = {name: getattr(proposer, name) for name in (*_REBUILT[kind][1], "seed")}
    if isinstance(proposer, LSHProposer):
        family: Any = proposer.family
        names = {made: name for name, made in _FAMILIES.items()}
        name, options = names.get(getattr(family, "func", family)), getattr(family, "keywords", {})
        if name is None:
            return None, {}
        found |= {"family": name, "options": dict(options)}
    return {"proposer": kind} | found, proposer.projection.tensors()


def restored_index(stored: Stored, in_features: int, out_features: int) -> Sampler:
    """A sampler for prediction; its index does not follow changes of the weights."""
    kind = stored.one_of("proposer", (*_REBUILT, *_EARLIER))
    if kind == "index":
        return FullSampler(in_features, out_features)
    if kind == "lsh":
        given = any(stored.get(name) is not None for name in _REBUILT["tables"][1])
        kind = "tables" if given else "sketch"
    proposer, names = _REBUILT[kind]
    made = {name: stored.get(name) for name in names}
    if kind == "tables":
        family = _FAMILIES[stored.one_of("family", _FAMILIES)]
        made["family"] = partial(family, **stored.mapping("options"))
    # No set is chosen: the size of a set must only be below the number of outputs.
    options = {"active": 1, "rebuild": never, "seed": stored.get("seed")}
    sampler = ActiveSampler(in_features, out_features, partial(proposer, **made), **options)
    index: Any = sampler.proposer
    projection = index.projection
    shapes = {
        name: Expected(tuple(each.shape), "float32") for name, each in projection.tensors().items()
    }
    projection.take(**{name: stored.tensor(name, each) for name, each in shapes.items()})
    return sampler
