"""Rows that all inputs scan: the best of them, against float64; rows that come and leave."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_pattern

from slide.ops.sketches import FIRST, LINE, PRIOR, SCALE, WIDTH, rows_of, sketches_of
from slide.sampling import head
from slide.sampling.head import Head, bound_of
from slide.sparse import Pattern

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.kernels_only]
N, K, B = 700, 20, 9


def draw(seed=0, rows=N, width=LINE):
    """Sketches of rows, and inputs, in K directions."""
    generator = torch.Generator().manual_seed(seed)
    projected = torch.randn(rows, K + 1, generator=generator)
    projected *= torch.linspace(0.2, 2, rows)[torch.randperm(rows, generator=generator), None]
    sketches = sketches_of(projected, torch.zeros(K + 1), width)
    return sketches, torch.randn(B, K, generator=generator)


def naive_scores(queries, sketches):
    """Products of inputs that are rounded to 8 bits and sketches ``(B, N)``, in float64."""
    floats = sketches.view(torch.float32).double()
    factors = queries.abs().amax(1, keepdim=True) / 127
    rounded = ((queries / factors).round() * factors).double()
    numbers = sketches[:, FIRST : FIRST + K].double()
    return (rounded @ numbers.T * floats[:, SCALE] + floats[:, PRIOR]).numpy()


def naive_best(scores, ids, most, left_out):
    """The rows of each input with the largest scores, the best first; -1 after the last one."""
    out = np.full((len(scores), most), -1)
    for b, own in enumerate(np.split(left_out.indices, left_out.indptr[1:-1])):
        free = [i for i in ids if i not in own and scores[b, i] > -np.inf]
        best = sorted(free, key=lambda i: -scores[b, i])[:most]
        out[b, : len(best)] = best
    return out


def nobody(count=B):
    return Pattern(np.zeros(count + 1, np.int64), np.empty(0, np.int32))


def best_of(one, queries, left_out, most):
    return rows_of(one.best(queries, left_out, most))


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("width", [LINE, WIDTH])
@pytest.mark.parametrize("most", [1, 12, 300])
def test_the_best_rows(width, most, int8, monkeypatch):
    """Without those left out, and fewer than asked for if the head has fewer rows."""
    monkeypatch.setattr(head, "has_int8", lambda: int8)
    sketches, queries = draw(width=width)
    ids = np.sort(np.random.default_rng(0).permutation(N)[:250]).astype(np.int32)
    left_out = make_pattern(np.random.default_rng(1), [0, 3, 90, 1, 0, 0, 400, N, 2], N)
    found = best_of(Head(ids, sketches), queries, left_out, most)
    assert found.shape == (B, most)
    assert found.dtype == np.int32
    expected = naive_best(naive_scores(queries, sketches), ids.tolist(), most, left_out)
    np.testing.assert_array_equal(found, expected)


def test_rows_without_a_score_are_no_rows():
    sketches, queries = draw()
    sketches.view(torch.float32)[::2, PRIOR] = -torch.inf
    found = best_of(Head(np.arange(N, dtype=np.int32), sketches), queries, nobody(), N)
    assert (np.sort(found)[:, N // 2 :] % 2 == 1).all()
    assert (found >= 0).sum() == B * N // 2


@pytest.mark.parametrize("size", [0, 1])
def test_a_head_of_no_rows_and_of_one(size):
    sketches, queries = draw()
    one = Head(np.arange(5, 5 + size, dtype=np.int32), sketches)
    assert len(one) == size
    assert best_of(one, queries, nobody(), 3).tolist() == [[5] * size + [-1] * (3 - size)] * B


def test_inputs_of_zeros_and_others_without_numbers_rank_by_prior():
    sketches, queries = draw()
    queries[0], queries[1, 3] = 0, torch.nan
    found = best_of(Head(np.arange(N, dtype=np.int32), sketches), queries, nobody(), 5)
    priors = sketches.view(torch.float32)[:, PRIOR]
    assert found[0].tolist() == priors.argsort(descending=True)[:5].tolist()
    assert ((found[1] >= -1) & (found[1] < N)).all()


@pytest.mark.not_as_python
class TestLargeHeads:
    """A part of the rows chooses a score below which no row is looked at closely."""

    rows = 20_000

    def test_find_what_an_exact_ranking_finds(self):
        sketches, queries = draw(rows=self.rows)
        ids = np.arange(self.rows, dtype=np.int32)
        found = best_of(Head(ids, sketches), queries, nobody(), 20)
        scores = naive_scores(queries, sketches)
        np.testing.assert_array_equal(found, np.argsort(-scores, axis=1)[:, :20])

    def test_a_score_that_too_few_rows_have_is_no_bound(self):
        """The rows by which it is chosen may be the best of all, for some inputs."""
        generator = torch.Generator().manual_seed(1)
        projected = torch.randn(self.rows, K + 1, generator=generator)
        step = self.rows // head._SAMPLE
        queries = torch.randn(B, K, generator=generator)
        projected[::step, :-1] = 40 * queries[0]
        projected[::step, -1] = torch.linspace(0, 9, len(projected[::step]))
        sketches = sketches_of(projected, torch.zeros(K + 1), LINE)
        found = best_of(Head(np.arange(self.rows, dtype=np.int32), sketches), queries, nobody(), 20)
        scores = naive_scores(queries, sketches)
        for b in range(B):
            best = np.sort(scores[b])[::-1][:20]
            np.testing.assert_allclose(scores[b][found[b]], best, rtol=1e-6)
            assert len(set(found[b].tolist())) == 20


class TestMoves:
    def same(self, one, ids, sketches, queries):
        """Whether a head is that of these rows, and finds what a new one would."""
        np.testing.assert_array_equal(one.ids, np.sort(ids))
        assert len(one) == len(ids)
        fresh = Head(np.sort(ids).astype(np.int32), sketches)
        found, expected = (best_of(each, queries, nobody(), 15) for each in (one, fresh))
        np.testing.assert_array_equal(found, expected)

    def test_rows_come_stay_and_leave(self):
        sketches, queries = draw()
        rng = np.random.default_rng(0)
        ids = set(range(0, N, 3))
        one = Head(np.array(sorted(ids), np.int32), sketches)
        for _ in range(12):
            rows = np.sort(rng.permutation(N)[: rng.integers(0, 120)]).astype(np.int32)
            inside = rng.random(len(rows)) < rng.random()
            sketches[rows] = draw(seed=int(rng.integers(1000)))[0][rows]
            one.move(rows, sketches[rows], inside)
            ids = (ids | set(rows[inside].tolist())) - set(rows[~inside].tolist())
            self.same(one, sorted(ids), sketches, queries)

    @pytest.mark.parametrize("inside", [True, False])
    def test_all_rows_at_once(self, inside):
        sketches, queries = draw()
        one = Head(np.arange(3, dtype=np.int32), sketches)
        one.move(np.arange(N, dtype=np.int32), sketches, np.full(N, inside))
        self.same(one, list(range(N)) if inside else [], sketches, queries)

    def test_a_row_that_stays_has_its_new_sketch(self):
        sketches, queries = draw()
        one = Head(np.arange(N, dtype=np.int32), sketches)
        raised = sketches[7:8].clone()
        raised.view(torch.float32)[:, PRIOR] = 1000
        one.move(np.array([7], np.int32), raised, np.array([True]))
        assert (best_of(one, queries, nobody(), 1) == 7).all()


def test_bounds_have_as_many_rows_above():
    scores = np.random.default_rng(0).permutation(50).astype(np.float32)
    for most in (1, 7, 49, 50):
        assert (scores > bound_of(scores, most)).sum() == most
    assert bound_of(scores, 51) == bound_of(scores, 1000) == -np.inf
    equal = np.ones(9, np.float32)
    assert (equal > bound_of(equal, 4)).sum() <= 4


def test_scores_of_no_rows_do_not_count_in_bounds():
    scores = np.array([3, -np.inf, 1, np.nan, 2, -np.inf], np.float32)
    assert bound_of(scores, 2) == 1
    assert bound_of(scores, 5) == -np.inf
    assert bound_of(np.empty(0, np.float32), 3) == -np.inf
