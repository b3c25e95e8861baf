"""Digits by a small MLP-Mixer whose hidden layers are sampled.

    python examples/mixer.py --help

An image consists of 16 patches of 7 x 7 pixels. A block mixes first across patches and then across
channels, with one MLP for each (Tolstikhin et al. 2021, "MLP-Mixer: an all-MLP architecture for
vision", section 2). The MLP across channels has 512 hidden neurons and takes most of the time; a
training step computes a fifth of them. The MLP across patches is small and is computed completely.
The table compares the network with a dense one.
"""

from collections.abc import Callable

import torch
from common import SampledMLP, compare, dense_mlp, parser
from torch import Tensor, nn

PATCHES, PIXELS, CHANNELS, BLOCKS = 16, 49, 64, 2
HIDDEN = {"patches": 64, "channels": 512}
MakeMLP = Callable[[int, int, int], nn.Module]


class Block(nn.Module):
    """``(B, patches, channels)`` to the same shape."""

    def __init__(self, make_mlp: MakeMLP):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(CHANNELS) for _ in range(2))
        self.across_patches = dense_mlp(PATCHES, HIDDEN["patches"], PATCHES)
        self.across_channels = make_mlp(CHANNELS, HIDDEN["channels"], CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across_patches(self.norms[0](x).mT).mT
        return x + self.across_channels(self.norms[1](x))


class Mixer(nn.Module):
    """Images ``(B, 784)`` to scores ``(B, 10)``."""

    def __init__(self, make_mlp: MakeMLP):
        super().__init__()
        self.embed = nn.Linear(PIXELS, CHANNELS)
        self.blocks = nn.Sequential(*(Block(make_mlp) for _ in range(BLOCKS)))
        self.norm, self.output = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.view(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, PATCHES, PIXELS)
        return self.output(self.norm(self.blocks(self.embed(patches))).mean(1))


def main(arguments: list[str] | None = None) -> list[dict]:
    made = parser("MNIST by a sampled MLP-Mixer.", sampler="uniform", epochs=10, lr=4e-3)
    options = made.parse_args(arguments)
    torch.manual_seed(0)
    sampled = Mixer(lambda *sizes: SampledMLP(sizes, options.sampler, options.share))
    return compare(Mixer(dense_mlp), sampled, options)


if __name__ == "__main__":
    main()
