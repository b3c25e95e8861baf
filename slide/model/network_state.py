"""A network as numbers and tensors."""

from typing import Any

import torch
from torch import Tensor, nn

from slide import checks
from slide.nn import SlideNetwork
from slide.sampling import FullSampler

DTYPES_OF_FILES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
# Rows of int8 have other names than weights, so that an older slide does not take them for these.
_CODES, _SCALES = ".int8", ".scales"
# Rows that are rounded at a time.
_BLOCK = 16_384


def network_settings(network: SlideNetwork, dtype: str) -> dict[str, Any]:
    """The shape of a network, and the type of its weights in the file."""
    checks.one_of("dtype", dtype, DTYPES_OF_FILES)
    widths = [layer.out_features for layer in network.layers()]
    return {"features": network.first.in_features, "widths": widths, "dtype": dtype}


def network_tensors(network: SlideNetwork, dtype: str) -> dict[str, Tensor]:
    """The weights in the type of the file; biases are float32.

    Weights in int8 are numbers in [-127, 127] and a float32 scale for each row.
    """
    checks.one_of("dtype", dtype, DTYPES_OF_FILES)
    found = {}
    for name, weight in network.named_parameters():
        weight = weight.detach()
        if weight.ndim > 1 and dtype == "int8":
            found[f"{name}{_CODES}"], found[f"{name}{_SCALES}"] = rounded_rows(weight)
        else:
            found[name] = weight.to(DTYPES_OF_FILES[dtype] if weight.ndim > 1 else torch.float32)
    return found


def rounded_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``(N, D)`` as int8, and their scales ``(N,)`` float32: a 127th of the largest entry.

    Raises:
        ValueError: for entries that are not finite, which int8 cannot hold.
    """
    codes, scales = torch.empty(weight.shape, dtype=torch.int8), []
    for block, out in zip(weight.split(_BLOCK), codes.split(_BLOCK), strict=True):
        largest = block.float().abs().amax(1)
        if not largest.isfinite().all():
            raise ValueError("weights that are not finite cannot be saved as int8")
        scales.append(largest / 127)
        # A subnormal scale would make numbers beyond 127.
        scale = scales[-1].clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        out.copy_((block.float() / scale).round().clamp(-127, 127))
    return codes, torch.cat(scales)


def unrounded_rows(codes: Tensor, scales: Tensor) -> Tensor:
    """The float32 rows of `rounded_rows`, each entry to half of the scale of its row."""
    rows = codes.float()
    return rows.mul_(scales[:, None])


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
    first.in_features = settings["features"]
    output.out_features, output.sampler = outputs, FullSampler(hidden[-1], outputs)
    for number, layer in enumerate(network.layers()):
        shape = layer.out_features, layer.in_features
        shapes = {"weight": shape if number else shape[::-1], "bias": shape[:1]}
        place = ("first", *(f"hidden.{i}" for i in range(len(hidden) - 1)), "output")[number]
        for name, wanted in shapes.items():
            tensor = _taken_rows(tensors, f"{place}.{name}", wanted)
            setattr(layer, name, nn.Parameter(tensor.float(), requires_grad=False))
    return network.eval()


def _taken_rows(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor of that name, or the rows that are kept as int8 under it."""
    if f"{name}{_CODES}" not in tensors:
        return _taken_tensor(tensors, name, shape)
    codes = _taken_tensor(tensors, f"{name}{_CODES}", shape)
    return unrounded_rows(codes, _taken_tensor(tensors, f"{name}{_SCALES}", shape[:1]))


def _taken_tensor(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    found = tensors.get(name)
    if found is None or found.shape != shape:
        given = "missing" if found is None else f"{tuple(found.shape)}"
        raise ValueError(f"{name} must be {shape}, but is {given}")
    return found
