"""Digits by a network with 1,024 hidden neurons; a training step computes a fifth of them.

    python examples/mnist.py --help

All images of a batch share one set of neurons. The table compares training time and accuracy with
those of a dense network, which is trained by fused Adam for the same number of epochs. There are
two tests: with all neurons, and with the fifth that is largest for each image.
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
