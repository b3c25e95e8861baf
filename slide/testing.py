"""Checks of samplers and hash families that a user writes; an AssertionError names the rule."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from slide.active_set import ActiveSet, check_active
from slide.hashing import HashFamily
from slide.hashing.families import check_codes, check_family
from slide.sampling import Sampler
from slide.sparse import CSR, Pattern, row_bounds


def check_sampler(
    make: Callable[[], Sampler],
    in_features: int,
    sparse_inputs: bool = False,
) -> None:
    """Raise unless samplers do what `slide.Sampler` says; a proposer is checked in its sampler.

    The check compares ids and targets in training and prediction, with and without labels. Equal
    samplers, also one that loaded the state of another, must choose equal sets.

    Args:
        make: returns a new sampler; each call returns an equal one.
        in_features: D, length of the inputs.
        sparse_inputs: whether to check inputs in CSR form, too.

    Example:
        >>> import slide
        >>> from slide.testing import check_sampler
        >>> check_sampler(lambda: slide.ActiveSampler(16, 200, active=50), in_features=16)
    """
    one, other = make(), make()
    n = one.out_features
    _demand(isinstance(n, int) and n > 0, f"out_features must be a number above 0, not {n!r}")
    rng = np.random.default_rng(0)
    weight = torch.nn.Parameter(_normal(rng, n, in_features))
    bias = torch.nn.Parameter(_normal(rng, n))
    kinds = (False, True) if sparse_inputs else (False,)
    cases = list(itertools.product(kinds, (True, False), (True, False), (7, 1)))
    for case in range(2 * len(cases)):
        sparse, trains, labelled, count = cases[case % len(cases)]
        draw = _csr if sparse else lambda *shape: torch.relu(_normal(*shape))
        x = draw(rng, count, in_features)
        labels = _labels(rng, count, n) if labelled else None
        inputs = x if trains else None
        if case == len(cases):
            # The second half compares with a new sampler that loaded the state.
            state, other = one.state_dict(), make()
            other.load_state_dict(_copied(state))
        found = []
        for sampler in (one, other):
            sampler.update(weight, bias, inputs)
            found.append(sampler.select(x, labels))
        _check_set(found[0], n, count, labels)
        late = " after load_state_dict(state_dict())" if case >= len(cases) else ""
        for name in ("ids", "indptr", "targets", "log_weights"):
            own, others = (getattr(active, name) for active in found)
            _demand(_equal(own, others), f"equal samplers choose different {name}{late}")


def _equal(one: Any, other: Any) -> bool:
    """Whether two arrays, two tuples of arrays, or two times None are equal."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(map(_equal, one, other))
    return one is other if one is None or other is None else np.array_equal(one, other)


def _check_set(active: ActiveSet, n: int, num_samples: int, labels: Pattern | None) -> None:
    _demand(active.out_features == n, f"a set of {active.out_features} outputs, not {n}")
    ids, targets, weights = active.ids, active.targets, active.log_weights
    _demand(ids.dtype == np.int32 and ids.ndim == 1, f"ids must be int32 (nnz,), not {ids.dtype}")
    _demand(((ids >= 0) & (ids < n)).all(), f"ids must lie in [0, {n})")
    _demand(weights is None or np.isfinite(weights).all(), "log_weights must be finite")
    if labels is not None and targets is None:
        raise AssertionError("labels were given, but the set has no targets")
    _follow(check_active, active, num_samples, n, targets is not None)
    for b in range(num_samples if active.indptr is not None else 1):
        own = active.row(b)
        _demand(len(np.unique(own)) == len(own), "ids must be distinct within a set")
    if labels is None or targets is None:
        return
    _demand(np.array_equal(targets.indptr, labels.indptr), "targets must have the labels' indptr")
    for b in range(num_samples):
        part = slice(labels.indptr[b], labels.indptr[b + 1])
        positions, own = targets.indices[part], active.row(b)
        inside = ((positions >= 0) & (positions < len(own))).all()
        right = inside and np.array_equal(np.sort(own[positions]), np.sort(labels.indices[part]))
        _demand(right, f"the targets of sample {b} are not at its labels")


def check_hash_family(
    make: Callable[[], HashFamily],
    sparse_inputs: bool = True,
) -> None:
    """Raise unless hash families do what `slide.hashing.families.HashFamily` says.

    Codes of a row must not depend on other rows or earlier calls, ``redraw`` must change them, and
    near vectors must collide in more tables than others.

    Args:
        make: returns a new family; each call returns an equal one.
        sparse_inputs: whether to check ``sparse_codes``, too. For vectors without zeros they must
            agree with ``codes``.

    Example:
        >>> import slide
        >>> from slide.testing import check_hash_family
        >>> check_hash_family(lambda: slide.SimHash(16, hashes_per_table=4, num_tables=16))
    """
    one, other = make(), make()
    _follow(check_family, one)
    rng, width = np.random.default_rng(0), one.in_features
    vectors = _normal(rng, 64, width)
    for dtype in (torch.float32, torch.float64):
        codes = one.codes(vectors.to(dtype))
        _check_codes(codes, one, 64)
        _demand(np.array_equal(codes, one.codes(vectors.to(dtype))), "codes change between calls")
        _demand(one.codes(vectors[:0].to(dtype)).shape == (one.num_tables, 0), "codes of no rows")
    codes = one.codes(vectors)
    _demand(np.array_equal(codes, other.codes(vectors)), "equal families give different codes")
    some = np.array([5, 3, 40])
    few = one.codes(vectors[some])
    _demand(np.array_equal(few, codes[:, some]), "a row's codes depend on the other rows")
    if sparse_inputs:
        indptr = np.arange(65, dtype=np.int64) * width
        indices = np.tile(np.arange(width, dtype=np.int32), 64)
        sparse = one.sparse_codes(CSR(indptr, indices, vectors.numpy().reshape(-1)))
        _check_codes(sparse, one, 64)
        same = float((sparse == codes).mean())
        # Sums in another order may change a few signs.
        _demand(same > 0.95, f"sparse and dense codes agree in {same:.0%} only")
    one.redraw(1)
    drawn = one.codes(vectors)
    _check_codes(drawn, one, 64)
    _demand(not np.array_equal(drawn, codes), "redraw changes nothing")
    other.redraw(1)
    _demand(np.array_equal(drawn, other.codes(vectors)), "redraw depends on more than its seed")
    near = one.codes(vectors + 0.05 * _normal(rng, 64, width))
    close, apart = float((near == drawn).mean()), float((drawn[:, :32] == drawn[:, 32:]).mean())
    # At an angle of about 3 degrees.
    _demand(close >= 0.5, f"near vectors collide in {close:.0%} of the tables only")
    _demand(close > apart, f"near vectors collide in {close:.0%}, any others in {apart:.0%}")
    if hasattr(one, "probe_codes"):
        _check_probes(one, vectors, drawn)


def _check_codes(codes: np.ndarray, family: HashFamily, count: int) -> None:
    _follow(check_codes, codes, [family.num_tables], count, family.num_buckets)


def _check_probes(family: Any, vectors: torch.Tensor, codes: np.ndarray) -> None:
    """Codes of further buckets come after the codes of the rows, and are distinct in a table."""
    probed, count = family.probe_codes(vectors, 2), codes.shape[1]
    # One other value for each elementary hash gives 2^K buckets; only few hashes limit that.
    most = min(3, family.num_buckets, 2 ** getattr(family, "hashes_per_table", 2))
    shape = most, family.num_tables, count
    expected = (most * family.num_tables, count)
    _demand(probed.shape == expected, f"probe_codes must give {expected}, not {probed.shape}")
    _demand(np.array_equal(probed[: len(codes)], codes), "probe_codes must begin with the codes")
    within = ((probed >= 0) & (probed < family.num_buckets)).all()
    _demand(within, f"codes must lie in [0, {family.num_buckets})")
    by_table = np.sort(probed.reshape(shape), 0)
    _demand((np.diff(by_table, axis=0) > 0).all(), "probe_codes gives a bucket of a table twice")


def _follow(check: Callable[..., None], *arguments: Any) -> None:
    """Raise AssertionError where a check of the library raises an error."""
    try:
        check(*arguments)
    except (TypeError, ValueError) as error:
        raise AssertionError(str(error)) from error


def _demand(holds: Any, reason: str) -> None:
    if not holds:
        raise AssertionError(reason)


def _normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape, np.float32))


def _csr(rng: np.random.Generator, num_rows: int, num_columns: int) -> CSR:
    """A CSR matrix with about half of its entries, at random positions."""
    mask = rng.random((num_rows, num_columns)) < 0.5
    columns = np.nonzero(mask)[1].astype(np.int32)
    return CSR(row_bounds(mask.sum(1)), columns, rng.standard_normal(len(columns), np.float32))


def _labels(rng: np.random.Generator, num_rows: int, num_outputs: int) -> Pattern:
    """Zero, one, two or three labels in each row."""
    counts = [min(b % 4, num_outputs) for b in range(1, num_rows + 1)]
    return Pattern.from_lists([rng.permutation(num_outputs)[:n].tolist() for n in counts])


def _copied(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else state
