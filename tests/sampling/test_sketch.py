"""The scan of sketches: what it finds, which rows are in the head, how it follows, states."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from helpers.inner_products import COMPILED
from helpers.samplers import all_modes, assert_goes_on, sketch_sampler
from torch.nn import functional as F

import slide
from slide.backend import backend, uses_reference
from slide.hashing.projection import DIRECTIONS
from slide.ops.sketches import FIRST, PRIOR, SCALE, WIDTH
from slide.sampling import SketchProposer, head, ranked, sketch
from slide.search import exact_top_k

pytestmark = pytest.mark.usefixtures("one_thread")
N, D, B = 20_000 if COMPILED else 1_500, 48, 64
kernels_only = pytest.mark.skipif(uses_reference(), reason="plain torch ranks all rows")


def layer(seed=0, outputs=N):
    """Weights, biases and inputs as a trained layer has: few directions, long and short rows."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator)
    mixing = draw(12, D) * torch.linspace(2, 0.3, 12)[:, None]
    weight = draw(outputs, 12) @ mixing * draw(outputs, 1).exp() / 8 + 0.05 * draw(outputs, D)
    inputs = (draw(1024, 12) @ mixing + 3).relu()
    return weight, 0.3 * draw(outputs), inputs


def nobody(queries):
    return slide.Pattern(np.zeros(len(queries) + 1, np.int64), np.empty(0, np.int32))


def ready(outputs=N, **options):
    """A layer, inputs, and a proposer that has seen them."""
    weight, bias, inputs = layer(outputs=outputs)
    proposer = SketchProposer(D, outputs, **options)
    proposer.observe(inputs)
    proposer.rebuild(weight, bias)
    return weight, bias, inputs, proposer


def note(proposer, rows):
    """Tell the proposer of a step with these rows, every other one a label or a candidate."""
    rows, labels = np.asarray(rows, np.int32), np.arange(0, len(rows), 2, dtype=np.int32)
    targets = slide.Pattern(np.array([0, len(labels)]), labels)
    proposer.changed.propose(rows[1::2])
    indptr = np.array([0, len(rows)])
    proposer.touched(slide.ActiveSet(proposer.out_features, rows, indptr, targets))


def rows_of(proposer, queries):
    """The candidates of each query, the best first."""
    found = proposer.candidates(queries)
    return np.split(found.indices, found.indptr[1:-1])


def recall(proposer, weight, bias, queries, k=10):
    """Share of the k largest products that are among the candidates."""
    best, found = exact_top_k(queries, weight, bias, k)[1].numpy(), rows_of(proposer, queries)
    return np.mean([np.isin(row, ids).mean() for row, ids in zip(best, found, strict=True)])


@pytest.mark.compiled_only
def test_finds_what_exact_search_finds():
    weight, bias, inputs, proposer = ready()
    assert recall(proposer, weight, bias, inputs[:B]) > 0.97
    assert proposer.rows_scanned == N
    assert proposer.statistics() == {"look_up/rows_seen": N}


@kernels_only
@pytest.mark.compiled_only
@pytest.mark.parametrize("best_in_sample", [False, True])
def test_a_score_that_too_few_rows_have_is_no_bound(best_in_sample, monkeypatch):
    """The best rows of half of the inputs may be those by which the bound is chosen."""
    monkeypatch.setattr(head, "_SAMPLE", 256)
    weight, bias, inputs, proposer = ready()
    if best_in_sample:
        sampled = proposer._head._ids[: N : N // 256].astype(np.int64)
        weight[sampled] = 40 * F.normalize(inputs[0] - inputs.mean(0), dim=0)
        bias[sampled] += torch.arange(len(sampled)) / 100
        for rows in np.array_split(sampled, 8):
            note(proposer, rows)
        proposer.refresh(weight, bias)
    limited = rows_of(proposer, inputs[:B])
    monkeypatch.setattr(head, "_SAMPLE", N)
    np.testing.assert_array_equal(limited, rows_of(proposer, inputs[:B]))


def test_sketches_hold_rows_and_priors():
    weight, bias, inputs, proposer = ready(outputs=200)
    assert proposer.sketches.shape == (200, WIDTH)
    floats, projection = proposer.sketches.view(torch.float32), proposer.projection
    k = projection.directions.shape[1]
    rows = proposer.sketches[:, FIRST : FIRST + k].float() * floats[:, SCALE, None]
    scores = projection.inputs(inputs[:20], k) @ rows.T + floats[:, PRIOR]
    expected = inputs[:20] @ weight.T + bias
    # All scores of an input may differ by one number.
    error = (scores - expected) - (scores - expected).mean(1, keepdim=True)
    assert error.square().mean().sqrt() < 0.01 * expected.std()


@kernels_only
class TestFollowing:
    """Rows that a step changed are where their new sketches say, in the next look-up."""

    @pytest.mark.not_as_python
    def test_noted_rows_are_found_in_the_next_step(self):
        weight, bias, inputs, proposer = ready()
        changed = np.array([5, 77, N - 1])
        weight[changed] = 4000 * F.normalize(inputs[:3] - inputs.mean(0), dim=1)
        assert 5 not in rows_of(proposer, inputs[:1])[0][:1]
        note(proposer, changed)
        assert not proposer.refresh(weight, bias)
        assert [ids[0] for ids in rows_of(proposer, inputs[:3])] == changed.tolist()
        fresh = proposer._sketched(weight, bias, changed.astype(np.int32))
        assert torch.equal(proposer.sketches[torch.from_numpy(changed)], fresh)

    def test_rows_leave_the_head_and_others_enter_it(self, monkeypatch):
        monkeypatch.setattr(sketch, "HEAD", N // 4)
        weight, bias, _, proposer = ready()
        ids, rng = proposer._head.ids, np.random.default_rng(0)
        others = np.setdiff1d(np.arange(N), ids)
        few = N // 200
        gone, new = (np.sort(rng.choice(each, few, False)) for each in (ids, others))
        weight[gone], bias[gone] = 0, -1000
        bias[new] = 1000
        note(proposer, np.concatenate([gone, new]))
        proposer.refresh(weight, bias)
        expected = np.union1d(np.setdiff1d(ids, gone), new)
        np.testing.assert_array_equal(proposer._head.ids, expected)
        # Each row kept its own sketch, also the rows that took the places of others.
        size, floats = len(expected), proposer.sketches.view(torch.float32)
        rows = proposer._head._ids[:size]
        np.testing.assert_array_equal(proposer._head._sketches[:size], proposer.sketches[rows])
        np.testing.assert_array_equal(proposer._head._scales[:size], floats[rows, SCALE])
        np.testing.assert_array_equal(proposer._head._priors[:size], floats[rows, PRIOR])

    @pytest.mark.not_as_python
    def test_the_head_is_chosen_anew_when_it_has_grown(self, monkeypatch):
        monkeypatch.setattr(sketch, "HEAD", N // 4)
        weight, bias, _, proposer = ready()
        bound = proposer.bound.clone()
        many = np.setdiff1d(np.arange(N), proposer._head.ids)[: N // 16]
        bias[many] += 1000
        note(proposer, many)
        proposer.refresh(weight, bias)
        assert proposer.bound > bound
        assert len(proposer._head) == N // 4
        assert np.isin(many, proposer._head.ids).all()

    @pytest.mark.not_as_python
    def test_noted_rows_wait_for_a_step(self):
        weight, bias, _, proposer = ready(outputs=5000)
        note(proposer, [3])
        proposer.refresh(weight, bias)
        before = proposer.sketches[3].clone()
        weight[3] += 1
        proposer.refresh(weight, bias)
        assert not torch.equal(before, proposer.sketches[3])

    def test_a_rebuild_takes_new_directions_and_all_rows(self):
        weight, bias, inputs, proposer = ready(outputs=300)
        before = proposer.projection.directions.clone()
        proposer.observe(inputs[:, torch.randperm(D)])
        weight[9] *= -1
        proposer.refresh(weight, bias)
        kept = proposer.sketches[9].clone()
        proposer.rebuild(weight, bias)
        assert not torch.equal(proposer.projection.directions, before)
        assert not torch.equal(proposer.sketches[9], kept)


def test_rows_without_numbers_are_no_candidates():
    weight, bias, inputs = layer(outputs=300)
    weight[3], bias[5], bias[8] = torch.nan, -torch.inf, torch.inf
    proposer = SketchProposer(D, 300)
    proposer.observe(inputs)
    proposer.rebuild(weight, bias)
    found = proposer.candidates(inputs[:5]).indices
    assert not np.isin([3, 5, 8], found).any()
    assert len(np.unique(found)) > 100


@kernels_only
def test_the_head_is_not_all_rows(monkeypatch):
    """The rows that may have the largest scores are looked at, and no others."""
    monkeypatch.setattr(sketch, "HEAD", N // 4)
    weight, bias, inputs, proposer = ready()
    assert recall(proposer, weight, bias, inputs[:B]) > 0.6
    assert proposer.rows_scanned == N // 4
    assert proposer.description() == f"a scan of {N // 4:,} of {N:,} sketches"
    every = proposer._sketched(weight, bias, np.arange(N, dtype=np.int32))
    best = np.argsort(-proposer._largest_scores(every))[: N // 4]
    assert np.isin(best, proposer._head.ids).mean() > 0.98


@pytest.mark.compiled_only
@pytest.mark.parametrize(
    ("outputs", "rows"), [(2**20, 2**16), (2**22, 2**17), (2**24, 2**18), (2**16, 2**16)]
)
def test_the_head_of_a_large_layer_grows_with_the_root_of_its_rows(outputs, rows):
    proposer = SketchProposer(D, outputs)
    assert proposer.description() == f"a scan of {rows:,} of {outputs:,} sketches"
    assert proposer.sizes() == {"directions": D}


@kernels_only
@pytest.mark.not_as_python
@pytest.mark.parametrize("directions", [DIRECTIONS, 8])
def test_few_directions_find_the_head(directions, monkeypatch):
    """Few rows get a sketch, and nearly all of the head are among them."""
    monkeypatch.setattr(sketch, "HEAD", 2048)
    monkeypatch.setattr(ranked, "Projection", partial(ranked.Projection, directions=directions))
    weight, bias, _, proposer = ready()
    assert proposer.projection.directions.shape[1] == min(D, directions)
    sketched = proposer.sketches.view(torch.float32)[:, PRIOR].isfinite()
    assert sketched.sum() == round(1.25 * 2048)
    every = proposer._sketched(weight, bias, np.arange(N, dtype=np.int32))
    best = np.argsort(-proposer._largest_scores(every))[:2048]
    assert len(proposer._head.ids) == 2048
    assert np.isin(best, proposer._head.ids).mean() > 0.98


@kernels_only
@pytest.mark.not_as_python
def test_a_device_that_ranks_all_rows_has_sketches_of_all(monkeypatch):
    monkeypatch.setattr(sketch, "HEAD", 2048)
    weight, bias, inputs, proposer = ready()
    with backend("torch"):
        assert proposer.refresh(weight, bias)
        assert proposer.sketches.view(torch.float32)[:, PRIOR].isfinite().all()
        assert not proposer.refresh(weight, bias)
        assert recall(proposer, weight, bias, inputs[:B]) > 0.97
        assert proposer.rows_scanned == N


@kernels_only
@pytest.mark.not_as_python
def test_kernels_and_torch_find_the_same():
    """One by one, and without the labels."""
    *_, inputs, proposer = ready(outputs=3000)
    labels = slide.Pattern.from_lists([[b, b + 100] for b in range(B)])
    best = proposer.find(inputs[:B], labels, 20)
    with backend("torch"):
        again = proposer.find(inputs[:B], labels, 20)
    # Sums in another order move a few rows whose scores are nearly equal.
    assert (best == again).float().mean() > 0.99
    owned = np.stack([labels.indices[0::2], labels.indices[1::2]], 1)
    assert not (best.numpy()[:, :, None] == owned[:, None, :]).any()


def test_directions_are_found_from_random_ones_as_if_they_were_the_first():
    """A rebuild before the first inputs, as a step of training has it, makes no difference."""
    weight, bias, inputs, usual = ready(outputs=300)
    late = SketchProposer(D, 300)
    late.rebuild(weight, bias)
    late.observe(inputs)
    late.rebuild(weight, bias)
    assert torch.equal(late.projection.directions, usual.projection.directions)


class TestState:
    @pytest.mark.parametrize("outputs", [300, N])
    def test_gives_the_same_candidates(self, outputs, monkeypatch):
        monkeypatch.setattr(sketch, "HEAD", N // 2)
        weight, bias, inputs, proposer = ready(outputs=outputs, seed=3)
        note(proposer, range(40))
        weight[:40] += 1
        proposer.refresh(weight, bias)
        note(proposer, range(40))
        twin = SketchProposer(D, outputs, seed=3)
        twin.load_state_dict(proposer.state_dict())
        weight[:40] -= 2
        for each in (proposer, twin):
            each.refresh(weight, bias)
        first, second = (
            each.propose(inputs[:9], nobody(inputs[:9]), np.full(9, 12), np.uint64(1))
            for each in (proposer, twin)
        )
        np.testing.assert_array_equal(first.ids, second.ids)
        assert torch.equal(proposer.sketches, twin.sketches)
        np.testing.assert_array_equal(proposer._head.ids, twin._head.ids)

    @pytest.mark.parametrize("outputs", [300, 70_000 if COMPILED else 400])
    def test_before_the_first_rebuild(self, outputs):
        """The head of a large layer is a part of its rows, and of none there are none."""
        proposer, twin = (SketchProposer(D, outputs) for _ in range(2))
        twin.load_state_dict(proposer.state_dict())
        assert not twin.has_index

    @kernels_only
    def test_without_sketches_leaves_no_candidates_behind(self):
        _, _, inputs, proposer = ready(outputs=300)
        proposer.load_state_dict(SketchProposer(D, 300).state_dict())
        assert not proposer.candidates(inputs[:3]).indices.size

    def test_of_another_kind_is_refused(self):
        state = ready(outputs=300)[-1].state_dict()
        with pytest.raises(ValueError, match="seed was 0 where this state was saved, and is 4"):
            SketchProposer(D, 300, seed=4).load_state_dict(state)
        state["sketches"] = state["sketches"][:, :64]
        with pytest.raises(ValueError, match="sketches"):
            SketchProposer(D, 300).load_state_dict(state)

    def test_copies_and_other_sizes(self):
        weight, bias, inputs, proposer = ready(outputs=300)
        twin = pickle.loads(pickle.dumps(copy.deepcopy(proposer)))
        assert twin._rows is None, "a copy does not hold the weight"
        twin.resize(200)
        assert not twin.has_index
        twin.rebuild(weight[:200], bias[:200])
        assert twin.candidates(inputs[:2]).indices.max() < 200
        assert proposer.candidates(inputs[:2]).indices.max() >= 200


@pytest.mark.not_as_python
@all_modes
def test_a_run_goes_on_bit_for_bit(mode):
    """In the middle of an interval between rebuilds, while the weights change."""
    make = partial(sketch_sampler, 16, 400, active=40, mode=mode, best=3)
    sampler, other = assert_goes_on(make, pause=13, end=40)
    assert other.rebuilds == sampler.rebuilds >= 2
