"""A network as numbers and tensors."""

from typing import Any

import torch
from torch import Tensor, nn

from slide import checks
from slide.nn import SlideNetwork
from slide.sampling import FullSampler
from slide.scratch import Scratch

DTYPES_OF_FILES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def network_settings(network: SlideNetwork, dtype: str) -> dict[str, Any]:
    """The shape of a network, and the type of its weights in the file."""
    checks.one_of("dtype", dtype, DTYPES_OF_FILES)
    widths = [layer.out_features for layer in network.layers()]
    return {"features": network.first.in_features, "widths": widths, "dtype": dtype}


def network_tensors(network: SlideNetwork, dtype: str) -> dict[str, Tensor]:
    """The weights in the type of the file; biases are float32."""
    checks.one_of("dtype", dtype, DTYPES_OF_FILES)
    wanted = DTYPES_OF_FILES[dtype]
    return {
        name: weight.detach().to(wanted if weight.ndim > 1 else torch.float32)
        for name, weight in network.named_parameters()
    }


def restored_network(settings: dict[str, Any], tensors: dict[str, Tensor]) -> SlideNetwork:
    """The network that had these `network_settings` and `network_tensors`, for prediction.

    Float32 tensors become its weights as they are. It computes all outputs; samplers are for
    training.

    Raises:
        ValueError: if a tensor is missing, or of another shape.
    """
    *hidden, outputs = settings["widths"]
    # Made with one feature and one output, since drawing the first weights of all takes seconds,
    # and so does PyTorch's device "meta", which imports the compiler.
    network = SlideNetwork(1, hidden, 1, FullSampler)
    first, output = network.first, network.output
    first.in_features, first._scratch = settings["features"], Scratch(settings["features"])
    output.out_features, output.sampler = outputs, FullSampler(hidden[-1], outputs)
    for number, layer in enumerate(network.layers()):
        shape = layer.out_features, layer.in_features
        shapes = {"weight": shape if number else shape[::-1], "bias": shape[:1]}
        place = ("first", *(f"hidden.{i}" for i in range(len(hidden) - 1)), "output")[number]
        for name, wanted in shapes.items():
            tensor = _taken_tensor(tensors, f"{place}.{name}", wanted)
            setattr(layer, name, nn.Parameter(tensor.float(), requires_grad=False))
    return network.eval()


def _taken_tensor(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    found = tensors.get(name)
    if found is None or found.shape != shape:
        given = "missing" if found is None else f"{tuple(found.shape)}"
        raise ValueError(f"{name} must be {shape}, but is {given}")
    return found
