"""Backward through a slice of a layer's outputs, as the layer grows.

64 of 2^8 to 2^20 outputs, 128 inputs, float32, batches of 1 and 64; one set a batch (shared) or one
a sample. Times are medians over steps of a loop that goes forward and backward in turn.

* active_linear: forward is checking the set, gathering its rows and the product with bias; backward
  is ``out.backward(gradient)``: the gradients of the input, of the rows in question and of their
  biases. With sparse_grad these come as sparse tensors in ``grad``, else as rows beside it.
* SampledLinear: forward also hashes the inputs and chooses the set from tables over the rows; now
  and then rows are hashed again. Backward is the same.
* chain: SampledLinear of 256 outputs, 64 of them active, ReLU, and a second SampledLinear, whose
  set depends on the output of the first one; forward and backward are of both.
* weight[ids]: the same product, shared, by autograd through ``weight[ids]`` and ``bias[ids]``; its
  backward makes a dense gradient. With F.embedding(sparse=True) PyTorch keeps it sparse.

No optimizer in any of these. Gradients are dropped after each step, as ``zero_grad`` does.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slide import ActiveSampler, ActiveSet, LSHProposer, SampledLinear, active_linear
from slide.sampling import never

IN_FEATURES, ACTIVE, HIDDEN = 128, 64, 256
SIZES = tuple(2**power for power in range(8, 21, 2))
BATCHES = (1, 64)
MODES = ("shared", "per_sample")
SECONDS, STEPS = 0.4, (5, 300)
# A name, the forward pass, and the parameters that get gradients.
Case = tuple[str, Callable[[Tensor], Tensor], list[nn.Parameter]]


def measure(forward: Callable[[Tensor], Tensor], parameters: list, batch: int) -> dict[str, float]:
    x = torch.randn(batch, IN_FEATURES, requires_grad=True)
    grad, times = torch.randn_like(forward(x).detach()), []
    stop = time.perf_counter() + SECONDS
    while len(times) < STEPS[0] or (time.perf_counter() < stop and len(times) < STEPS[1]):
        x.grad = None
        for parameter in parameters:
            parameter.grad, parameter.row_gradients = None, []
        begin = time.perf_counter()
        out = forward(x)
        middle = time.perf_counter()
        out.backward(grad)
        times.append((middle - begin, time.perf_counter() - middle))
    # The first ones find cold caches, or kernels not loaded yet.
    ahead, back = (1e3 * statistics.median(t) for t in zip(*times[1:], strict=True))
    return {
        "forward_ms": round(ahead, 4),
        "backward_ms": round(back, 4),
        "backward_to_forward": round(back / ahead, 2),
    }


def draw_set(rng: np.random.Generator, mode: str, batch: int, outputs: int) -> ActiveSet:
    if mode == "shared":
        return ActiveSet(outputs, rng.permutation(outputs)[:ACTIVE].astype(np.int32))
    ids = [rng.choice(outputs, ACTIVE, replace=False) for _ in range(batch)]
    return ActiveSet(
        outputs, np.concatenate(ids).astype(np.int32), ACTIVE * np.arange(batch + 1, dtype=np.int64)
    )


def sampled(in_features: int, outputs: int, mode: str) -> SampledLinear:
    options = {"active": ACTIVE, "mode": mode, "rebuild": never}
    sampler = ActiveSampler(in_features, outputs, LSHProposer, **options)
    return SampledLinear(in_features, outputs, sampler)


def on_given_sets(outputs: int, batch: int, peers: bool) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    weight = nn.Parameter(torch.randn(outputs, IN_FEATURES) / IN_FEATURES**0.5)
    bias = nn.Parameter(torch.zeros(outputs))
    for mode in MODES:
        active = draw_set(rng, mode, batch, outputs)
        for sparse in (False, True):
            name = f"active_linear, {mode}{', sparse_grad' if sparse else ''}"
            call = partial(
                active_linear, weight=weight, bias=bias, active=active, sparse_grad=sparse
            )
            yield name, call, [weight, bias]
    if not peers:
        return
    ids, column = torch.from_numpy(active.row(0)).long(), nn.Parameter(bias.detach()[:, None])

    def by_index(x: Tensor) -> Tensor:
        return torch.addmm(bias[ids], x, weight[ids].T)

    def by_embedding(x: Tensor) -> Tensor:
        some = F.embedding(ids, column, sparse=True).T
        return torch.addmm(some, x, F.embedding(ids, weight, sparse=True).T)

    yield "weight[ids], autograd", by_index, [weight, bias]
    yield "F.embedding(sparse=True), autograd", by_embedding, [weight, column]


def with_samplers(outputs: int) -> Iterator[Case]:
    for mode in MODES:
        layer = sampled(IN_FEATURES, outputs, mode)
        yield f"SampledLinear, {mode}", lambda x, l=layer: l(x).values, list(layer.parameters())
    first, last = sampled(IN_FEATURES, HIDDEN, "per_sample"), sampled(HIDDEN, outputs, "per_sample")

    def both(x: Tensor) -> Tensor:
        return last(torch.relu(first(x).to_dense())).values

    yield "chain of two SampledLinear", both, [*first.parameters(), *last.parameters()]


def rows(sizes: tuple[int, ...] = SIZES, peers: bool = True) -> list[dict]:
    found = []
    for batch in BATCHES:
        for outputs in sizes:
            torch.manual_seed(0)
            cases = chain(on_given_sets(outputs, batch, peers), with_samplers(outputs))
            for name, forward, parameters in cases:
                times = measure(forward, parameters, batch)
                found.append({"case": name, "outputs": outputs, "batch": batch} | times)
    return found
