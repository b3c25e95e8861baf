"""Train an encoder in DistributedDataParallel with a million outputs that the processes share out.

    torchrun --nproc-per-node=2 examples/data_parallel.py
    torchrun --nproc-per-node=2 examples/data_parallel.py --outputs 10000 --steps 100

The samples are made up: a sample is the number of an output in binary, with noise, and frequent
outputs come up more often, as in a catalogue.
"""

import argparse
import os
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from slide import ActiveLoss, ActiveSampler, RowSparseAdam, runtime
from slide.distributed import Group, ShardedSampledLinear


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="An encoder with very many outputs.")
    made.add_argument("--outputs", type=int, default=1_000_000, help="on all processes together")
    made.add_argument("--hidden", type=int, default=64, help="width of the encoder")
    made.add_argument("--active", type=int, default=4096, help="outputs that a step computes")
    made.add_argument("--batch", type=int, default=256, help="samples of each process")
    made.add_argument("--steps", type=int, default=500)
    return made


def draw(count: int, outputs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Samples ``(count, bits)`` and the numbers of their outputs ``(count,)``."""
    # The logarithm of the number is uniform, so its frequency falls like that of words.
    share = torch.rand(count, generator=generator, dtype=torch.float64)
    labels = ((outputs + 1) ** share).long() - 1
    bits = (labels[:, None] >> torch.arange(outputs.bit_length())) & 1
    noise = torch.randn(bits.shape, generator=generator)
    return 2.0 * bits - 1 + 0.1 * noise, labels


def main(arguments: list[str] | None = None) -> float:
    """Train, and print losses and the precision on new samples, which is returned."""
    options = parser().parse_args(arguments)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
        # torchrun gives each process one thread, so that they do not get in each other's way.
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        runtime.set_threads(max(1, runtime.num_threads() // here))
    group = Group()
    torch.manual_seed(0)  # One encoder for all; then each process draws samples of its own.
    width, bits = options.hidden, options.outputs.bit_length()
    encoder = nn.Sequential(nn.Linear(bits, width), nn.ReLU(), nn.Linear(width, width))
    encoder = DistributedDataParallel(encoder)
    # The outputs stay outside: their rows differ from process to process.
    sampler = partial(ActiveSampler, active=options.active, mode="shared")
    layer = ShardedSampledLinear(width, options.outputs, sampler, group)
    generator = torch.Generator().manual_seed(1 + group.rank)
    optimizers = [
        torch.optim.Adam(encoder.parameters(), 2e-3),
        RowSparseAdam(layer.parameters(), 2e-2),
    ]
    loss = ActiveLoss("softmax")
    for step in range(1, options.steps + 1):
        x, labels = draw(options.batch, options.outputs, generator)
        mean, _ = layer.loss(encoder(x), labels, loss)
        for optimizer in optimizers:
            optimizer.zero_grad()
        mean.backward()
        for optimizer in optimizers:
            optimizer.step()
        if group.rank == 0 and step % max(1, options.steps // 10) == 0:
            print(f"step {step}: loss {mean.item():.3f}")
    x, labels = draw(1000, options.outputs, generator)
    with torch.no_grad():
        best = layer.top_k(encoder(x), 1)[1][:, 0]
    found = group.all_reduce((best == labels).double().mean()) / group.size
    if group.rank == 0:
        print(f"{found.item():.1%} of new samples are right, out of {options.outputs:,} outputs")
        print(f"{group.seconds:.1f} seconds went into the exchange, with the waiting for others")
    return found.item()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
