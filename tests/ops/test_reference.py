"""Kernels and their references in torch, on equal inputs."""

import functools

import numpy as np
import pytest
import torch
from helpers.buckets import as_codes, contents, draw_codes
from helpers.grids import pairs
from helpers.matrices import make_pattern
from helpers.operations import COMPARISONS, equal, near, random_csr

from slide import ops
from slide.active_set import ActiveSet, transpose
from slide.backend import backend
from slide.hashing import DWTA, HashTables, SimHash
from slide.hashing.families import flip_sets
from slide.ops.active_sets import count_distinct, torch_assemble
from slide.ops.base_scorers import relate_candidates
from slide.ops.hashing import dwta_runners_kernel, pack_signs_kernel, probe_codes_kernel
from slide.ops.label_clusters import halve_nodes, sum_rows
from slide.ops.ragged import RowRoom, gather_entries
from slide.ops.sketches import (
    CODES,
    FIRST,
    LINE,
    NUMBERS,
    PRIOR,
    SCALE,
    WIDTH,
    sketches_of,
    torch_rank_all,
)
from slide.sparse import CSR, Pattern, as_csr

TYPES = [np.float32, np.float64]
tensor = torch.from_numpy


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


def test_a_fill_of_nearly_all_rows_is_uniform():
    empty, sizes = torch.empty(3000, 0, dtype=torch.int32), torch.full((3000,), 3)
    ids, _ = torch_assemble(torch.zeros(3000, 1).int(), empty, sizes, 3, 8, key=5, group=1)
    assert (ids[:, 0] == 0).all()
    counts = torch.bincount(ids[:, 1:].flatten(), minlength=8)[1:]
    assert (counts - 6000 / 7).abs().max() < 5 * np.sqrt(6000 / 7)


@pytest.mark.parametrize(
    ("num_vectors", "k", "tables", "dtype"), [(4, 3, 5, np.float32), (0, 2, 3, np.float64)]
)
def test_signs(num_vectors, k, tables, dtype):
    rng = np.random.default_rng(0)
    projections = rng.integers(-2, 3, (num_vectors, tables * k)).astype(dtype)
    out = np.full((tables, num_vectors), -1, np.int32)
    pack_signs_kernel(projections, k, out)
    assert out.tolist() == ops.pack_signs.reference(tensor(projections), k).tolist()
    for (table, i), code in np.ndenumerate(out):
        bits = projections[i, table * k : (table + 1) * k] > 0
        assert code == sum(1 << j for j in np.flatnonzero(bits).tolist())


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


@pytest.mark.parametrize("wrong", [np.inf, np.nan, 0.0])
def test_buckets_are_distinct_whatever_the_costs(wrong):
    costs, flips = np.full((1, 4), wrong), np.array([[1, 2, 4, 8]], np.int32)
    out = np.empty((16, 1), np.int32)
    probe_codes_kernel(np.array([[5]], np.int32), costs, flips, flip_sets(4, 15), out)
    assert out[0, 0] == 5
    assert sorted(out[:, 0].tolist()) == list(range(16))


@pairs(family=[SimHash, DWTA], probes=[1, 4, 9], count=[0, 30])
def test_codes(family, probes, count):
    hashed, rng = family(20, hashes_per_table=3, num_tables=5), np.random.default_rng(0)
    vectors = torch.randn(count, 20, dtype=torch.float64)
    sparse = as_csr(rng.standard_normal((count, 20)) * (rng.random((count, 20)) < 0.2))
    both = []
    for way in ("kernels", "torch"):
        with backend(way):
            codes = hashed.codes(vectors), hashed.sparse_codes(sparse)
            both.append([*codes, hashed.probe_codes(vectors, probes)])
    for own, wanted in zip(*both, strict=True):
        assert own.dtype == np.int32
        np.testing.assert_array_equal(own, wanted)


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
    tables.load_state_dict(twin.state_dict())
    for each, way in ((tables, "kernels"), (twin, "torch")):
        with backend(way):
            each.insert(as_codes([50]), codes[:, :1])
    assert contents(tables) == contents(twin)
    assert any(50 in bucket for table in contents(twin) for bucket in table)


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
    monkeypatch.setattr("slide.ops.sketches._SCORES", at_a_time)
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


@pytest.mark.parametrize("width", [LINE, WIDTH])
def test_sketches_of_rows(width):
    rng = np.random.default_rng(0)
    projected, offset = (rng.standard_normal(s).astype(np.float32) for s in ((50, 21), 21))
    projected[3, 2], projected[4, 20], projected[5] = np.nan, np.inf, offset
    given = tensor(projected), tensor(offset), width
    found, expected = sketches_of.kernel(*given), sketches_of.reference(*given)
    # A quotient that is nearly half a number may be rounded to either side.
    assert (found[:, FIRST:].int() - expected[:, FIRST:].int()).abs().max() <= 1
    scales = (each.view(torch.float32)[:, [SCALE, PRIOR]] for each in (found, expected))
    torch.testing.assert_close(*scales)


_ROWS, _WIDTH, _COLUMNS, _LABELS, _OUTPUTS = 12, 12, 30, 9, 40


def _counts(rng):
    """Of all samples, and of each one."""
    ids = rng.integers(0, _OUTPUTS, (_ROWS, 5)).astype(np.int32)
    labels, order = Pattern.from_padded(ids), rng.permutation(_ROWS)
    for samples, groups in ((_ROWS, ids.reshape(1, -1)), (1, ids[order])):
        bounds, found = np.arange(0, _ROWS + 1, samples), np.empty(len(groups), np.int64)
        count_distinct(labels, order, bounds, np.zeros(_OUTPUTS, np.uint8), found)
        equal("numbers of distinct ids", found.tolist(), [len(set(x)) for x in groups.tolist()])


def _entries(rng):
    rows, _ = random_csr(rng, _ROWS, _WIDTH)
    values = rows.values
    positions = rng.permutation(len(values)).astype(np.int32)
    found = np.empty_like(values)
    gather_entries(rows.values, positions, found)
    equal("entries in another order", found.tolist(), rows.values[positions].tolist())
    ids, starts, entries, samples = transpose(Pattern(rows.indptr, rows.indices), _WIDTH)
    order = np.argsort(rows.indices, kind="stable")
    equal("grouped entries", entries.tolist(), order.tolist())
    equal("their samples", samples.tolist(), rows.entry_rows()[order].tolist())
    columns, counts = np.unique(rows.indices, return_counts=True)
    equal("the groups", ids.tolist(), columns.tolist())
    equal("their bounds", starts.tolist(), [0, *counts.cumsum().tolist()])


def _relations(rng):
    """Some labels of each row are candidates."""
    rows, x = random_csr(rng, _ROWS, _COLUMNS)
    lists, dense = random_csr(rng, _COLUMNS, _LABELS)
    lists, dense = lists._replace(values=np.abs(lists.values)), dense.abs()
    unseen, shares = (rng.random(n).astype(np.float32) + 0.1 for n in (_COLUMNS, _LABELS))
    ids = np.where(rng.random((_ROWS, _LABELS)) < 0.3, -1, np.arange(_LABELS))
    starts = np.append(0, np.cumsum((ids >= 0).sum(1)))
    found, scratch = np.empty((starts[-1], 3), np.float32), np.zeros((2, _LABELS), np.int32)
    relate_candidates(rows, lists, unseen, shares, ids, starts, scratch, found)
    equal("scratch that is not zero", int(scratch.any()), 0)
    own = torch.zeros_like(x).index_put_(
        (
            torch.from_numpy(np.repeat(np.arange(_ROWS), np.diff(rows.indptr))),
            torch.from_numpy(rows.indices).long(),
        ),
        torch.tensor(1.0),
    )
    shared = torch.from_numpy(shares)
    factors = dense / shared + torch.from_numpy(unseen)[:, None]
    bayes = shared.log() + own @ factors.log()
    best = (own[:, :, None] * dense).amax(1)
    expected = torch.stack([x @ dense, best, bayes], 2)[torch.from_numpy(ids >= 0)]
    near("relations", found, expected)


def _label_clusters(rng):
    """Sums of rows at length 1, and two groups of rows without a common column."""
    x, dense = random_csr(rng, _ROWS, _WIDTH)
    lists, member = random_csr(rng, 6, _ROWS)
    room = np.zeros(6 * _WIDTH, np.int32), np.zeros(6 * _WIDTH, np.float32)
    found = RowRoom(_WIDTH * np.arange(6), np.zeros(6, np.int64), *room)
    scratch = np.zeros((2, 2, _WIDTH), np.float32)[:, 0]  # Not contiguous, as where it is called.
    sum_rows(lists, x, scratch, found)
    sums = np.zeros((6, _WIDTH), np.float32)
    for n, (begin, count) in enumerate(zip(found.starts, found.counts, strict=True)):
        own = slice(begin, begin + count)
        sums[n, room[0][own]] = room[1][own]
    expected = torch.nn.functional.normalize((member != 0).float() @ dense, eps=1e-9)
    near("sums of rows", sums, expected)
    half, width = _ROWS // 2, _WIDTH // 2
    columns = np.arange(width) + width * np.repeat([0, 1], half)[:, None]
    values = rng.random(columns.size).astype(np.float32) + 1
    rows = CSR(width * np.arange(_ROWS + 1), columns.ravel().astype(np.int32), values)
    members = rng.permutation(_ROWS)
    members[0], members[np.flatnonzero(members == half)[0]] = half, members[0]
    halve_nodes(rows, members, np.array([0, _ROWS]), 8, np.zeros((1, 2, _WIDTH), np.float32))
    halves = {tuple(np.sort(each).tolist()) for each in (members[:half], members[half:])}
    equal("halves of a node", halves, {tuple(range(half)), tuple(range(half, _ROWS))})


TESTS = COMPARISONS | {
    "counts of ids": _counts,
    "entries of rows": _entries,
    "candidates and features": _relations,
    "clusters of labels": _label_clusters,
}


@pytest.mark.kernels_only
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", TESTS)
def test_kernels_equal_their_references_and_formulas(name):
    rng = np.random.default_rng(1)
    torch.manual_seed(1)
    for _ in range(3):
        TESTS[name](rng)


@pytest.mark.kernels_only
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ops.OPERATIONS)
def test_wrong_operations_are_noticed(monkeypatch, name):
    operation = ops.OPERATIONS[name]
    whole = operation.kernel

    @functools.wraps(whole)
    def wrong(*args, **kwargs):
        found = whole(*args, **kwargs)
        first = found[1] if isinstance(found, tuple) else found
        if first is None:  # It has written into its first argument.
            first = args[0]
        first += np.asarray(first[:0]).dtype.type(1)
        return found

    monkeypatch.setattr(operation, "kernel", wrong)
    assert any(_fails(compare) for compare in COMPARISONS.values())


def _fails(compare):
    try:
        compare(np.random.default_rng(0))
    except Exception:  # Of what a wrong value does, an error of a later step is one.
        return True
    return False
