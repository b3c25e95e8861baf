"""Slide's kernels against plain formulas of NumPy and PyTorch, on random small inputs."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from slide.active_set import ActiveSet
from slide.check.choice_kernels import CHOICE_TESTS
from slide.check.comparing import Test, equal, gradient, near, random_csr
from slide.check.data_kernels import DATA_TESTS
from slide.check.inner_kernels import INNER_TESTS
from slide.check.row_kernels import ROW_TESTS
from slide.data.dataset import Split
from slide.functional import CSRMatrix, active_conv2d, active_linear, csr_matmul, loss_on_active
from slide.hashing import DWTA, HashTables, SimHash
from slide.optim import RowSparseAdam
from slide.sampling import ActiveSampler, LSHProposer
from slide.search import RowIndex, exact_top_k
from slide.sparse import Pattern

SECONDS = 10.0
# Sizes of the random inputs: rows, inputs and outputs at most.
_ROWS, _WIDTH, _OUTPUTS = 24, 40, 300


def run_self_tests(
    seconds: float = SECONDS, seed: int = 0
) -> Iterator[tuple[str, int, str | None]]:
    """Each test on random inputs, for its share of the time, but at least once.

    Args:
        seconds: how long all of them take, without compiling kernels.
        seed: seed of the inputs.

    Yields:
        The name of the test, the number of trials, and what was wrong; None: nothing.

    Example:
        >>> from slide.check import run_self_tests
        >>> name, trials, said = next(run_self_tests(seconds=0))  # The first test.
        >>> said is None
        True
    """
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, test in SELF_TESTS.items():
            trials, said = 1, _outcome(test, rng)  # The first trial compiles kernels.
            end = time.perf_counter() + seconds / len(SELF_TESTS)
            while said is None and time.perf_counter() < end:
                said, trials = _outcome(test, rng), trials + 1
            yield name, trials, said


def _outcome(test: Test, rng: np.random.Generator) -> str | None:
    try:
        test(rng)
    except Exception as error:
        return " ".join(str(error).split()) or repr(error)
    return None


def _random_set(rng: np.random.Generator, rows: int, shared: bool) -> tuple[ActiveSet, Tensor]:
    """An active set with targets, and for each sample whether an output is in its set."""
    sets = [rng.permutation(_OUTPUTS)[: rng.integers(8, 60)] for _ in range(1 if shared else rows)]
    indptr, ids = Pattern.from_lists([each.tolist() for each in sets])
    targets = Pattern.from_lists([sorted(rng.permutation(8)[:3].tolist()) for _ in range(rows)])
    within = torch.zeros(rows, _OUTPUTS, dtype=torch.bool)
    for row in range(rows):
        within[row, torch.from_numpy(sets[0 if shared else row]).long()] = True
    return ActiveSet(_OUTPUTS, ids, None if shared else indptr, targets), within


def _linear(rng: np.random.Generator, shared: bool) -> None:
    active, within = _random_set(rng, _ROWS, shared)
    x, weight = torch.randn(_ROWS, _WIDTH), torch.randn(_OUTPUTS, _WIDTH) / 6
    bias = torch.randn(_OUTPUTS)
    leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
    scores = active_linear(leaves[0], leaves[1], leaves[2], active, sparse_grad=True)
    plain = [each.clone().requires_grad_() for each in (x, weight, bias)]
    dense = F.linear(*plain)
    rows = torch.arange(_ROWS).repeat_interleave(within.sum(1))
    ids = torch.from_numpy(active.ids).long()
    chosen = dense[:, ids] if shared else dense[rows, ids]
    near("the product", scores, chosen)
    up = torch.randn_like(scores)
    scores.backward(up)
    chosen.backward(up)
    for name, own, other in zip(("input", "weight", "bias"), leaves, plain, strict=True):
        near(f"the gradient of the {name}", gradient(own).to_dense(), gradient(other))


def _losses(rng: np.random.Generator) -> None:
    active, _ = _random_set(rng, _ROWS, shared=True)
    assert active.targets is not None
    truth = torch.zeros(_ROWS, len(active.ids))
    for row in range(_ROWS):
        begin, end = active.targets.indptr[row : row + 2]
        truth[row, torch.from_numpy(active.targets.indices[begin:end]).long()] = 1
    formulas: dict[str, Callable[[Tensor], Tensor]] = {
        "bce": lambda z: F.binary_cross_entropy_with_logits(z, truth, reduction="none").sum(1),
        "squared_hinge": lambda z: (1 - (2 * truth - 1) * z).clamp(min=0).square().sum(1),
        "softmax": lambda z: -(z.log_softmax(1) * truth).sum(1) / truth.sum(1),
    }
    for name, formula in formulas.items():
        own = torch.randn(_ROWS, len(active.ids)).requires_grad_()
        plain = own.detach().clone().requires_grad_()
        loss, expected = loss_on_active(own, active, name), formula(plain).mean()
        near(f"the loss {name}", loss, expected)
        loss.backward()
        expected.backward()
        near(f"the gradient of {name}", gradient(own), gradient(plain))


def _csr_product(rng: np.random.Generator) -> None:
    sparse, dense = random_csr(rng, _OUTPUTS, _WIDTH)
    own = torch.randn(_WIDTH, 5)
    plain = own.clone().requires_grad_()
    own.requires_grad_()
    found, expected = csr_matmul(CSRMatrix(sparse, _WIDTH), own), dense @ plain
    near("the product", found, expected)
    up = torch.randn_like(found)
    found.backward(up)
    expected.backward(up)
    near("the gradient", gradient(own), gradient(plain))


def _convolution(rng: np.random.Generator) -> None:
    """Of some channels of images, which lie in memory by pixels or by channels."""
    weight = torch.randn(12, 8, 3, 3)
    outs, ins = (torch.from_numpy(np.sort(rng.permutation(n)[:5])) for n in (12, 8))
    for layout in (torch.channels_last, torch.contiguous_format):
        images = torch.randn(3, 8, 9, 9).contiguous(memory_format=layout)
        own, plain = (images.clone().requires_grad_() for _ in range(2))
        found = active_conv2d(own, weight, out_channels=outs, in_channels=ins, padding=1)
        expected = F.conv2d(plain[:, ins], weight[outs][:, ins], padding=1)
        near("the convolution", found, expected, 1e-3)
        up = torch.randn_like(found)
        found.backward(up)
        expected.backward(up)
        near("the gradient", gradient(own), gradient(plain), 1e-3)


def _adam(rng: np.random.Generator) -> None:
    start = torch.randn(_OUTPUTS, _WIDTH)
    own, plain = (torch.nn.Parameter(start.clone()) for _ in range(2))
    ours = RowSparseAdam([own], lr=0.01, weight_decay=0.1)
    theirs = torch.optim.AdamW([plain], lr=0.01, weight_decay=0.1)
    for _ in range(3):
        own.grad = torch.randn_like(own)
        plain.grad = own.grad.clone()
        ours.step()
        theirs.step()
    near("the weight after three steps", own.detach(), plain.detach())


def _mostly_equal(what: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Codes of `what` agree; where a sum is nearly zero, its sign depends on rounding."""
    share = float((found == expected).mean())
    if share < 0.9:
        raise ValueError(f"only {share:.0%} of the codes of {what} agree")


def _hashes(rng: np.random.Generator) -> None:
    sparse, dense = random_csr(rng, _ROWS, _WIDTH)
    family = SimHash(_WIDTH, hashes_per_table=6, num_tables=5, seed=int(rng.integers(99)))
    _mostly_equal("sparse rows", family.sparse_codes(sparse), family.codes(dense))
    full = torch.randn(_ROWS, _WIDTH)
    opposite = family.num_buckets - 1 - family.codes(-full)
    _mostly_equal("opposite vectors", opposite, family.codes(full))
    winners = DWTA(_WIDTH, hashes_per_table=3, num_tables=5, seed=int(rng.integers(99)))
    _mostly_equal("equal orders", winners.codes(full.exp()), winners.codes(3 * full.exp()))


def _tables(rng: np.random.Generator) -> None:
    codes = rng.integers(0, 16, (3, 60)).astype(np.int32)
    tables = HashTables(3, 16, bucket_capacity=60)
    tables.build(codes)
    queries = rng.integers(0, 16, (3, 7)).astype(np.int32)
    found = tables.query(queries)
    for i in range(7):
        own = sorted(found.indices[found.indptr[i] : found.indptr[i + 1]].tolist())
        expected = [j for t in range(3) for j in np.flatnonzero(codes[t] == queries[t, i]).tolist()]
        equal("what a query finds", own, sorted(expected))


def _sets(rng: np.random.Generator) -> None:
    labels = Pattern.from_lists([rng.permutation(_OUTPUTS)[:4].tolist() for _ in range(_ROWS)])
    weight, x = torch.randn(_OUTPUTS, _WIDTH), torch.randn(_ROWS, _WIDTH)
    for mode in ("per_sample", "shared"):
        seed = int(rng.integers(99))
        options = {"active": 150, "mode": mode, "seed": seed}
        sampler = ActiveSampler(_WIDTH, _OUTPUTS, LSHProposer, **options)
        sampler.update(weight, None, x)
        active = sampler.select(x, labels)
        assert active.targets is not None
        bounds = [0, len(active.ids)] if active.indptr is None else active.indptr.tolist()
        for row in range(_ROWS):
            part = 0 if active.indptr is None else row
            ids = active.ids[bounds[part] : bounds[part + 1]]
            equal("the number of distinct ids", len(set(ids.tolist())), 150)
            begin, end = active.targets.indptr[row : row + 2]
            own = sorted(ids[active.targets.indices[begin:end]].tolist())
            expected = labels.indices[labels.indptr[row] : labels.indptr[row + 1]]
            equal("the labels in a set", own, sorted(expected.tolist()))


def _largest(rng: np.random.Generator) -> None:
    x, weight, bias = (
        torch.randn(_ROWS, _WIDTH),
        torch.randn(_OUTPUTS, _WIDTH),
        torch.randn(_OUTPUTS),
    )
    scores, ids = exact_top_k(x, weight, bias, 7)
    expected = F.linear(x, weight, bias).topk(7)
    near("the scores", scores, expected.values)
    equal("the ids", ids.tolist(), expected.indices.tolist())


def _index(rng: np.random.Generator) -> None:
    """Few rows are all seen, so the index misses none of the best."""
    x, weight = torch.randn(_ROWS, _WIDTH), torch.randn(_OUTPUTS, _WIDTH)
    bias = torch.randn(_OUTPUTS)
    scores, ids = RowIndex(weight, bias, int(rng.integers(99))).top_k(x, 7)
    dense = F.linear(x, weight, bias)
    near("the scores", scores, dense.topk(7).values)
    # Rounding may swap equal scores, so each id is compared by its score.
    near("the scores of the ids", dense.gather(1, ids), scores)
    equal("the number of distinct ids", [len(set(row)) for row in ids.tolist()], [7] * _ROWS)


def _rows(rng: np.random.Generator) -> None:
    sparse, dense = random_csr(rng, _ROWS, _WIDTH)
    labels = Pattern.from_lists([[row] for row in range(_ROWS)])
    rows = rng.integers(0, _ROWS, 30)
    taken = Split(sparse, labels, _WIDTH, _ROWS).take(rows)
    indptr, indices, values = taken.features
    found = torch.zeros(30, _WIDTH)
    places = torch.arange(30).repeat_interleave(torch.from_numpy(np.diff(indptr)))
    found[places, torch.from_numpy(indices).long()] = torch.from_numpy(values)
    near("rows that are copied", found, dense[torch.from_numpy(rows)], 0.0)
    equal("their labels", taken.labels.indices.tolist(), rows.tolist())


SELF_TESTS: dict[str, Test] = {
    "products on a shared set": lambda rng: _linear(rng, shared=True),
    "products on a set for each sample": lambda rng: _linear(rng, shared=False),
    "losses": _losses,
    "products of sparse matrices": _csr_product,
    "convolution": _convolution,
    "Adam": _adam,
    "hashes": _hashes,
    "hash tables": _tables,
    "active sets": _sets,
    "largest scores": _largest,
    "index over rows": _index,
    "rows of data": _rows,
    **INNER_TESTS,
    **CHOICE_TESTS,
    **ROW_TESTS,
    **DATA_TESTS,
}
