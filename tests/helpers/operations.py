"""Kernels against their references in torch, on small random inputs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import backend
from slide.functional import (
    CSRMatrix,
    active_conv2d,
    active_linear,
    active_linear_loss,
    csr_matmul,
    loss_on_active,
    relu_dropout,
    sparse_linear,
)
from slide.functional.losses import LOSSES, ActiveLoss
from slide.hashing import DWTA, HashTables, SimHash
from slide.hashing.hash_tables import fold
from slide.ops.active_sets import RankedIds
from slide.ops.random import random_below, random_bits, torch_random_below, torch_random_bits
from slide.ops.sketches import (
    CODES,
    FIRST,
    LINE,
    NUMBERS,
    PRIOR,
    SCALE,
    WIDTH,
    Rows,
    largest_scores,
    no_keys,
    rank_rows,
    rows_of,
    sketches_of,
    torch_rank_all,
)
from slide.optim import RowSparseAdam
from slide.sampling import ActiveSampler
from slide.sampling.protocol import best_of_voted
from slide.search import exact_top_k
from slide.sparse import CSR, Pattern

# Sizes of the random inputs: samples, inputs and outputs.
_ROWS, _WIDTH, _OUTPUTS = 24, 40, 300
# What an operation gives, by name: floats are compared up to rounding, all else exactly.
Found = dict[str, Any]
# It raises an error if what it tests is wrong.
Test = Callable[[np.random.Generator], None]


def near(what: str, found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    """Raise ValueError unless two tensors or arrays agree up to rounding."""
    found, expected = (torch.as_tensor(each).detach() for each in (found, expected))
    if found.shape != expected.shape:
        raise ValueError(f"{what} is {tuple(found.shape)}, not {tuple(expected.shape)}")
    error = float((found - expected).abs().max()) if found.numel() else 0.0
    # Not "error > ...", because of NaN.
    if not error <= tolerance * (1 + float(expected.abs().max() if expected.numel() else 0)):
        raise ValueError(f"{what} is off by {error:.2g}")


def equal(what: str, found: object, expected: object) -> None:
    """Raise ValueError unless two values are equal."""
    if found != expected:
        raise ValueError(f"{what} is {found}, not {expected}"[:300])


def gradient(x: Tensor) -> Tensor:
    """The gradient of a leaf."""
    if x.grad is None:
        raise ValueError("there is no gradient")
    return x.grad


def random_csr(rng: np.random.Generator, rows: int, columns: int) -> tuple[CSR, Tensor]:
    """A sparse matrix, and the same one dense."""
    dense = rng.standard_normal((rows, columns)).astype(np.float32)
    dense[rng.random(dense.shape) < 0.7] = 0
    lists = [np.flatnonzero(row).tolist() for row in dense]
    indptr, indices = Pattern.from_lists(lists)
    return CSR(indptr, indices, dense[dense != 0]), torch.from_numpy(dense)


def _both(operation: Callable[[np.random.Generator], Found]) -> Test:
    """A test that kernels and reference find the same from equal draws."""

    def test(rng: np.random.Generator) -> None:
        seed, found = int(rng.integers(1 << 31)), []
        for way in ("kernels", "torch"):
            torch.manual_seed(seed)
            with backend(way):
                found.append(operation(np.random.default_rng(seed)))
        for name, own in found[0].items():
            if isinstance(own, Tensor) and own.is_floating_point():
                near(name, own, found[1][name], 1e-3)
            else:
                equal(name, *(np.asarray(each[name]).tolist() for each in found))

    return test


def _random_set(rng: np.random.Generator, shared: bool) -> ActiveSet:
    """An active set with targets at its first positions, where weights are 1."""
    sets = [rng.permutation(_OUTPUTS)[: rng.integers(8, 60)] for _ in range(1 if shared else _ROWS)]
    indptr, ids = Pattern.from_lists([each.tolist() for each in sets])
    targets = Pattern.from_lists([sorted(rng.permutation(8)[:3].tolist()) for _ in range(_ROWS)])
    logs = rng.uniform(0, 3, len(ids)).astype(np.float32)
    for begin in indptr[:-1]:
        logs[begin : begin + 8] = 0
    return ActiveSet(_OUTPUTS, ids, None if shared else indptr, targets, logs)


def _leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def _gradients(value: Tensor, **leaves: Tensor) -> Found:
    """A value, and the gradients of leaves after a backward pass from random numbers."""
    value.backward(torch.randn_like(value))
    return {"the value": value.detach()} | {
        f"the gradient of {name}": gradient(leaf).to_dense() for name, leaf in leaves.items()
    }


def _linear(rng: np.random.Generator, mode: str) -> Found:
    if mode == "grouped":
        sampler = ActiveSampler(_WIDTH, _OUTPUTS, active=70, mode=mode, weighting="none")
        active = sampler.select(torch.from_numpy(rng.standard_normal((_ROWS, _WIDTH))), None)
    else:
        active = _random_set(rng, shared=mode == "shared")
    x, weight, bias = _leaves((_ROWS, _WIDTH), (_OUTPUTS, _WIDTH), (_OUTPUTS,))
    with torch.no_grad():
        alone = active_linear(x, weight, bias, active)
    scores = active_linear(x, weight, bias, active, sparse_grad=True)
    return {"without a gradient": alone} | _gradients(scores, x=x, weight=weight, bias=bias)


def _sparse_input(rng: np.random.Generator) -> Found:
    features, _ = random_csr(rng, _ROWS, _WIDTH)
    weight, bias = _leaves((_WIDTH, 9), (9,))
    return _gradients(sparse_linear(features, weight, bias, True), weight=weight, bias=bias)


def _losses(rng: np.random.Generator) -> Found:
    found, weights = {}, rng.random(_ROWS)
    for name in LOSSES:
        for shared in (True, False):
            active = _random_set(rng, shared)
            (scores,) = _leaves((_ROWS, len(active.ids)) if shared else (len(active.ids),))
            loss = loss_on_active(scores, active, name, 0.5, weights)
            parts = _gradients(loss, scores=scores)
            found |= {f"{part} of {name}, {shared=}": each for part, each in parts.items()}
    active = _random_set(rng, shared=True)
    (scores,) = _leaves((_ROWS, len(active.ids)))
    parts = _gradients(ActiveLoss("softmax", label_smoothing=0.2)(scores, active), scores=scores)
    return found | {f"{part} of smoothed labels": each for part, each in parts.items()}


def _linear_loss(rng: np.random.Generator) -> Found:
    active = _random_set(rng, shared=True)
    x, weight, bias = _leaves((_ROWS, _WIDTH), (_OUTPUTS, _WIDTH), (_OUTPUTS,))
    options = {"hard_fraction": 0.5, "sparse_grad": True}
    loss = active_linear_loss(x / 9, weight, bias, active, "squared_hinge", **options)
    return _gradients(loss, x=x, weight=weight, bias=bias)


def _csr_product(rng: np.random.Generator) -> Found:
    matrix = CSRMatrix(random_csr(rng, _OUTPUTS, _WIDTH)[0], _WIDTH)
    x, values = _leaves((_WIDTH, 5), tuple(matrix.values.shape))
    own = csr_matmul(matrix, x.detach())
    return {"with its own": own} | _gradients(csr_matmul(matrix, x, values), x=x, values=values)


def _convolution(rng: np.random.Generator) -> Found:
    """Of some channels of images, which lie in memory by pixels or by channels."""
    outs, ins = (np.sort(rng.permutation(n)[:5]) for n in (12, 8))
    found = {}
    for layout in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(3, 8, 9, 9).contiguous(memory_format=layout).requires_grad_()
        (weight,) = _leaves((12, 8, 3, 3))
        options = {"in_channels": ins, "out_channels": outs, "padding": 1, "sparse_grad": True}
        parts = _gradients(active_conv2d(x, weight, **options), x=x, weight=weight)
        found |= {f"{part}, {layout}": each for part, each in parts.items()}
    return found


def _dropout(rng: np.random.Generator) -> Found:
    (x,) = _leaves((_ROWS, 400))
    return _gradients(relu_dropout(x, 0.5), x=x)


def _adam(rng: np.random.Generator) -> Found:
    """Of dense gradients, of rows and of their factors, with and without a first moment."""
    found = {}
    for beta1 in (0.0, 0.9):
        x, weight, bias = _leaves((_ROWS, _WIDTH), (_OUTPUTS, _WIDTH), (_OUTPUTS,))
        weight, bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
        optimizer = RowSparseAdam([weight, bias], betas=(beta1, 0.99), lr=0.1, weight_decay=0.1)
        for shared in (True, False, True):
            scores = active_linear(x, weight, bias, _random_set(rng, shared))
            scores.backward(torch.rand_like(scores))
            optimizer.step()
        weight.grad = torch.randn_like(weight)
        optimizer.step()
        found |= {f"the weight, {beta1=}": weight.detach(), f"the bias, {beta1=}": bias.detach()}
    return found


def _hashes(rng: np.random.Generator) -> None:
    """Where a sum is nearly zero, its sign depends on rounding, so most codes agree, not all."""
    sparse, _ = random_csr(rng, _ROWS, _WIDTH)
    dense, seed = torch.randn(_ROWS, _WIDTH), int(rng.integers(99))
    for kind in (SimHash, DWTA):
        family = kind(_WIDTH, hashes_per_table=3, num_tables=5, seed=seed)
        for name in ("codes", "sparse_codes", "probe_codes"):
            words = {"codes": (dense,), "sparse_codes": (sparse,), "probe_codes": (dense, 2)}[name]
            found = []
            for way in ("kernels", "torch"):
                with backend(way):
                    found.append(np.asarray(getattr(family, name)(*words)))
            share = float((found[0] == found[1]).mean())
            if share < 0.9:
                raise ValueError(f"only {share:.0%} of {name} of {kind.__name__} agree")


def _tables(rng: np.random.Generator) -> Found:
    found: Found = {"buckets of codes": fold(rng.integers(0, 1 << 31, 60).astype(np.int32), 37)}
    queries = rng.integers(0, 16, (3, 7)).astype(np.int32)
    for capacity in (4, 60, None):
        tables = HashTables(3, 16, capacity)
        codes = rng.integers(0, 16, (3, 60)).astype(np.int32)
        tables.build(codes[:, :40])
        tables.insert(np.arange(40, 60, dtype=np.int32), codes[:, 40:])
        found[f"what queries find, {capacity=}"] = _sorted(tables.query(queries))
    return found


def _sorted(found: Pattern) -> np.ndarray:
    """The ids of each row, sorted, after the bounds of the rows."""
    return np.concatenate(
        [found.indptr, found.indices[np.lexsort((found.indices, found.entry_rows()))]]
    )


def _random_numbers(rng: np.random.Generator) -> None:
    counters = rng.integers(0, 1 << 62, 20)
    key, bound = int(rng.integers(1 << 62)), int(rng.integers(1, 1 << 31))
    bits = [int(random_bits(np.uint64(key), each)) for each in counters]
    below = [int(random_below(np.uint64(key), each, bound)) for each in counters]
    expected = torch_random_bits(key, torch.from_numpy(counters)).numpy().view(np.uint64)
    equal("random bits", bits, expected.tolist())
    equal(
        "random numbers", below, torch_random_below(key, torch.from_numpy(counters), bound).tolist()
    )


def _sets(rng: np.random.Generator) -> Found:
    """Labels, then uniform ids, with the weights that make their sums unbiased."""
    labels = Pattern.from_lists([rng.permutation(_OUTPUTS)[:4].tolist() for _ in range(_ROWS)])
    found, x = {}, torch.randn(_ROWS, _WIDTH)
    for mode, size in (("per_sample", 40), ("grouped", 90), ("shared", 100)):
        # In a set of more than a quarter of all outputs the reference draws in another way.
        options = {"active": size, "mode": mode, "weighting": "stratified", "out_features": 5000}
        sampler = ActiveSampler(_WIDTH, seed=int(rng.integers(99)), **options)
        active = sampler.select(x, labels)
        assert active.targets is not None
        found |= {f"the ids, {mode}": active.ids, f"the labels, {mode}": active.targets.indices}
        found[f"the weights, {mode}"] = torch.as_tensor(active.log_weights)
    return found


def _draw_sketches(rng: np.random.Generator, width: int) -> Tensor:
    """Sketches of random rows, whose scores are exact sums."""
    sketches = torch.from_numpy(rng.integers(-127, 128, (_OUTPUTS, width)).astype(np.int8))
    floats = sketches.view(torch.float32)
    floats[:, PRIOR] = torch.from_numpy(rng.integers(0, 9, _OUTPUTS).astype(np.float32))
    floats[:, SCALE] = 2.0 ** -int(rng.integers(9))
    return sketches


def _best_in_buckets(rng: np.random.Generator) -> Found:
    """The best sketches in two buckets of a query, without its label."""
    sketches, tables = _draw_sketches(rng, LINE), HashTables(2, 3, bucket_capacity=None)
    queries = torch.from_numpy(rng.integers(-9, 10, (_ROWS, LINE - FIRST)).astype(np.float32))
    labels = Pattern.from_lists([[row] for row in range(_ROWS)])
    tables.build(rng.integers(0, 3, (2, _OUTPUTS)).astype(np.int32))
    asked = rng.integers(0, 3, (2, _ROWS)).astype(np.int32)
    ids, scanned = tables.best(asked, queries, sketches, labels, no_keys((_ROWS, 6)))
    return {"the best rows": ids.numpy(), "the number of rows": np.round(scanned, 3)}


def _best_in_head(rng: np.random.Generator) -> None:
    """The best rows of products, without the label of each query."""
    sketches = _draw_sketches(rng, WIDTH)
    queries = rng.integers(-9, 10, (_ROWS, CODES)).astype(np.float32)
    labels, keys = Pattern.from_lists([[row] for row in range(_ROWS)]), no_keys((_ROWS, 6))
    products = queries @ sketches[:, NUMBERS].numpy().T.astype(np.float32)
    own = sketches.view(torch.float32)[:, [SCALE, PRIOR]].numpy().T.copy()
    rows = Rows(np.arange(_OUTPUTS, dtype=np.int32), *own)
    rank_rows(products.astype(np.int32), np.ones(_ROWS, np.float32), rows, labels, keys)
    pairs = torch.arange(_ROWS)[:, None].repeat(1, 2)
    expected = torch_rank_all(torch.from_numpy(queries), sketches, pairs, 6)
    equal("the best rows", rows_of(keys).tolist(), expected.tolist())


def _sketches(rng: np.random.Generator) -> Found:
    """Rounded rows, and the scores that they may have."""
    rows = torch.from_numpy(rng.integers(-99, 100, (_OUTPUTS, 10)).astype(np.float32))
    rows[:, 0] = 127.0  # So that the numbers are exact: a quotient may be rounded to either side.
    sketches, variances = sketches_of(rows, torch.zeros(10)), torch.zeros(WIDTH)
    variances[NUMBERS] = torch.from_numpy(rng.random(CODES).astype(np.float32))
    largest = torch.from_numpy(largest_scores(_draw_sketches(rng, WIDTH), variances, 2.0))
    own = sketches.view(torch.float32)[:, [SCALE, PRIOR]]
    found = {"scales and priors": own, "rounded rows": sketches[:, NUMBERS].numpy()}
    return found | {"largest scores": largest}


def _best_of_lists(rng: np.random.Generator) -> Found:
    lists = np.stack([rng.permutation(_OUTPUTS)[:20] for _ in range(_ROWS)]).astype(np.int32)
    labels = Pattern.from_lists([row[:2].tolist() for row in lists])
    x, weight, bias = torch.randn(_ROWS, 9), torch.randn(_OUTPUTS, 9), torch.randn(_OUTPUTS)
    ranked = RankedIds(lists, rng.integers(8, 20, _ROWS))
    return {"the best ids": best_of_voted(x, weight, bias, ranked, labels, 5)}


def _largest(rng: np.random.Generator) -> Found:
    x, weight, bias = torch.randn(_ROWS, 9), torch.randn(_OUTPUTS, 9), torch.randn(_OUTPUTS)
    scores, ids = exact_top_k(x, weight, bias, 7)
    return {"the scores": scores, "the ids": ids}


COMPARISONS: dict[str, Test] = {
    "products on a shared set": _both(partial(_linear, mode="shared")),
    "products on a set for each sample": _both(partial(_linear, mode="per_sample")),
    "products on sets of groups": _both(partial(_linear, mode="grouped")),
    "products of sparse inputs": _both(_sparse_input),
    "losses": _both(_losses),
    "products and loss in one": _both(_linear_loss),
    "products of sparse matrices": _both(_csr_product),
    "convolution": _both(_convolution),
    "dropout": _both(_dropout),
    "Adam": _both(_adam),
    "hashes": _hashes,
    "hash tables": _both(_tables),
    "random numbers": _random_numbers,
    "active sets": _both(_sets),
    "best rows of buckets": _both(_best_in_buckets),
    "best rows of a head": _best_in_head,
    "sketches of rows": _both(_sketches),
    "best ids of lists": _both(_best_of_lists),
    "largest scores": _both(_largest),
}
