"""Hash tables in principal directions: what they find, how they follow, states."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from helpers.inner_products import COMPILED
from helpers.samplers import lsh_sampler
from torch.nn import functional as F

import slide
from slide.backend import backend, uses_reference
from slide.hashing import DWTA, SimHash
from slide.ops.sketches import FIRST, PRIOR, SCALE, WIDTH
from slide.sampling import LSHProposer, lsh_proposer
from slide.search import exact_top_k

pytestmark = pytest.mark.usefixtures("one_thread")
# Where there are tables, they hold all rows but those of the head.
N, D, B = 20_000 if COMPILED else 1_500, 48, 64
FAMILIES = {"simhash": SimHash, "dwta": partial(DWTA, bin_size=8)}
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


def fitted(weight, bias, inputs, **options):
    """A proposer with tables, unless its head holds all rows."""
    proposer = LSHProposer(D, len(weight), **{"num_tables": 4} | options)
    proposer.observe(inputs)
    proposer.rebuild(weight, bias)
    return proposer


def ready(outputs=N, **options):
    """A layer, inputs, and a proposer that has seen them."""
    weight, bias, inputs = layer(outputs=outputs)
    return weight, bias, inputs, fitted(weight, bias, inputs, **options)


def note(proposer, rows):
    """Tell the proposer of a step with these rows, every other one a label or a candidate."""
    rows, labels = np.asarray(rows, np.int32), np.arange(0, len(rows), 2, dtype=np.int32)
    targets = slide.Pattern(np.array([0, len(labels)]), labels)
    proposer._found = rows[1::2]
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
@pytest.mark.parametrize("family", FAMILIES)
def test_finds_what_exact_search_finds(family, threads):
    threads(0)
    weight, bias, inputs, proposer = ready(family=FAMILIES[family])
    assert recall(proposer, weight, bias, inputs[:B]) > 0.8
    if not uses_reference():
        assert proposer.looked < 0.3 * N


@kernels_only  # In torch it takes 17 seconds, and finds the same (tests/ops/test_reference.py).
@pytest.mark.compiled_only
@pytest.mark.parametrize("family", FAMILIES)
def test_finds_in_a_trained_network(family):
    """A small network is trained with it, on samples of which each is near its label."""
    torch.manual_seed(0)
    outputs, features = 6000, 10
    centres = F.normalize(torch.randn(outputs, features), dim=1)
    frequency = 1 / torch.arange(10, 10 + outputs)
    hidden = torch.nn.Linear(features, D)
    options = {"active": 64, "mode": "per_sample", "weighting": "none", "num_tables": 4}
    sampler = lsh_sampler(D, outputs, family=FAMILIES[family], **options)
    output, loss = slide.SampledLinear(D, outputs, sampler), slide.ActiveLoss("squared_hinge")
    optimizers = [
        torch.optim.Adam(hidden.parameters(), 0.01),
        slide.RowSparseAdam(output.parameters(), 0.01),
    ]
    for _ in range(60):
        labels = frequency.multinomial(128, replacement=True)
        x = hidden(centres[labels] + 0.05 * torch.randn(128, features)).relu()
        targets = slide.Pattern.from_lists(labels[:, None].tolist())
        output.loss(x, targets, loss)[0].backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        queries = hidden(centres[frequency.multinomial(200)]).relu()
    output.sampler.update(output.weight, output.bias, None)
    weight, bias = output.weight.detach(), output.bias.detach()
    assert recall(output.sampler.proposer, weight, bias, queries) > 0.6


@kernels_only
@pytest.mark.compiled_only
@pytest.mark.parametrize("best_in_sample", [False, True])
def test_a_score_that_too_few_rows_have_is_no_bound(best_in_sample, monkeypatch):
    """The best rows of half of the inputs may be those by which the bound is chosen."""
    monkeypatch.setattr(lsh_proposer, "_SAMPLE", 256)
    weight, bias, inputs = layer()
    proposer = LSHProposer(D, N)
    proposer.observe(inputs)
    proposer.rebuild(weight, bias)
    if best_in_sample:
        sampled = proposer._head._ids[: N : N // 256].astype(np.int64)
        weight[sampled] = 40 * F.normalize(inputs[0] - inputs.mean(0), dim=0)
        bias[sampled] += torch.arange(len(sampled)) / 100
        for rows in np.array_split(sampled, 8):
            note(proposer, rows)
        proposer.refresh(weight, bias)
    limited = rows_of(proposer, inputs[:B])
    monkeypatch.setattr(lsh_proposer, "_SAMPLE", N)
    np.testing.assert_array_equal(limited, rows_of(proposer, inputs[:B]))


@pytest.mark.compiled_only
def test_candidates_are_scored_exactly_without_labels():
    weight, bias, inputs, proposer = ready(outputs=4000, best=5)
    best = exact_top_k(inputs[:8], weight, bias, 6)[1].numpy()
    labels = slide.Pattern.from_lists([[row[0]] for row in best.tolist()])
    found = proposer.propose(inputs[:8], labels, np.full(8, 9), np.uint64(0))
    ids = found.ids if not isinstance(found, torch.Tensor) else found.numpy()
    np.testing.assert_array_equal(ids[:, :5], best[:, 1:])
    shared = proposer.propose_shared(inputs[:8], labels, 20, np.uint64(0))
    assert len(shared) == 20
    assert set(best[:, 1]) - set(best[:, 0]) <= set(shared.tolist())
    assert not set(best[:, 0]) & set(shared.tolist())


def test_sketches_hold_rows_and_priors():
    weight, bias, inputs, proposer = ready(outputs=200)
    assert proposer.sketches.shape == (200, WIDTH)
    floats = proposer.sketches.view(torch.float32)
    k = proposer.directions.shape[1]
    rows = proposer.sketches[:, FIRST : FIRST + k].float() * floats[:, SCALE, None]
    mean = inputs.mean(0)
    x = inputs[:20] - mean
    scores = x @ proposer.directions @ rows.T + floats[:, PRIOR]
    expected = inputs[:20] @ weight.T + bias
    # All scores of an input may differ by one number.
    error = (scores - expected) - (scores - expected).mean(1, keepdim=True)
    assert error.square().mean().sqrt() < 0.01 * expected.std()


@kernels_only
class TestFollowing:
    """Rows that a step changed are where their new sketches say."""

    @pytest.mark.not_as_python
    def test_noted_rows_move_in_the_next_refresh(self):
        weight, bias, inputs, proposer = ready()
        changed = np.array([5, 77, N - 1])
        weight[changed] = 4000 * F.normalize(inputs[:3] - inputs.mean(0), dim=1)
        note(proposer, changed)
        proposer.refresh(weight, bias)
        fresh = copy.deepcopy(proposer)
        fresh._build()
        np.testing.assert_array_equal(proposer.codes, fresh.codes)
        np.testing.assert_array_equal(proposer._head.ids, fresh._head.ids)
        assert [ids[0] for ids in rows_of(proposer, inputs[:3])] == changed.tolist()

    def test_rows_leave_the_head_and_others_enter_it(self):
        weight, bias, _, proposer = ready()
        head, rng = proposer._head.ids, np.random.default_rng(0)
        others = np.setdiff1d(np.arange(N), head)
        gone, new = np.sort(rng.choice(head, 200, False)), np.sort(rng.choice(others, 150, False))
        weight[gone], bias[gone] = 0, -1000
        bias[new] = 1000
        note(proposer, np.concatenate([gone, new]))
        proposer.refresh(weight, bias)
        expected = np.union1d(np.setdiff1d(head, gone), new)
        np.testing.assert_array_equal(proposer._head.ids, expected)
        np.testing.assert_array_equal(np.flatnonzero(proposer.codes[0] == 0), expected)
        # Each row kept its own sketch, also the rows that took the places of others.
        size, floats = len(expected), proposer.sketches.view(torch.float32)
        rows = proposer._head._ids[:size]
        np.testing.assert_array_equal(proposer._head._sketches[:size], proposer.sketches[rows])
        np.testing.assert_array_equal(proposer._head._scales[:size], floats[rows, SCALE])
        np.testing.assert_array_equal(proposer._head._priors[:size], floats[rows, PRIOR])

    @pytest.mark.not_as_python
    def test_noted_rows_wait_for_a_step(self):
        weight, bias, _, proposer = ready(outputs=5000)
        note(proposer, [3])
        proposer.refresh(weight, bias)
        before = proposer.sketches[3].clone()
        weight[3] += 1
        proposer.refresh(weight, bias)
        assert not torch.equal(before, proposer.sketches[3])

    @pytest.mark.not_as_python
    def test_all_rows_after_many_steps(self, monkeypatch):
        """With the directions of recent inputs, and rows that no step has noted."""
        monkeypatch.setattr(lsh_proposer, "DIRECTIONS", 8)
        weight, bias, _, proposer = ready(outputs=5000)
        proposer.rebuilds = 2  # Not after the first steps.
        rows = np.zeros(5000 * lsh_proposer._OUTPUTS_PER_ROW // lsh_proposer._STEPS)
        for step in range(2 * lsh_proposer._STEPS):
            proposer.observe(torch.randn(64, D, generator=torch.Generator().manual_seed(step)))
            note(proposer, rows)
            if step == 0:
                weight[9] *= -1
            found = proposer.refresh(weight, bias)
            assert found == (step % lsh_proposer._STEPS == lsh_proposer._STEPS - 1)
        torch.testing.assert_close(proposer.mean_input, proposer._recent.mean(0))
        fresh = proposer._sketched(weight, bias, np.array([9], np.int32))
        # Products in bfloat16 depend on the number of rows.
        assert (proposer.sketches[9, FIRST:].int() - fresh[0, FIRST:].int()).abs().max() <= 4

    @pytest.mark.not_as_python
    def test_all_rows_after_the_first_steps(self):
        weight, bias, inputs, proposer = ready(outputs=300)
        rebuilt = []
        for step in range(1, 30):
            proposer.observe(inputs[:1])
            note(proposer, [3])
            if step == 5:
                proposer.load_state_dict(proposer.state_dict())
            if proposer.refresh(weight, bias):
                rebuilt.append(step)
        assert rebuilt == [8]

    @pytest.mark.not_as_python
    def test_ranges_are_chosen_anew_when_the_head_has_doubled(self):
        weight, bias, _, proposer = ready()
        most = proposer._ends[0]
        weight[: 3 * most] *= 30
        note(proposer, np.arange(3 * most))
        proposer.refresh(weight, bias)
        assert proposer.tables.arrays().seen[0, 0] <= most


def test_rows_without_numbers_are_no_candidates():
    weight, bias, inputs = layer(outputs=300)
    weight[3], bias[5], bias[8] = torch.nan, -torch.inf, torch.inf
    proposer = fitted(weight, bias, inputs)
    assert not np.isin([3, 5, 8], proposer.candidates(inputs[:5]).indices).any()


def test_inputs_that_are_no_numbers_are_not_kept():
    *_, inputs, proposer = ready(outputs=300)
    spoilt = inputs[:4].clone()
    spoilt[1, 2], spoilt[3, 0] = torch.nan, torch.inf
    before = len(proposer._recent)
    proposer.observe(spoilt)
    proposer.observe(spoilt[1:2])
    assert proposer._recent.isfinite().all()
    assert len(proposer._recent) == min(1024, before + 2)


@kernels_only
@pytest.mark.parametrize("tables", [None, 4])
def test_the_head_is_not_all_rows(tables, monkeypatch):
    """Without tables the rows that may have the largest scores are looked at, and no others."""
    monkeypatch.setattr(lsh_proposer, "FRONT", N // 4)
    weight, bias, inputs, proposer = ready(num_tables=tables)
    assert recall(proposer, weight, bias, inputs[:B]) > (0.6 if tables is None else 0.8)
    assert (proposer.looked == N // 4) == (tables is None)
    assert ("tables/largest_bucket" in proposer.statistics()) == (tables is not None)


@pytest.mark.parametrize(("outputs", "head"), [(2**20, 2**16), (2**22, 2**17), (2**24, 2**18)])
def test_the_head_of_a_large_layer_grows_with_the_root_of_its_rows(outputs, head):
    proposer = LSHProposer(D, outputs)
    assert proposer._ends == [head]
    assert proposer.sizes()["num_tables"] == 0
    assert not proposer.families


@kernels_only
@pytest.mark.not_as_python
@pytest.mark.parametrize("directions", [lsh_proposer.DIRECTIONS, 8])
def test_few_directions_find_the_head(directions, monkeypatch):
    """Without tables few rows get a sketch, and nearly all of the head are among them."""
    monkeypatch.setattr(lsh_proposer, "FRONT", 2048)
    monkeypatch.setattr(lsh_proposer, "DIRECTIONS", directions)
    weight, bias, inputs = layer()
    proposer = fitted(weight, bias, inputs, num_tables=None)
    sketched = proposer.sketches.view(torch.float32)[:, PRIOR].isfinite()
    assert sketched.sum() == round(1.25 * 2048)
    every = proposer._sketched(weight, bias, np.arange(N, dtype=np.int32))
    best = np.argsort(-proposer._largest_scores(every))[:2048]
    assert len(proposer._head.ids) == 2048
    assert np.isin(best, proposer._head.ids).mean() > 0.98


@kernels_only
@pytest.mark.not_as_python
def test_a_device_that_ranks_all_rows_has_sketches_of_all(monkeypatch):
    monkeypatch.setattr(lsh_proposer, "FRONT", 2048)
    weight, bias, _, proposer = ready(num_tables=None)
    with backend("torch"):
        assert proposer.refresh(weight, bias)
        assert proposer.sketches.view(torch.float32)[:, PRIOR].isfinite().all()
        assert not proposer.refresh(weight, bias)


def test_directions_are_found_from_random_ones_as_if_they_were_the_first():
    """A rebuild before the first inputs, as a step of training has it, makes no difference."""
    weight, bias, inputs, usual = ready(outputs=300)
    late = LSHProposer(D, 300, num_tables=4)
    late.rebuild(weight, bias)
    late.observe(inputs)
    late.rebuild(weight, bias)
    assert torch.equal(late.directions, usual.directions)


@kernels_only
def test_the_log_counts_a_row_once_that_is_in_many_buckets():
    *_, inputs, proposer = ready(hashes_per_table=5, num_tables=8)
    proposer.candidates(inputs[:4])
    seen = proposer.statistics()["look_up/rows_seen"]
    assert proposer.looked > N > seen > N / 2
    proposer.resize(N // 2)
    assert proposer.statistics()["look_up/rows_seen"] == 0, "of the old tables"


@pytest.mark.parametrize("outputs", [300, N])
def test_state_gives_the_same_candidates(outputs):
    weight, bias, inputs, proposer = ready(outputs=outputs, seed=3)
    note(proposer, range(40))
    weight[:40] += 1
    proposer.refresh(weight, bias)
    note(proposer, range(40))
    twin = LSHProposer(D, outputs, seed=3, num_tables=4)
    twin.load_state_dict(proposer.state_dict())
    weight[:40] -= 2
    for each in (proposer, twin):
        each.refresh(weight, bias)
    labels, places = nobody(inputs[:9]), np.full(9, 12)
    first, second = (
        each.propose(inputs[:9], labels, places, np.uint64(1)) for each in (proposer, twin)
    )
    np.testing.assert_array_equal(*(x.ids for x in (first, second)))
    np.testing.assert_array_equal(proposer.codes, twin.codes)


@kernels_only
def test_a_state_without_sketches_leaves_no_candidates_behind():
    proposer = fitted(*layer(outputs=300))
    proposer.load_state_dict(LSHProposer(D, 300).state_dict())
    assert not proposer.candidates(layer(outputs=300)[2][:3]).indices.size


def test_copies_and_other_sizes():
    weight, bias, inputs, proposer = ready(outputs=300)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(proposer)))
    twin.resize(200)
    twin.rebuild(weight[:200], bias[:200])
    assert twin.candidates(inputs[:2]).indices.max() < 200
    unnamed = LSHProposer(D, 300, family=lambda *shape, **sizes: SimHash(*shape, **sizes))
    with pytest.raises(ValueError, match="was a lambda"):
        copy.deepcopy(unnamed).resize(5000)


@kernels_only
@pytest.mark.not_as_python
def test_more_hashes_are_folded_into_a_few_buckets_a_row():
    proposer = LSHProposer(D, N, hashes_per_table=20)
    assert proposer.tables.num_buckets <= 2 * N + 1
    weight, bias, inputs = layer()
    proposer.observe(inputs)
    proposer.rebuild(weight, bias)
    assert proposer.codes.max() < proposer.tables.num_buckets
