"""Layers of slide against PyTorch's, forward and backward: what `seeds.py` measures and says."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slide import (
    CSR,
    ActiveLoss,
    ActiveSampler,
    ActiveSet,
    LSHProposer,
    Pattern,
    RowSparseAdam,
    SampledLinear,
    active_linear,
)
from slide.functional.convolution import active_conv2d
from slide.functional.sparse_linear import csr_matmul
from slide.nn import hardest
from slide.ops.csr import CSRMatrix
from slide.sampling import never

Rows = list[dict]


def in_turn(*calls: Callable[[Any], Any]) -> list[float]:
    """The milliseconds of calls, one after the other; each gets what the one before returned."""
    times, value = [], None
    for call in calls:
        begin = time.perf_counter()
        value = call(value)
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def both_ways(call: Callable[[], Tensor], leaves: Sequence[Tensor], grad: Tensor) -> list[float]:
    """Milliseconds of a forward and a backward pass from scratch."""
    for leaf in leaves:
        leaf.grad, leaf.row_gradients = None, []  # type: ignore[attr-defined]
    return in_turn(lambda _: call(), lambda out: out.backward(grad))


def figures(forward: float, backward: float, digits: int) -> dict[str, float]:
    return {
        "forward_ms": round(forward, digits),
        "backward_ms": round(backward, digits),
        "backward_to_forward": round(backward / forward, 2),
    }


def medians(times: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(each) for each in zip(*times, strict=True)]


# linear: backward through a slice of a layer's outputs, as the layer grows -----------------------

IN_FEATURES, ACTIVE, HIDDEN = 128, 64, 256
MODES = ("shared", "per_sample")
SIZES = tuple(2**power for power in range(8, 21, 2))
SECONDS, STEPS = 0.4, (5, 300)
# A name, the forward pass, and the parameters that get gradients.
Case = tuple[str, Callable[[Tensor], Tensor], list[nn.Parameter]]


def draw_set(rng: np.random.Generator, mode: str, batch: int, outputs: int) -> ActiveSet:
    if mode == "shared":
        return ActiveSet(outputs, rng.permutation(outputs)[:ACTIVE].astype(np.int32))
    ids = [rng.choice(outputs, ACTIVE, replace=False) for _ in range(batch)]
    starts = ACTIVE * np.arange(batch + 1, dtype=np.int64)
    return ActiveSet(outputs, np.concatenate(ids).astype(np.int32), starts)


def on_given_sets(outputs: int, batch: int) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    weight = nn.Parameter(torch.randn(outputs, IN_FEATURES) / IN_FEATURES**0.5)
    bias = nn.Parameter(torch.zeros(outputs))
    for mode in MODES:
        active = draw_set(rng, mode, batch, outputs)
        parts = {"weight": weight, "bias": bias, "active": active}
        for sparse in (False, True):
            name = f"active_linear, {mode}{', sparse_grad' if sparse else ''}"
            yield name, partial(active_linear, **parts, sparse_grad=sparse), [weight, bias]
    ids, column = torch.from_numpy(active.row(0)).long(), nn.Parameter(bias.detach()[:, None])

    def by_index(x: Tensor) -> Tensor:
        return torch.addmm(bias[ids], x, weight[ids].T)

    def by_embedding(x: Tensor) -> Tensor:
        some = F.embedding(ids, column, sparse=True).T
        return torch.addmm(some, x, F.embedding(ids, weight, sparse=True).T)

    yield "weight[ids], autograd", by_index, [weight, bias]
    yield "F.embedding(sparse=True), autograd", by_embedding, [weight, column]


def with_samplers(outputs: int) -> Iterator[Case]:
    def sampled(inputs: int, outputs: int, mode: str) -> SampledLinear:
        settings = {"active": ACTIVE, "mode": mode, "rebuild": never}
        sampler = ActiveSampler(inputs, outputs, LSHProposer, **settings)
        return SampledLinear(inputs, outputs, sampler)

    for mode in MODES:
        layer = sampled(IN_FEATURES, outputs, mode)
        yield f"SampledLinear, {mode}", lambda x, l=layer: l(x).values, list(layer.parameters())
    first, last = sampled(IN_FEATURES, HIDDEN, "per_sample"), sampled(HIDDEN, outputs, "per_sample")

    def both(x: Tensor) -> Tensor:
        return last(torch.relu(first(x).to_dense())).values

    yield "chain of two SampledLinear", both, [*first.parameters(), *last.parameters()]


def linear() -> Rows:
    found = []
    for batch, outputs in product((1, 64), SIZES):
        torch.manual_seed(0)
        for name, call, leaves in chain(on_given_sets(outputs, batch), with_samplers(outputs)):
            x = torch.randn(batch, IN_FEATURES, requires_grad=True)
            grad, times = torch.randn_like(call(x).detach()), []
            stop = time.perf_counter() + SECONDS
            while len(times) < STEPS[0] or (time.perf_counter() < stop and len(times) < STEPS[1]):
                times.append(both_ways(partial(call, x), [x, *leaves], grad))
            # The first ones find cold caches, or kernels not loaded yet.
            row = {"case": name, "outputs": outputs, "batch": batch}
            found.append(row | figures(*medians(times[1:]), 4))
    return found


# csr: a large sparse matrix times a vector or a few, and the gradient of a masked squared error ---

ROWS, COLUMNS, DENSITY = 850_000, 210_000, 0.001
VECTORS = (1, 8)
# PyTorch's COO products and gradients need some 60 bytes an entry.
MOST_PEER_ENTRIES = 20_000_000


def make_matrix() -> CSR:
    """Columns at random, ascending in each row, as files have them."""
    rng = np.random.default_rng(0)
    indptr = np.zeros(ROWS + 1, np.int64)
    np.cumsum(rng.binomial(COLUMNS, DENSITY, ROWS), out=indptr[1:])
    indices = rng.integers(0, COLUMNS, indptr[-1], dtype=np.int32)
    for begin in range(0, ROWS, 10_000):
        bounds = indptr[begin : begin + 10_001]
        part = indices[bounds[0] : bounds[-1]]
        row = np.repeat(np.arange(len(bounds) - 1, dtype=np.int64), np.diff(bounds))
        part[:] = (np.sort(row * COLUMNS + part) - row * COLUMNS).astype(np.int32)
    return CSR(indptr, indices, rng.standard_normal(indptr[-1], np.float32))


def of_product(
    call: Callable[[Tensor], Tensor], vectors: int, repeats: int, expected: Tensor | None = None
) -> tuple[dict[str, float], Tensor]:
    """Figures, the best of 7 and of ``repeats``, and the gradient, which must be ``expected``."""
    torch.manual_seed(0)
    x = torch.randn(COLUMNS, vectors, requires_grad=True)
    y, generator = call(x), torch.Generator().manual_seed(1)
    mask = torch.rand(y.shape, generator=generator) < 0.5
    grad = 2 * mask * (y.detach() - torch.randn(y.shape, generator=generator))
    found: list[Tensor] = []

    def backward(_: object = None) -> None:
        found.append(torch.autograd.grad(y, x, grad, retain_graph=True)[0])

    if repeats > 1:
        backward()
    forward_ms = min(in_turn(*[lambda _: call(x)] * 7))
    backward_ms = min(in_turn(*[backward] * repeats))
    assert torch.equal(found[0], found[-1])
    if expected is not None:
        assert (found[-1] - expected).norm() <= 1e-5 * expected.norm(), "another gradient"
    return figures(forward_ms, backward_ms, 1), found[-1]


def csr() -> Rows:
    rows = make_matrix()
    matrix = CSRMatrix(rows, COLUMNS)
    (index_ms,) = in_turn(lambda _: matrix.transpose())
    entries, expected, found = len(rows.indices), {}, []
    indptr, indices, parts = (torch.from_numpy(array) for array in rows)

    def of_torch(index: torch.dtype) -> Tensor:
        return torch.sparse_csr_tensor(
            indptr.to(index), indices.to(index), parts, matrix.shape, check_invariants=False
        )

    def add(name: str, call: Callable, vectors: int, repeats: int, **more: float) -> None:
        row, gradient = of_product(call, vectors, repeats, expected.get(vectors))
        expected.setdefault(vectors, gradient)
        found.append({"case": name, "entries": entries, "vectors": vectors} | row | more)
        gc.collect()

    for count in VECTORS:
        add("ours", partial(csr_matmul, matrix), count, 7, index_ms=round(index_ms, 1))
    values = matrix.values.clone().requires_grad_()
    name = "ours, gradient of A's values too"
    add(name, partial(csr_matmul, matrix, values=values), VECTORS[0], 3)
    del values
    kinds = {"torch CSR, 32-bit": lambda: of_torch(torch.int32)}
    if entries <= MOST_PEER_ENTRIES:
        kinds["torch CSR, 64-bit"] = lambda: of_torch(torch.int64)
        kinds["torch COO"] = lambda: of_torch(torch.int64).to_sparse_coo().coalesce()
    for name, make in kinds.items():
        peer = make()
        for count in VECTORS:
            add(name, partial(torch.sparse.mm, peer), count, 1)
        del peer
    return found


# hardest: backward where only the hardest quarter of a batch is learnt from ----------------------

FRACTION = 0.25
INPUTS, UNITS, OUTPUTS = 512, 256, 100_000
BATCH = {"shared": 512, "per_sample": 128}
SETS = {"shared": 4096, "per_sample": 1000}
REPEATS = 60
# A forward pass with a share of the batch kept, which returns the loss; and what updates.
Learner = tuple[Callable[[float], Tensor], torch.optim.Optimizer]


def inputs(mode: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(BATCH[mode], INPUTS), torch.randint(SETS[mode] // 2, (BATCH[mode],))


def ours(mode: str, own_loss: bool = False) -> Learner:
    """Two of slide's layers; the first one computes all its units.

    ``own_loss``: a loss of PyTorch's on the scores of a shared set, which begins with the labels.
    """
    x, targets = inputs(mode)
    labels = Pattern(np.arange(len(x) + 1, dtype=np.int64), targets.numpy().astype(np.int32))
    sampler = ActiveSampler(UNITS, OUTPUTS, active=SETS[mode], mode=mode)
    first, output = SampledLinear(INPUTS, UNITS), SampledLinear(UNITS, OUTPUTS, sampler)

    def forward(fraction: float) -> Tensor:
        out = output(torch.relu(first(x).values), labels)
        if not own_loss:
            return ActiveLoss("softmax", fraction)(out.values, out.active)
        columns = torch.from_numpy(out.active.targets.indices).long()
        losses = F.cross_entropy(out.values, columns, reduction="none")
        return hardest(fraction)(losses) if fraction < 1 else losses.mean()

    return forward, RowSparseAdam([*first.parameters(), *output.parameters()])


def of_torch(two_passes: bool) -> Learner:
    x, targets = inputs("shared")
    network = nn.Sequential(nn.Linear(INPUTS, UNITS), nn.ReLU(), nn.Linear(UNITS, SETS["shared"]))

    def losses(rows: slice | Tensor) -> Tensor:
        return F.cross_entropy(network(x[rows]), targets[rows], reduction="none")

    def forward(fraction: float) -> Tensor:
        if fraction == 1:
            return losses(slice(None)).mean()
        if not two_passes:
            return hardest(fraction)(losses(slice(None)))
        with torch.no_grad():
            hard = losses(slice(None)).topk(round(fraction * len(x))).indices
        return losses(hard).mean()

    return forward, torch.optim.Adam(network.parameters())


LEARNERS: dict[str, Callable[[], Learner]] = {
    "ours, shared set": lambda: ours("shared"),
    "ours, shared set, loss of PyTorch": lambda: ours("shared", own_loss=True),
    "ours, sets per sample": lambda: ours("per_sample"),
    "torch": lambda: of_torch(two_passes=False),
    "torch, two passes": lambda: of_torch(two_passes=True),
}


def hardest_rows() -> Rows:
    """Median milliseconds of the parts of a step, for the whole batch and for its hard part."""

    def step(forward: Callable[[float], Tensor], update: Any, fraction: float) -> list[float]:
        times = in_turn(lambda _: forward(fraction), Tensor.backward, lambda _: update.step())
        update.zero_grad()
        return times

    found = []
    for name, make in LEARNERS.items():
        learner, turns = make(), []
        for _ in range(REPEATS + 3):
            turns.append([*step(*learner, 1.0), *step(*learner, FRACTION)])
        row = {"case": name, "batch": BATCH["per_sample" if "per sample" in name else "shared"]}
        ms = medians(turns[3:])
        for part, of_all, of_some in zip(
            ("forward", "backward", "update"), ms[:3], ms[3:], strict=True
        ):
            row |= {f"{part}_ms": round(of_all, 2), f"hard_{part}_ms": round(of_some, 2)}
            row |= {"backward_ratio": round(of_some / of_all, 3)} if part == "backward" else {}
        found.append(row)
    return found


# conv: convolution on half of the input channels -------------------------------------------------

IMAGES, CHANNELS, KERNELS, SIDE = 128, 16, 32, 28
WARM_UP, COUNTED = 5, 25
ORDERS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, ids, stride):
        some, kernels = x[:, ids], weight[:, ids]
        ctx.save_for_backward(x, weight, ids, some, kernels)
        ctx.stride = stride
        return F.conv2d(some, kernels, bias, stride, 1)

    @staticmethod
    def backward(ctx, grad):
        x, weight, ids, some, kernels = ctx.saved_tensors
        grad_x, grad_weight = torch.zeros_like(x), torch.zeros_like(weight)
        shape = ctx.stride, 1
        grad_x[:, ids] = torch.nn.grad.conv2d_input(some.shape, kernels, grad, *shape)
        grad_weight[:, ids] = torch.nn.grad.conv2d_weight(some, kernels.shape, grad, *shape)
        return grad_x, grad_weight, grad.sum((0, 2, 3)), None, None


def _masked(x: Tensor, weight: Tensor, bias: Tensor, ids: Tensor, stride: int) -> Tensor:
    mask = torch.zeros(CHANNELS, 1, 1)
    mask[ids] = 1
    return F.conv2d(x * mask, weight, bias, stride, 1)


WAYS: dict[str, Callable[..., Tensor]] = {
    "active_conv2d": lambda x, w, b, ids, s: active_conv2d(x, w, b, ids, None, s, 1),
    "conv2d of slices": lambda x, w, b, ids, s: F.conv2d(x[:, ids], w[:, ids], b, s, 1),
    "conv2d with a mask": _masked,
    "torch.nn.grad": _ByHand.apply,
}


def conv() -> Rows:
    """One row for each way, stride and order of memory."""
    found, ids = [], torch.arange(0, CHANNELS, 2)
    for stride, (order, layout) in product((1, 2), ORDERS.items()):
        torch.manual_seed(0)
        calls, times = {}, {name: [] for name in WAYS}
        for name, way in WAYS.items():
            x = torch.randn(IMAGES, CHANNELS, SIDE, SIDE).contiguous(memory_format=layout)
            leaves = x, torch.randn(KERNELS, CHANNELS, 3, 3), torch.randn(KERNELS)
            for leaf in leaves:
                leaf.requires_grad_()
            call = partial(way, *leaves, ids, stride)
            calls[name] = partial(both_ways, call, leaves, torch.ones_like(call().detach()))
        for _ in range(WARM_UP + COUNTED):
            for name, call in calls.items():
                times[name].append(call())
        for name, own in times.items():
            row = {"case": name, "stride": stride, "order": order}
            found.append(row | figures(*medians(own[WARM_UP:]), 2))
    return found


LAYERS = {"linear": linear, "csr": csr, "hardest": hardest_rows, "conv": conv}
