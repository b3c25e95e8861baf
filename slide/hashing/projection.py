"""Projections on the few directions in which hidden vectors vary; the others are mostly noise.

(Weiss, Torralba, Fergus 2008, "Spectral hashing"; Gong et al. 2013, "Iterative quantization".)
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view, has_bfloat16, on_device, on_host, uses_reference
from slide.ops.sketches import round_rows
from slide.utils.array_checks import Expected, check_arrays

# Rounds of subspace iteration from a random start, and from directions of earlier inputs.
_COLD, _WARM = 4, 1
# The directions are principal directions of the last 1,024 inputs.
RECENT = 1024
# Number of directions, which folders of models store.
DIRECTIONS = 120
# Maximum number of rows for the mean row.
_MEAN_ROWS = 2**12
# The number of rows is padded with zeros to a multiple of this: oneDNN generates code for each new
# shape.
_UNIT = 512


class Projection:
    """Rows of a weight and inputs in the principal directions of recent inputs.

    The score of input h is ``<w, h> + b = (<w, m> + b) + <w, h - m>``, with the mean input m. The
    first part is one number for a row, its prior. The second part depends on the directions in
    which inputs vary.

    Args:
        in_features: D, length of the inputs.
        seed: seed of the directions before the first inputs.
        directions: maximum number of directions.

    Attributes:
        directions: ``(D, k)`` float32, orthonormal columns, the largest variance first.
        mean_input: ``(D,)`` float32, m.
        variances: ``(k,)`` float32, of recent inputs in the directions.
        offset: ``(k' + 1,)`` float32, the mean row in the first directions, and the mean prior.
    """

    def __init__(self, in_features: int, seed: int, directions: int = DIRECTIONS):
        self.directions = random_directions(in_features, min(in_features, directions), seed)
        self.mean_input = torch.zeros(in_features, dtype=torch.float32)
        self.variances = torch.ones(self.directions.shape[1], dtype=torch.float32)
        self.offset = torch.zeros(1, dtype=torch.float32)
        self._batches = [torch.empty(0, in_features, dtype=torch.float32)]

    def observe(self, inputs: Tensor) -> None:
        """Keep the finite inputs ``(B, D)`` of a step."""
        x = inputs.detach().float()
        # A sum is finite if all numbers are, and rarely if they are not: the exact check is slow.
        x = x.clone() if x.sum().isfinite() else x[x.isfinite().all(1)]
        self._batches.append(x)
        while sum(map(len, self._batches[1:])) >= RECENT:
            del self._batches[0]

    @property
    def recent(self) -> Tensor:
        """``(n, D)`` float32, the last inputs."""
        return torch.cat(self._batches)[-RECENT:]

    def renew(self, weight: Tensor, bias: Tensor | None, most: int) -> None:
        """Compute the directions of recent inputs, and the mean row in the first ``most``."""
        self.to(weight.device)
        if len(recent := self.recent):
            self.mean_input = recent.mean(0)
            x = recent - self.mean_input
            warm = bool((self.variances != 1).any())  # Those of random directions are all 1.
            self.directions = principal_directions(x, self.directions, warm=warm)
            self.variances = (x @ self.directions).square().mean(0)
        some = np.arange(0, len(weight), -(-len(weight) // _MEAN_ROWS), dtype=np.int32)
        self.offset = self.rows(weight, bias, some, most).nan_to_num(0, 0, 0).mean(0)

    def inputs(self, inputs: Tensor, most: int) -> Tensor:
        """Inputs ``(B, D)`` without the mean input in the first directions: ``(B, k)`` float32."""
        return (inputs.detach().float() - self.mean_input) @ self.directions[:, :most]

    def rows(self, weight: Tensor, bias: Tensor | None, rows: np.ndarray, most: int) -> Tensor:
        """``(n, k + 1)`` float32: some rows in the first directions, and their priors."""
        # Sketches have fewer bits than bfloat16; priors are compared with products of the weights.
        kind = torch.bfloat16 if has_bfloat16(weight.device) else torch.float32
        directions = self.directions[:, :most].to(kind)
        shape = len(rows), directions.shape[1] + 1
        out = torch.empty(shape, device=weight.device, dtype=torch.float32)
        read = not uses_reference(weight) and weight.is_contiguous()
        if read and (weight.dtype, kind) == (torch.float32, torch.bfloat16):
            bits = torch.empty(-(-len(rows) // _UNIT) * _UNIT, weight.shape[1], dtype=torch.uint16)
            priors = np.empty(len(rows), np.float32)
            vector = array_view(self.mean_input)
            round_rows(array_view(weight), rows, vector, array_view(bits), priors)
            out[:, :-1] = (bits.view(kind) @ directions)[: len(rows)]
            out[:, -1] = torch.from_numpy(priors)
        else:
            some = weight[on_device(rows, weight.device).long()]
            out[:, :-1] = some.to(kind) @ directions
            out[:, -1] = some.float() @ self.mean_input
        if bias is not None:
            out[:, -1] += bias[on_device(rows, bias.device).long()]
        return out

    def to(self, device: torch.device) -> None:
        """Move all tensors to a device."""
        for name, tensor in self.__dict__.items():
            if isinstance(tensor, Tensor) and tensor.device != device:
                setattr(self, name, tensor.to(device))
        self._batches = [each.to(device) for each in self._batches]

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all tensors, for `load`."""
        more = {"offset": self.offset, "recent": self.recent}
        return {name: on_host(each).copy() for name, each in (self.tensors() | more).items()}

    def load(self, what: str, state: dict[str, Any], numbers: int) -> None:
        """Restore what `state` returned; ``numbers``: directions of sketches."""
        width, directions = self.directions.shape
        check_arrays(
            what,
            state,
            {
                "offset": Expected((None,), "float32"),
                "recent": Expected((None, width), "float32"),
                "mean_input": Expected((width,), "float32"),
                "directions": Expected((width, directions), "float32"),
                "variances": Expected((directions,), "float32", 0),
            },
        )
        if len(state["offset"]) not in (1, numbers + 1):
            raise ValueError(f"offset must be {(numbers + 1,)}, not {state['offset'].shape}")
        self.take(**{name: torch.from_numpy(state[name]) for name in self.tensors()})
        self.offset = torch.from_numpy(state["offset"].copy())
        self._batches = [torch.from_numpy(state["recent"].copy())]

    def tensors(self) -> dict[str, Tensor]:
        """Mean input, directions and variances, for `take`; copies on the CPU."""
        names = "mean_input", "directions", "variances"
        return {name: getattr(self, name).cpu().clone() for name in names}

    def take(self, mean_input: Tensor, directions: Tensor, variances: Tensor) -> None:
        """Project by what `tensors` returned, until `renew` is called after further inputs.

        ValueError for tensors of other shapes.
        """
        given = {"mean_input": mean_input, "directions": directions, "variances": variances}
        for name, own in self.tensors().items():
            if given[name].shape != own.shape:
                raise ValueError(f"{name} must be {tuple(own.shape)}, not {given[name].shape}")
        for name, tensor in given.items():
            setattr(self, name, tensor.float().clone())
        self._batches = [self.mean_input.new_empty(0, len(self.mean_input))]


def random_directions(in_features: int, number: int, seed: int) -> Tensor:
    """Orthonormal columns ``(D, number)`` float32, for the time before the first inputs."""
    generator = torch.Generator().manual_seed(int(seed) % 2**64)
    drawn = torch.randn(in_features, number, generator=generator, dtype=torch.float32)
    # As a state has them: products of another layout differ in their last bits.
    return torch.linalg.qr(drawn).Q.contiguous()


def principal_directions(centered: Tensor, start: Tensor, warm: bool) -> Tensor:
    """The directions in which vectors vary most, by subspace iteration.

    A round takes ``4 n D k`` operations. centered (n, D), vectors without their mean; start (D, k)
    orthonormal columns, ``warm`` if of similar vectors. Returns ``(D, k)`` orthonormal columns, the
    largest variance first; the start if a vector is not finite. (Halko, Martinsson, Tropp 2011,
    "Finding structure with randomness", section 4.5.)
    """
    largest = centered.abs().amax()
    if not 0 < largest < math.inf:
        return start
    centered = centered / largest  # Products of large vectors would overflow.
    basis = start
    for _ in range(_WARM if warm else _COLD):
        basis = torch.linalg.qr(centered.T @ (centered @ basis)).Q
    found = centered @ basis
    variances, turned = torch.linalg.eigh(found.T @ found)
    return basis @ turned[:, variances.argsort(descending=True)]
