"""Digits by a network of 1,024 hidden neurons, of which a training step computes a fifth.

    python examples/mnist.py --help

The neurons chosen for a batch serve all its images. The table compares a dense twin, trained for as
many epochs by fused Adam, in time and accuracy. The test is done twice: with all neurons, and with
the fifth that is largest for an image, the others being left out.
"""

import torch
from common import SampledMLP, compare, dense_mlp, parser

SIZES = 784, 1024, 10


def main(arguments: list[str] | None = None) -> list[dict]:
    made = parser("MNIST by a sampled hidden layer.", sampler="uniform", epochs=30, lr=2e-3)
    options = made.parse_args(arguments)
    torch.manual_seed(0)
    return compare(dense_mlp(*SIZES), SampledMLP(SIZES, options.sampler, options.share), options)


if __name__ == "__main__":
    main()
