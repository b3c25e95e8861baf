"""Each function of `slide.plain` against the kernel of the same name."""

import numpy as np
import pytest
import torch
from helpers.buckets import as_codes, contents, draw_codes
from helpers.products import SHAPES, draw_product

from slide.backend import backend
from slide.hashing import DWTA, HashTables, SimHash
from slide.kernels import adam as adam_kernels
from slide.kernels import assemble_sets as set_kernels
from slide.kernels import pattern_products as product_kernels
from slide.kernels.adam import AdamHyper, AdamRows
from slide.kernels.random import random_below as kernel_below
from slide.kernels.sketches import CODES, PRIOR, SCALE, WIDTH, Head, rank_buckets, sketch_rows
from slide.kernels.votes import RankedIds
from slide.plain import sketches as plain_sketches
from slide.plain.adam import AdamTensors, adam_rows
from slide.plain.assemble_sets import assemble, stratified_log_weights
from slide.plain.buckets import widened
from slide.plain.pattern_products import (
    row_gradient,
    sampled_product,
    samples_of,
    total_rows,
    weighted_sum,
)
from slide.plain.random import random_below
from slide.plain.sketches import rank_all
from slide.sparse import Pattern, as_csr

every_shape = pytest.mark.parametrize("shape", SHAPES)
CPU = torch.device("cpu")
tensor = torch.from_numpy


@pytest.mark.parametrize("key", [0, 7, 2**63 + 5, 2**64 - 1])
@pytest.mark.parametrize("bound", [1, 10, 2**31 - 1])
def test_random_numbers(key, bound):
    counters = np.concatenate([np.arange(50), 2**40 + np.arange(50)])
    expected = [kernel_below(np.uint64(key), c, bound) for c in counters]
    assert random_below(key, tensor(counters), bound).tolist() == expected


@every_shape
@pytest.mark.parametrize("has_bias", [False, True])
def test_products(shape, has_bias):
    pattern, coefficients, vectors, rows, bias = draw_product(shape, np.float64, 3)
    indptr, ids = map(tensor, pattern)
    samples = samples_of(indptr.diff(), len(ids))
    bias = bias if has_bias else np.empty(0)
    out = np.empty(len(ids))
    product_kernels.sampled_product(*pattern, vectors, rows, bias, out)
    own = tensor(bias) if has_bias else None
    found = sampled_product(samples, ids, tensor(vectors), tensor(rows), own)
    np.testing.assert_allclose(found.numpy(), out)
    out = np.zeros((pattern.num_rows, rows.shape[1]))
    product_kernels.weighted_sum(*pattern, coefficients, rows, out)
    found = weighted_sum(indptr, ids, tensor(coefficients), tensor(rows))
    np.testing.assert_allclose(found.numpy(), out, atol=1e-12)
    total = row_gradient(samples, ids, tensor(coefficients), tensor(vectors))
    expected = np.zeros_like(rows)
    for p, b in enumerate(samples.tolist()):
        expected[pattern.indices[p]] += coefficients[p] * vectors[b]
    assert sorted(total.ids[total.first].tolist()) == sorted(set(pattern.indices.tolist()))
    np.testing.assert_allclose(total.rows.numpy(), expected[total.ids.numpy()], atol=1e-12)


def test_bfloat16_rows_are_summed_up_in_float32():
    rows = torch.randn(5, 4).bfloat16()
    ids, coefficients = torch.tensor([0, 3, 4], dtype=torch.int32), torch.randn(3)
    found = weighted_sum(torch.tensor([0, 3]), ids, coefficients, rows)
    torch.testing.assert_close(found, (coefficients @ rows.float()[ids])[None])


@pytest.mark.parametrize("beta1", [0.0, 0.8])
@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_adam(rowwise, corrected, repeated, beta1):
    rng, count = np.random.default_rng(0), 9
    hyper = AdamHyper(lr=0.03, beta1=beta1, beta2=0.95, eps=1e-6, weight_decay=0.1, step=7)
    weight = rng.standard_normal((count, 3))
    first = rng.standard_normal((count, 3) if beta1 else (0, 0))
    second = rng.random((count, 1 if rowwise else 3))
    last = rng.integers(0, 7, count if corrected else 0).astype(np.int32)
    ids, grads = np.array([5, 2, 7], np.int32), rng.standard_normal((3, 3))
    own = AdamTensors(*(tensor(each.copy()) for each in (weight, first, second)), None)
    own = own._replace(last_step=tensor(last.copy()) if corrected else None)
    own = own if beta1 else own._replace(first=None)
    adam_kernels.adam_rows(AdamRows(weight, first, second, last), hyper, ids, grads, 2)
    summands = tensor(ids), tensor(grads)
    if repeated:  # Row 5 is a sum of two.
        parts = torch.cat([tensor(grads[:1]) * 0.25, tensor(grads), tensor(grads[1:2])])
        parts[1] *= 0.75
        parts[4] *= 0
        summands = total_rows(torch.tensor([5, 5, 2, 7, 2]), parts)[:2]
    adam_rows(own, hyper, *summands)
    for found, expected in zip(own[:3], (weight, first, second), strict=True):
        if found is not None:
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    if corrected:
        assert own.last_step.tolist() == last.tolist()


def draw_labels(rng, count, num_rows):
    return [rng.permutation(num_rows)[:n].astype(np.int32) for n in rng.integers(0, 4, count)]


@pytest.mark.parametrize("num_rows", [1000, 40])
def test_sets_of_each_sample(num_rows):
    rng, count, key = np.random.default_rng(1), 5, 2**63 + 11
    labels = Pattern.from_lists(draw_labels(rng, count, num_rows))
    counts = np.diff(labels.indptr)
    proposed = np.stack([rng.permutation(num_rows)[:6] for _ in range(count)]).astype(np.int32)
    taken = np.array([6, 0, 3, 6, 1])
    sizes = np.array([20, 16, 20, 20, 4])
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    ids, known = np.empty(indptr[-1], np.int32), np.empty(count, np.int64)
    marks = np.zeros((2, num_rows), np.uint8)
    ranked = RankedIds(proposed, taken)
    set_kernels.assemble_per_sample(
        *(labels, ranked, num_rows, np.uint64(key), marks, indptr, ids, known)
    )
    weights = np.empty(len(ids), np.float32)
    set_kernels.stratified_log_weights(indptr, known, num_rows, weights)
    rows = np.full((count, 3), -1, np.int32)
    rows[np.arange(3) < counts[:, None]] = labels.indices
    best = np.where(np.arange(6) < taken[:, None], proposed, np.int32(-1))
    args = tensor(rows), tensor(best), tensor(sizes), 20, num_rows, key
    found, own_known = assemble(*args)
    own_weights = stratified_log_weights(own_known, tensor(sizes), 20, num_rows)
    assert own_known.tolist() == known.tolist()
    for b in range(count):
        part, expected = found[b, : sizes[b]].tolist(), ids[indptr[b] : indptr[b + 1]].tolist()
        assert part[: known[b]] == expected[: known[b]]
        assert len(set(part)) == len(part)
        assert 0 <= min(part) <= max(part) < num_rows
        if num_rows == 1000:  # Else the fill is drawn in another way.
            assert part == expected
        own = own_weights[b, : sizes[b]].numpy()
        np.testing.assert_allclose(own, weights[indptr[b] : indptr[b + 1]], rtol=1e-6)


def test_a_fill_of_nearly_all_rows_is_uniform():
    empty, sizes = torch.empty(3000, 0, dtype=torch.int32), torch.full((3000,), 3)
    ids, _ = assemble(torch.zeros(3000, 1).int(), empty, sizes, 3, 8, key=5)
    assert (ids[:, 0] == 0).all()
    counts = torch.bincount(ids[:, 1:].flatten(), minlength=8)[1:]
    assert (counts - 6000 / 7).abs().max() < 5 * np.sqrt(6000 / 7)


@pytest.mark.parametrize("family", [SimHash, DWTA])
def test_codes(family):
    hashed = family(20, hashes_per_table=3, num_tables=5)
    vectors = torch.randn(30, 20, dtype=torch.float64)
    rng = np.random.default_rng(0)
    matrix = np.where(rng.random((30, 20)) < 0.2, rng.standard_normal((30, 20)), 0)
    sparse = as_csr(matrix)
    expected = hashed.codes(vectors), hashed.sparse_codes(sparse)
    with backend("torch"):
        found = hashed.codes(vectors), hashed.sparse_codes(sparse)
    for own, wanted in zip(found, expected, strict=True):
        assert own.dtype == np.int32
        np.testing.assert_array_equal(own, wanted)


@pytest.mark.parametrize("family", [SimHash, DWTA])
@pytest.mark.parametrize("probes", [1, 4, 9])
@pytest.mark.parametrize("count", [0, 30])
def test_codes_of_further_buckets(family, probes, count):
    hashed = family(20, hashes_per_table=3, num_tables=5)
    vectors = torch.randn(count, 20, dtype=torch.float64)
    expected = hashed.probe_codes(vectors, probes)
    with backend("torch"):
        found = hashed.probe_codes(vectors, probes)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


def draw_tables(policy, capacity=4, seed=0):
    codes = as_codes(draw_codes(seed))
    tables, twin = (HashTables(3, 5, capacity, policy, seed) for _ in range(2))
    tables.build(codes)
    with backend("torch"):
        twin.build(codes)
    return codes, tables, twin


@pytest.mark.parametrize("policy", ["fifo", "reservoir"])
def test_tables(policy):
    codes, tables, twin = draw_tables(policy)
    assert contents(twin) == contents(tables)
    queries = codes[:, :7]
    with backend("torch"):
        found = twin.query(queries)
    assert found.indices.tolist() == tables.query(queries).indices.tolist()
    # From one layout to the other, and back by the state.
    tables.load_state_dict(twin.state_dict())
    assert contents(tables) == contents(twin)
    again = HashTables(3, 5, 4, policy)
    again.build(codes)
    again.buckets = widened(again.buckets, 4, CPU)
    again.insert(as_codes([50]), codes[:, :1])
    assert any(50 in bucket for table in contents(again) for bucket in table)


def draw_ranking(rng, count=7, num_rows=90):
    """Queries, sketches, and float64 scores; of two in three rows they are those of others, too."""
    sketches = np.zeros((num_rows, WIDTH), np.int8)
    sketches[:, :CODES] = rng.integers(-1, 2, (num_rows, CODES))
    floats = sketches.view(np.float32)
    floats[:, SCALE], floats[:, PRIOR] = rng.choice([0, 0.5, 2], num_rows), rng.random(num_rows)
    sketches[30:60] = sketches[:30]
    floats[::10, PRIOR], floats[5, PRIOR], floats[6, SCALE] = -np.inf, np.nan, np.nan
    queries = rng.integers(-2, 3, (count, CODES)).astype(np.float32)
    scores = queries.astype(float) @ sketches[:, :CODES].T.astype(float)
    return queries, sketches, scores * floats[:, SCALE] + floats[:, PRIOR].astype(float)


@pytest.mark.parametrize("most", [1, 9, 90, 95])
@pytest.mark.parametrize("at_a_time", [1, 200, 2**24])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_ranking_of_all_rows(monkeypatch, count, at_a_time, most):
    monkeypatch.setattr(plain_sketches, "_SCORES", at_a_time)
    rng = np.random.default_rng(most)
    queries, sketches, scores = draw_ranking(rng, count)
    labels = [rng.choice(90, n, False).tolist() for n in rng.integers(0, 20, count)]
    pairs = np.array([(b, row) for b, own in enumerate(labels) for row in own]).reshape(-1, 2)
    found = rank_all(tensor(queries), tensor(sketches), tensor(pairs.astype(np.int64)), most)
    assert (found.dtype, found.shape) == (torch.int32, (count, most))
    for b, own in enumerate(labels):
        scores[b, own] = -np.inf
        known = np.nan_to_num(scores[b], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        best = [i for i in np.argsort(-known, kind="stable") if known[i] > -np.inf][:most]
        assert found[b].tolist() == best + [-1] * (most - len(best))


def test_sketches_of_rows():
    rng = np.random.default_rng(0)
    projected, offset = (rng.standard_normal(s).astype(np.float32) for s in ((50, 21), 21))
    projected[3, 2], projected[4, 20], projected[5] = np.nan, np.inf, offset
    found = np.full((50, WIDTH), 7, np.int8)
    sketch_rows(projected, offset, (found, found.view(np.float32)))
    expected = plain_sketches.sketch_rows(tensor(projected), tensor(offset)).numpy()
    # A quotient that is nearly half a number may be rounded to either side.
    assert np.abs(found[:, :CODES].astype(int) - expected[:, :CODES]).max() <= 1
    np.testing.assert_allclose(*(x.view(np.float32)[:, [SCALE, PRIOR]] for x in (found, expected)))


def test_ranking_of_all_rows_as_in_the_head():
    queries, sketches, _ = draw_ranking(np.random.default_rng(0))
    labels = Pattern.from_lists([[b, 40] for b in range(7)])
    pairs = np.stack([labels.entry_rows(), labels.indices], 1).astype(np.int64)
    tables, ids = HashTables(1, 1, bucket_capacity=None), np.empty((7, 12), np.int32)
    padded, floats = np.pad(queries, ((0, 0), (0, WIDTH - CODES))), sketches.view(np.float32)
    products = queries @ sketches[:, :CODES].T.astype(np.float32)
    head = Head(np.arange(90, dtype=np.int32), *floats[:, [SCALE, PRIOR]].T.copy())
    nowhere = np.zeros(0, np.int64), np.zeros((0, 7), np.int32), tables.arrays()
    rank_buckets(products, head, padded, *nowhere, (sketches, floats), labels, 0, ids)
    found = rank_all(tensor(queries), tensor(sketches), tensor(pairs), 12)
    np.testing.assert_array_equal(found.numpy(), ids)
