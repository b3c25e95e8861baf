"""Kernels and their references in torch, on equal inputs."""

import numpy as np
import pytest
import torch
from helpers.buckets import as_codes, contents, draw_codes
from helpers.grids import pairs
from helpers.matrices import make_csr, make_pattern
from helpers.products import SHAPES, draw_product

from slide import ops
from slide.active_set import ActiveSet, transpose
from slide.backend import backend
from slide.functional.losses import LOSSES
from slide.hashing import DWTA, HashTables, SimHash
from slide.hashing.families import flip_sets
from slide.ops import active_sets
from slide.ops.active_sets import (
    RankedIds,
    assemble_per_sample,
    stratified_log_weights,
    torch_assemble,
    torch_rank_all,
    torch_sketch_rows,
    torch_stratified_log_weights,
)
from slide.ops.adam import (
    AdamHyper,
    AdamRows,
    AdamTensors,
    adam_factored,
    adam_rows,
    torch_adam_rows,
)
from slide.ops.buckets import widened
from slide.ops.hashing import dwta_runners_kernel, pack_signs_kernel, probe_codes_kernel
from slide.ops.kernels.sketches import (
    CODES,
    LINE,
    NUMBERS,
    PRIOR,
    REST,
    SCALE,
    WIDTH,
    Rows,
    no_keys,
    rank_rows,
    rows_of,
    sketch_rows,
)
from slide.ops.products import total_rows
from slide.ops.random import random_below, torch_random_below
from slide.row_gradients import FactoredRowGradient
from slide.sparse import CSR, Pattern, as_csr

TYPES = [np.float32, np.float64]
every_type = pytest.mark.parametrize("dtype", TYPES)
BOTH = [False, True]
CPU = torch.device("cpu")
tensor = torch.from_numpy


def assert_near(found, expected, dtype=np.float64):
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pairs(key=[0, 7, 2**63 + 5, 2**64 - 1], bound=[1, 10, 2**31 - 1])
def test_random_numbers(key, bound):
    counters = np.concatenate([np.arange(50), 2**40 + np.arange(50)])
    expected = [random_below(np.uint64(key), c, bound) for c in counters]
    assert torch_random_below(key, tensor(counters), bound).tolist() == expected


class TestProducts:
    @pairs(shape=SHAPES, dtype=TYPES, has_bias=BOTH)
    def test_sampled_product(self, shape, dtype, has_bias):
        pattern, _, *factors = draw_product(shape, dtype, seed=0)
        vectors, rows, bias = map(tensor, factors)
        active = ActiveSet(len(rows), pattern.indices, pattern.indptr)
        own = bias if has_bias else None
        expected = ops.sampled_product.reference(active, vectors, rows, own)
        dense = torch.nn.functional.linear(vectors, rows, own)
        assert_near(expected, dense[pattern.entry_rows(), pattern.indices], dtype)
        for grouped in (False, True):
            found = ops.sampled_product.kernel(active, vectors, rows, own, grouped)
            assert_near(found, expected, dtype)

    @pairs(shape=SHAPES, dtype=TYPES, has_bias=BOTH)
    def test_weighted_sum(self, shape, dtype, has_bias):
        pattern, coefficients, _, rows, _ = draw_product(shape, dtype, seed=0)
        coefficients[::3] = 0
        bias = torch.arange(rows.shape[1]).to(tensor(rows).dtype) if has_bias else None
        words = *pattern, coefficients, tensor(rows), bias
        expected = ops.weighted_sum.reference(*words)
        dense = np.zeros((pattern.num_rows, len(rows)), dtype)
        np.add.at(dense, (pattern.entry_rows(), pattern.indices), coefficients)
        assert_near(expected, tensor(dense @ rows) + (bias if has_bias else 0), dtype)
        assert_near(ops.weighted_sum.kernel(*words), expected, dtype)

    @pairs(shape=SHAPES, dtype=TYPES)
    def test_row_gradient(self, shape, dtype):
        pattern, coefficients, vectors, rows, _ = draw_product(shape, dtype, seed=0)
        words = ActiveSet(len(rows), *pattern[::-1]), coefficients, tensor(vectors)
        found, total = ops.row_gradient.kernel(*words), ops.row_gradient.reference(*words)
        gradient = FactoredRowGradient(*found)
        assert gradient.ids.tolist() == total.ids[total.first].tolist()
        assert_near(gradient.values(), total.rows[total.first], dtype)
        dense = np.zeros(rows.shape, dtype)
        np.add.at(dense, pattern.indices, coefficients[:, None] * vectors[pattern.entry_rows()])
        assert_near(total.rows, tensor(dense[total.ids.numpy()]), dtype)


def test_bfloat16_rows_are_summed_up_in_float32():
    rows = torch.randn(5, 4).bfloat16()
    ids, coefficients = np.array([0, 3, 4], np.int32), torch.randn(3)
    active, vectors = ActiveSet(5, ids, np.array([0, 3])), torch.randn(1, 4)
    for way in ("kernel", "reference"):
        found = getattr(ops.weighted_sum, way)(active.indptr, ids, coefficients, rows)
        torch.testing.assert_close(found, (coefficients @ rows.float()[ids])[None])
        for grouped in (False, True):
            scores = getattr(ops.sampled_product, way)(active, vectors, rows, None, grouped)
            torch.testing.assert_close(scores, (vectors @ rows.float()[ids].T)[0])


def draw_losses(mode, weighted, dtype, seed, large=1):
    """Scores, some of them large, and sets with targets: of sizes and numbers at the limits."""
    rng, counts = np.random.default_rng(seed), [2, 0, 3, 1, 6]
    sizes = [8] * 5 if mode == "shared" else [6, 5, 9, 2, 7]
    positions = [rng.permutation(n)[:k].tolist() for n, k in zip(sizes, counts, strict=True)]
    targets, sets = Pattern.from_lists(positions), make_pattern(rng, sizes, 40)
    ids, indptr = (sets.indices[:8], None) if mode == "shared" else (sets.indices, sets.indptr)
    logs = rng.uniform(0, 3, len(ids)).astype(np.float32) if weighted else None
    for b, own in enumerate(positions if weighted else []):
        logs[np.array(own, int) + (0 if indptr is None else indptr[b])] = 0
    scores = 2 * rng.standard_normal((5, 8) if mode == "shared" else len(ids))
    scores.flat[::7] *= large
    return tensor(scores.astype(dtype)), ActiveSet(40, ids, indptr, targets, logs)


@pairs(name=LOSSES, mode=["per_sample", "shared"], weighted=BOTH, dtype=TYPES, seed=[0, 1, 2])
def test_losses(name, mode, weighted, dtype, seed):
    # Where exponentials overflow; squares of such numbers would lose the digits of others.
    large = 400 if dtype == np.float64 and name != "squared_hinge" else 5
    scores, active = draw_losses(mode, weighted, dtype, seed, large)
    weights = np.array([0.5, 2, 0, 1, 3]) if weighted else None
    words = active, LOSSES[name], 0.3, weights
    losses, gradient = ops.loss_rows.kernel(scores, *words)
    expected, wanted = ops.loss_rows.reference(scores.double(), *words)
    assert_near(losses, expected, dtype)
    assert_near(gradient.double(), wanted, dtype)
    samples = torch.tensor([3, 0])
    ops.clear_samples.kernel(gradient, active.indptr, samples)
    ops.clear_samples.reference(wanted, active.indptr, samples)
    assert_near(gradient.double(), wanted, dtype)
    assert (gradient == 0).any()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_scores_that_are_not_finite(name):
    """NaN stays NaN, and never becomes a number."""
    scores, active = draw_losses("shared", False, np.float64, 0)
    scores[0, 3] = torch.nan
    for way in ("kernel", "reference"):
        losses, gradient = getattr(ops.loss_rows, way)(scores, active, LOSSES[name], 1.0, None)
        assert losses.isnan().tolist() == [True] + 4 * [False]
        assert gradient[0].isnan().any()
        assert not gradient[1:].isnan().any()


@every_type
@pytest.mark.parametrize("size", [0, 1, 500])
def test_relu_dropout(dtype, size):
    x, grad = tensor(np.random.default_rng(0).standard_normal((2, size)).astype(dtype))
    x[:1], key = torch.nan, 2**63 + 12345
    out = ops.relu_dropout_forward.kernel(x, key, 0.3)
    expected = ops.relu_dropout_forward.reference(x, key, 0.3)
    torch.testing.assert_close(out, expected, equal_nan=True)
    assert size < 500 or 0 < out.count_nonzero() < (x > 0).sum()
    found = ops.relu_dropout_backward.kernel(out, grad, 0.3)
    torch.testing.assert_close(found, ops.relu_dropout_backward.reference(out, grad, 0.3))


@every_type
@pytest.mark.parametrize("pixels_first", [False, True])
def test_channels(pixels_first, dtype):
    layout = torch.channels_last if pixels_first else torch.contiguous_format
    images = tensor(np.random.default_rng(0).standard_normal((2, 7, 3, 4)).astype(dtype))
    images, channels = images.contiguous(memory_format=layout), torch.tensor([5, 0, 3])
    words = images[:, channels], channels, images.shape, pixels_first
    found, expected = ops.put_channels.kernel(*words), ops.put_channels.reference(*words)
    assert torch.equal(found, expected)
    assert found.stride() == expected.stride()


HYPER = AdamHyper(lr=0.03, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1, step=7)
# Numbers of rows, of touched rows and of columns.
ADAM_SHAPES = [(8, 5, 3), (8, 1, 1), (8, 0, 2), (8, 8, 4), (1, 1, 1), (1, 1, 3)]


def draw_adam(rng, num_rows, width, dtype, corrected, rowwise, hyper):
    """Random weight and moments, and steps of the past in which each row was touched, twice."""
    shape = (num_rows, width)
    last = rng.integers(0, hyper.step, num_rows if corrected else 0).astype(np.int32)
    state = AdamRows(
        rng.standard_normal(shape).astype(dtype),
        rng.standard_normal(shape if hyper.beta1 else (0, 0)).astype(dtype),
        rng.random((num_rows, 1) if rowwise else shape).astype(dtype),
        last,
    )
    weight, first, second, last = (tensor(array.copy()) for array in state)
    own = first if hyper.beta1 else None, second, last if corrected else None
    return state, AdamTensors(weight, *own)


def assert_states_equal(state, expected, dtype):
    for array, wanted in zip(state, expected, strict=True):
        if wanted is not None:
            assert_near(tensor(array), wanted, dtype)


VARIANTS = {
    "hyper": [HYPER, HYPER._replace(beta1=0.0)],
    "rowwise": BOTH,
    "corrected": BOTH,
    "dtype": TYPES,
}


class TestAdam:
    @pairs(shape=ADAM_SHAPES, repeated=BOTH, **VARIANTS)
    def test_rows(self, shape, dtype, corrected, rowwise, hyper, repeated):
        (num_rows, num_touched, width), rng = shape, np.random.default_rng(shape[1])
        state, twin = draw_adam(rng, num_rows, width, dtype, corrected, rowwise, hyper)
        ids = rng.permutation(num_rows)[:num_touched].astype(np.int32)
        grads = rng.standard_normal((num_touched, width)).astype(dtype)
        adam_rows(state, hyper, ids, grads, 2)
        summands = tensor(ids), tensor(grads)
        if repeated:  # Each row has a sum of two.
            half = torch.cat([tensor(grads) * 0.25, tensor(grads) * 0.75])
            summands = total_rows(torch.cat([tensor(ids)] * 2), half)[:2]
        torch_adam_rows(twin, hyper, *summands)
        assert_states_equal(state, twin, dtype)

    @pairs(lengths=[[3, 0, 5, 2], [1], [], [0, 0]], num_chunks=[1, 3, 16], width=[1, 3], **VARIANTS)
    def test_factors(self, lengths, num_chunks, width, dtype, corrected, rowwise, hyper):
        rng = np.random.default_rng(num_chunks)
        state, twin = draw_adam(rng, 8, width, dtype, corrected, rowwise, hyper)
        pattern = make_pattern(rng, lengths, 8)
        coefficients = rng.standard_normal(len(pattern.indices)).astype(dtype)
        vectors = rng.standard_normal((len(lengths), width)).astype(dtype)
        factors = transpose(pattern, 8), coefficients, vectors
        adam_factored(state, hyper, *factors, num_chunks)
        active = ActiveSet(8, *pattern[::-1])
        total = ops.row_gradient.reference(active, coefficients, tensor(vectors))
        torch_adam_rows(twin, hyper, total.ids, total.rows)
        assert_states_equal(state, twin, dtype)


def test_adam_of_all_rows():
    rng = np.random.default_rng(0)
    _, twin = draw_adam(rng, 8, 3, np.float64, True, False, HYPER)
    _, other = draw_adam(np.random.default_rng(0), 8, 3, np.float64, True, False, HYPER)
    grads = torch.randn(8, 3).double()
    torch_adam_rows(twin, HYPER, None, grads)
    torch_adam_rows(other, HYPER, torch.arange(8), grads)
    for one, two in zip(twin, other, strict=True):
        assert torch.equal(one, two)


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
    assemble_per_sample(*(labels, ranked, num_rows, np.uint64(key), marks, indptr, ids, known))
    weights = np.empty(len(ids), np.float32)
    stratified_log_weights(indptr, known, num_rows, weights)
    rows = np.full((count, 3), -1, np.int32)
    rows[np.arange(3) < counts[:, None]] = labels.indices
    best = np.where(np.arange(6) < taken[:, None], proposed, np.int32(-1))
    args = tensor(rows), tensor(best), tensor(sizes), 20, num_rows, key
    found, own_known = torch_assemble(*args)
    own_weights = torch_stratified_log_weights(own_known, tensor(sizes), 20, num_rows)
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
    ids, _ = torch_assemble(torch.zeros(3000, 1).int(), empty, sizes, 3, 8, key=5)
    assert (ids[:, 0] == 0).all()
    counts = torch.bincount(ids[:, 1:].flatten(), minlength=8)[1:]
    assert (counts - 6000 / 7).abs().max() < 5 * np.sqrt(6000 / 7)


@every_type
@pytest.mark.parametrize(("num_vectors", "k", "tables"), [(4, 3, 5), (1, 1, 1), (0, 2, 3)])
def test_signs(num_vectors, k, tables, dtype):
    rng = np.random.default_rng(0)
    projections = rng.integers(-2, 3, (num_vectors, tables * k)).astype(dtype)
    out = np.full((tables, num_vectors), -1, np.int32)
    pack_signs_kernel(projections, k, out)
    assert out.tolist() == ops.pack_signs.reference(tensor(projections), k).tolist()
    for (table, i), code in np.ndenumerate(out):
        bits = projections[i, table * k : (table + 1) * k] > 0
        assert code == sum(1 << j for j in np.flatnonzero(bits).tolist())


@every_type
@pytest.mark.parametrize("lengths", [[3, 0, 6], [0], [], [1]])
def test_projections_of_sparse_rows(lengths, dtype):
    rng = np.random.default_rng(len(lengths))
    x, directions = make_csr(rng, lengths, 7, dtype), rng.integers(-1, 2, (7, 6)).astype(np.int8)
    words = *x, tensor(directions)
    found, expected = (getattr(ops.project_sparse, way)(*words) for way in ("kernel", "reference"))
    assert_near(found, expected, dtype)


@pairs(num_vectors=[0, 1, 6], bin_size=[2, 8], dtype=TYPES)
def test_maxima(bin_size, num_vectors, dtype):
    """Few different values, so that ties occur: the first of equal coordinates counts."""
    family, rng = DWTA(19, 3, 4, bin_size=bin_size), np.random.default_rng(0)
    vectors = tensor(rng.integers(-3, 4, (num_vectors, 19)).astype(dtype))
    pattern = make_pattern(rng, [5, 0, 1, 19, 2][:num_vectors], 19)
    sparse = CSR(*pattern, rng.integers(-2, 3, len(pattern.indices)).astype(dtype))
    found = family.codes(vectors), family.sparse_codes(sparse)
    with backend("torch"):
        expected = family.codes(vectors), family.sparse_codes(sparse)
    for own, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, wanted)
    bits = bin_size.bit_length() - 1
    bins, costs = family.coordinates, np.empty((num_vectors, 12), dtype)
    flips = np.empty((num_vectors, 12), np.int32)
    dwta_runners_kernel(vectors.numpy(), bins, 3, bits, costs, flips)
    wanted = ops.dwta_runners.reference(vectors, bins, 3, bits)
    assert (costs.tolist(), flips.tolist()) == tuple(each.tolist() for each in wanted)


@pytest.mark.parametrize(("tables", "k", "count"), [(1, 1, 4), (3, 4, 5), (2, 6, 0)])
@pytest.mark.parametrize("probes", [1, 3, 12])
def test_codes_at_the_least_cost(tables, k, count, probes):
    rng = np.random.default_rng(k)
    codes = rng.integers(0, 4**k, (tables, count), dtype=np.int32)
    costs = rng.random((count, tables * k)).astype(np.float32)
    # Digits of two bits, of which a change may flip one or both.
    flips = rng.integers(1, 4, (count, tables * k)) << np.tile(2 * np.arange(k), tables)
    probes = min(probes, 2**k - 1)
    sets, out = flip_sets(k, probes), np.full(((1 + probes) * tables, count), -1, np.int32)
    probe_codes_kernel(codes, costs, flips.astype(np.int32), sets, out)
    words = codes, tensor(costs), flips.astype(np.int32), sets, probes
    assert out.tolist() == ops.probe_codes.reference(*words).tolist()


@pytest.mark.parametrize("wrong", [np.inf, np.nan, 0.0])
def test_buckets_are_distinct_whatever_the_costs(wrong):
    costs, flips = np.full((1, 4), wrong), np.array([[1, 2, 4, 8]], np.int32)
    out = np.empty((16, 1), np.int32)
    probe_codes_kernel(np.array([[5]], np.int32), costs, flips, flip_sets(4, 15), out)
    assert out[0, 0] == 5
    assert sorted(out[:, 0].tolist()) == list(range(16))


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


@pairs(family=[SimHash, DWTA], probes=[1, 4, 9], count=[0, 30])
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
    sketches[:, NUMBERS] = rng.integers(-1, 2, (num_rows, CODES))
    floats = sketches.view(np.float32)
    floats[:, SCALE], floats[:, PRIOR] = rng.choice([0, 0.5, 2], num_rows), rng.random(num_rows)
    sketches[30:60] = sketches[:30]
    floats[::10, PRIOR], floats[5, PRIOR], floats[6, SCALE] = -np.inf, np.nan, np.nan
    queries = rng.integers(-2, 3, (count, CODES)).astype(np.float32)
    scores = queries.astype(float) @ sketches[:, NUMBERS].T.astype(float)
    return queries, sketches, scores * floats[:, SCALE] + floats[:, PRIOR].astype(float)


@pairs(most=[1, 9, 90, 95], at_a_time=[1, 200, 2**24], count=[0, 1, 7])
def test_ranking_of_all_rows(monkeypatch, count, at_a_time, most):
    monkeypatch.setattr(active_sets, "_SCORES", at_a_time)
    rng = np.random.default_rng(most)
    queries, sketches, scores = draw_ranking(rng, count)
    labels = [rng.choice(90, n, False).tolist() for n in rng.integers(0, 20, count)]
    pairs = np.array([(b, row) for b, own in enumerate(labels) for row in own]).reshape(-1, 2)
    found = torch_rank_all(tensor(queries), tensor(sketches), tensor(pairs.astype(np.int64)), most)
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
    expected = torch_sketch_rows(tensor(projected), tensor(offset)).numpy()
    # A quotient that is nearly half a number may be rounded to either side.
    assert np.abs(found[:, NUMBERS].astype(int) - expected[:, NUMBERS]).max() <= 1
    np.testing.assert_allclose(*(x.view(np.float32)[:, [SCALE, PRIOR]] for x in (found, expected)))
    for each in found, expected:  # The rest is that of the own numbers.
        rest = np.linalg.norm(each[:, LINE:].astype(float), axis=1)
        np.testing.assert_allclose(each.view(np.float32)[:, REST], rest, rtol=1e-6)


def test_ranking_of_all_rows_as_in_the_head():
    queries, sketches, _ = draw_ranking(np.random.default_rng(0))
    labels = Pattern.from_lists([[b, 40] for b in range(7)])
    pairs = np.stack([labels.entry_rows(), labels.indices], 1).astype(np.int64)
    keys, floats = no_keys((7, 12)), sketches.view(np.float32)
    products = queries.astype(np.int32) @ sketches[:, NUMBERS].T.astype(np.int32)
    head = Rows(np.arange(90, dtype=np.int32), *floats[:, [SCALE, PRIOR]].T.copy())
    rank_rows(products, np.ones(7, np.float32), head, labels, keys)
    found = torch_rank_all(tensor(queries), tensor(sketches), tensor(pairs), 12)
    np.testing.assert_array_equal(found.numpy(), rows_of(keys))
