"""Hash tables in principal directions: what they find, how they follow, states."""

import copy
import pickle
import re
from functools import partial
from itertools import chain

import numpy as np
import pytest
import scipy.linalg
import torch
from helpers.buckets import contents
from helpers.inner_products import COMPILED, draw_clusters, queries_for
from helpers.samplers import all_modes, assert_goes_on, lsh_sampler
from torch.nn import functional as F

import slide
from slide.backend import backend, uses_reference
from slide.hashing import DWTA, SimHash
from slide.ops.sketches import FIRST, LINE, PRIOR, SCALE
from slide.sampling import LSHProposer, lsh
from slide.search import exact_top_k

pytestmark = pytest.mark.usefixtures("one_thread")
N, D, B = 20_000 if COMPILED else 1_500, 48, 64
FEW = 8 if COMPILED else 3  # Inputs whose buckets are read in plain loops.
FAMILIES = {"simhash": SimHash, "dwta": partial(DWTA, bin_size=8)}
every_family = pytest.mark.parametrize("family", FAMILIES)
kernels_only = pytest.mark.skipif(uses_reference(), reason="of kernels alone")


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
    proposer = LSHProposer(weight.shape[1], len(weight), **options)
    proposer.observe(inputs)
    proposer.rebuild(weight, bias)
    return proposer


def ready(outputs=N, **options):
    """A layer, inputs, and a proposer that has seen them."""
    weight, bias, inputs = layer(outputs=outputs)
    return weight, bias, inputs, fitted(weight, bias, inputs, **options)


def note(proposer, rows, steps=1):
    """Tell the proposer of steps with these rows, every other one a label or a candidate."""
    rows, labels = np.asarray(rows, np.int32), np.arange(0, len(rows), 2, dtype=np.int32)
    targets, indptr = slide.Pattern(np.array([0, len(labels)]), labels), np.array([0, len(rows)])
    for _ in range(steps):
        proposer.changed.propose(rows[1::2])
        proposer.touched(slide.ActiveSet(proposer.out_features, rows, indptr, targets))


def rows_of(proposer, queries):
    """The candidates of each query, the best first."""
    found = proposer.candidates(queries)
    return np.split(found.indices, found.indptr[1:-1])


def recall(proposer, weight, bias, queries, k=10):
    """Share of the k largest products that are among the candidates."""
    best, found = exact_top_k(queries, weight, bias, k)[1].numpy(), rows_of(proposer, queries)
    return np.mean([np.isin(row, ids).mean() for row, ids in zip(best, found, strict=True)])


def hashed(proposer, queries):
    """What hash functions get of inputs: 32 directions, mixed by a Hadamard matrix."""
    known = proposer.projection.inputs(queries, 32)
    mixing = scipy.linalg.hadamard(1 << (known.shape[1] - 1).bit_length())
    return known @ torch.from_numpy(mixing[: known.shape[1]]).float()


def sketched_scores(proposer, queries):
    """Scores ``(B, N)`` float64 of all rows, by their sketches."""
    floats = proposer.sketches.view(torch.float32).double()
    z = proposer.projection.inputs(queries, LINE - FIRST).double()
    numbers = proposer.sketches[:, FIRST : FIRST + z.shape[1]].double()
    return (z @ numbers.T * floats[:, SCALE] + floats[:, PRIOR]).numpy()


def rounding_errors(proposer, queries):
    """By how much scores of the head ``(B, N)`` may be wrong, whose inputs have 8 bits."""
    z = proposer.projection.inputs(queries, LINE - FIRST).abs().double()
    numbers = proposer.sketches[:, FIRST : FIRST + z.shape[1]].abs().double()
    lengths = numbers.sum(1) * proposer.sketches.view(torch.float32)[:, SCALE]
    return (z.amax(1, keepdim=True) / 254 * lengths).numpy()


def naive_head(proposer):
    """The rows with the largest scores for some input: a 64th of all, and 4096 at most."""
    floats = proposer.sketches.view(torch.float32).double()
    variances = proposer.projection.variances[: LINE - FIRST].double()
    numbers = proposer.sketches[:, FIRST : FIRST + len(variances)].double()
    spread = (numbers.square() @ variances).sqrt() * floats[:, SCALE]
    scores, most = floats[:, PRIOR] + 3 * spread, min(4096, max(1, round(len(numbers) / 64)))
    return scores.argsort(descending=True)[:most].numpy()


def naive_buckets(proposer, codes):
    """The rows whose codes are those of an input ``(P * L, B)``, in any table."""
    tables, found = len(proposer.codes), []
    for b in range(codes.shape[1]):
        same = [proposer.codes[i % tables] == code for i, code in enumerate(codes[:, b])]
        found.append([np.flatnonzero(each) for each in same])
    return found


class TestFinds:
    @pytest.mark.parametrize("probes", [None, 0, 2])
    @every_family
    def test_the_rows_in_the_buckets_of_an_input(self, family, probes):
        """These and the head, the best first by their sketches, and no others."""
        *_, inputs, proposer = ready(family=FAMILIES[family], probes=probes, num_tables=4)
        queries, every = inputs[:FEW], 2000 if COMPILED else N
        vectors = hashed(proposer, queries)
        codes = proposer.hash.probe_codes(vectors, 2) if probes else proposer.hash.codes(vectors)
        assert len(codes) == (12 if probes else 4)
        buckets, head = naive_buckets(proposer, codes), naive_head(proposer)
        scores, errors = sketched_scores(proposer, queries), rounding_errors(proposer, queries)
        found = proposer.find(queries, nobody(queries), every).numpy()
        for b, (own, rows) in enumerate(zip(buckets, found, strict=True)):
            rows = rows[rows >= 0]
            whole = set(head.tolist()).union(*(part.tolist() for part in own))
            assert len(rows) == len(set(rows.tolist())) > len(head)
            assert set(rows.tolist()) <= whole
            small = [part.tolist() for part in own if len(part) <= lsh._CAPACITY]
            assert set(head.tolist()).union(*small) <= set(rows.tolist())
            falls = -np.diff(scores[b, rows])
            assert (falls >= -errors[b, rows[1:]] - errors[b, rows[:-1]]).all()
            assert (falls > 0).mean() > 0.8
        seen = np.mean([sum(min(len(p), lsh._CAPACITY) for p in own) for own in buckets])
        assert proposer.statistics()["look_up/rows_seen"] == pytest.approx(len(head) + seen)

    @every_family
    def test_far_more_of_the_best_than_by_chance(self, family):
        weight, bias = draw_clusters(N)
        queries = queries_for(weight)
        proposer = fitted(weight, bias, queries_for(weight, 1024), family=FAMILIES[family])
        assert recall(proposer, weight, bias, queries) > 0.6
        # As many rows at random would hold this share of them.
        assert proposer.statistics()["look_up/rows_seen"] / N < (0.08 if COMPILED else 0.2)

    def test_more_tables_find_more(self):
        weight, bias = draw_clusters(N)
        queries, inputs = queries_for(weight), queries_for(weight, 1024)
        found = [
            recall(fitted(weight, bias, inputs, num_tables=tables), weight, bias, queries)
            for tables in (1, 4, 24)
        ]
        assert found[0] + 0.1 < found[1] < found[2] - 0.1

    @every_family
    def test_probes_find_more_in_few_tables(self, family):
        weight, bias = draw_clusters(N)
        queries, inputs = queries_for(weight), queries_for(weight, 1024)
        options = {"num_tables": 2, "family": FAMILIES[family]}
        none, some = (fitted(weight, bias, inputs, probes=p, **options) for p in (0, 4))
        found = [recall(each, weight, bias, queries) for each in (none, some)]
        assert found[1] > found[0] + 0.05
        assert some.rows_scanned > 1.5 * none.rows_scanned

    def test_rows_that_a_full_bucket_keeps_may_have_the_largest_scores(self):
        *_, proposer = ready(hashes_per_table=1, num_tables=3)
        scores = proposer._largest_scores(proposer.sketches)
        levels = (scores.max() - scores.min()) / 65_535  # They are sorted by levels.
        for codes, buckets in zip(proposer.codes, contents(proposer.tables), strict=True):
            for code, kept in enumerate(buckets):
                own = np.flatnonzero(codes == code)
                assert set(kept) <= set(own.tolist())
                assert len(kept) == len(set(kept)) == min(len(own), lsh._CAPACITY) == 128
                dropped = np.setdiff1d(own, kept)
                assert scores[kept].min() >= scores[dropped].max() - 1.01 * levels
        share = proposer.statistics()["tables/left_out_share"]
        assert share == pytest.approx(1 - 2 * 128 / N)

    @pytest.mark.not_as_python
    @every_family
    def test_the_reference_finds_the_same(self, family):
        """As on other devices: the same tables, and the best rows of the same buckets."""
        weight, bias, inputs = layer(outputs=3000)
        labels = slide.Pattern.from_lists([[b, b + 100] for b in range(B)])
        made, found = [], []
        for way in ("kernels", "torch"):
            with backend(way):
                proposer = fitted(weight, bias, inputs, family=FAMILIES[family], probes=1)
                note(proposer, range(50), steps=8)
                proposer.refresh(1.5 * weight, bias)
                found.append(proposer.find(inputs[:B], labels, 20))
                made.append(proposer)
        # Of the head kernels rank rows by rounded inputs, so the last one may be another.
        pairs = zip(found[0].tolist(), found[1].tolist(), strict=True)
        assert np.mean([len(set(one) & set(other)) / 20 for one, other in pairs]) > 0.98
        owned = labels.indices.reshape(B, 1, 2)
        assert not any((each.numpy()[:, :, None] == owned).any() for each in found)
        # Kernels may round what is hashed to bfloat16.
        assert (made[0].codes == made[1].codes).mean() > 0.99
        one, other = (
            {(c, i) for c, ids in enumerate(chain(*contents(each.tables))) for i in ids}
            for each in made
        )
        assert len(one & other) > 0.99 * len(one | other)
        assert made[0].rows_scanned == pytest.approx(made[1].rows_scanned, rel=0.01)


@kernels_only  # In torch it takes 17 seconds, and finds the same (tests/ops/test_reference.py).
@pytest.mark.compiled_only
@every_family
def test_finds_in_a_trained_network(family):
    """A small network is trained with it, on samples of which each is near its label."""
    torch.manual_seed(0)
    outputs, features = 6000, 10
    centres = F.normalize(torch.randn(outputs, features), dim=1)
    frequency = 1 / torch.arange(10, 10 + outputs)
    hidden = torch.nn.Linear(features, D)
    options = {"active": 64, "mode": "per_sample", "weighting": "none"}
    sampler = lsh_sampler(D, outputs, family=FAMILIES[family], **options)
    output, loss = slide.SampledLinear(D, outputs, sampler), slide.ActiveLoss("squared_hinge")
    optimizers = [
        torch.optim.Adam(hidden.parameters(), 0.01),
        slide.RowSparseAdam(output.parameters(), 0.01),
    ]
    for _ in range(300):
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
    proposer = output.sampler.proposer
    assert recall(proposer, weight, bias, queries, k=1) > 0.6
    share = recall(proposer, weight, bias, queries)
    assert share > 5 * proposer.statistics()["look_up/rows_seen"] / outputs, "far beyond chance"


class TestCandidates:
    @pytest.mark.compiled_only
    def test_are_scored_exactly_without_labels(self):
        """So many tables of so few buckets find all of the best rows."""
        options = {"best": 5, "hashes_per_table": 4, "num_tables": 60}
        weight, bias, inputs, proposer = ready(outputs=1500, **options)
        best = exact_top_k(inputs[:8], weight, bias, 6)[1].numpy()
        labels = slide.Pattern.from_lists([[row[0]] for row in best.tolist()])
        found = proposer.propose(inputs[:8], labels, np.full(8, 9), np.uint64(0))
        ids = found.ids if not isinstance(found, torch.Tensor) else found.numpy()
        np.testing.assert_array_equal(ids[:, :5], best[:, 1:])
        shared = proposer.propose_shared(inputs[:8], labels, 20, np.uint64(0))
        assert len(shared) == 20
        assert set(best[:, 1]) - set(best[:, 0]) <= set(shared.tolist())
        assert not set(best[:, 0]) & set(shared.tolist())

    def test_are_distinct(self):
        """Rows of the head are in buckets, too, where inputs are not rounded."""
        *_, inputs, proposer = ready(num_tables=12)
        found = proposer.propose(inputs[:B], nobody(inputs[:B]), np.full(B, 16), np.uint64(0))
        for ids, count in zip(found.ids, found.counts, strict=True):
            assert len(set(ids[:count].tolist())) == count == 16
        for ids in rows_of(proposer, inputs[:B]):
            assert len(set(ids.tolist())) == len(ids)

    def test_are_no_rows_without_numbers(self):
        weight, bias, inputs = layer(outputs=300)
        weight[3], bias[5], bias[8] = torch.nan, -torch.inf, torch.inf
        proposer = fitted(weight, bias, inputs, hashes_per_table=1)
        found = proposer.candidates(inputs[:5]).indices
        assert not np.isin([3, 5, 8], found).any()
        assert len(np.unique(found)) > 100
        weight[7, 3], bias[9] = torch.inf, torch.nan
        note(proposer, [7, 9], steps=8)
        proposer.refresh(weight, bias)
        assert not np.isin([3, 5, 7, 8, 9], proposer.candidates(inputs[:5]).indices).any()


def test_sketches_hold_rows_and_priors():
    weight, bias, inputs, proposer = ready(outputs=200)
    assert proposer.sketches.shape == (200, LINE)
    scores, expected = sketched_scores(proposer, inputs[:20]), inputs[:20] @ weight.T + bias
    # All scores of an input may differ by one number.
    error = (scores - expected.numpy()) - (scores - expected.numpy()).mean(1, keepdims=True)
    assert np.sqrt(np.square(error).mean()) < 0.01 * expected.std()


class TestFollowing:
    """Rows that steps changed move to the buckets of their new sketches."""

    def test_rows_of_eight_steps_move_at_a_time(self):
        weight, bias, inputs, proposer = ready()
        changed = np.array([5, 77, N - 1])
        before = proposer.codes.copy()
        weight[changed] = 4000 * F.normalize(inputs[:3] - inputs.mean(0), dim=1)
        for step in range(1, 9):
            note(proposer, changed[: 1 + step % 3])
            assert not proposer.refresh(weight, bias)
            assert np.array_equal(proposer.codes, before) == (step < 8)
            assert not step < 8 or len(proposer.changed.rows()) == sum(
                1 + k % 3 for k in range(1, step + 1)
            )
        assert not len(proposer.changed.rows())
        # Others stay, and these are where a new proposer would have them.
        others = np.setdiff1d(np.arange(N), changed)
        np.testing.assert_array_equal(proposer.codes[:, others], before[:, others])
        codes = proposer._codes(proposer.sketches)
        np.testing.assert_array_equal(proposer.codes, codes)
        for table, buckets in enumerate(contents(proposer.tables)):
            for row in changed:
                now, held = proposer.codes[table, row], buckets[before[table, row]]
                full = len(held) == lsh._CAPACITY  # Of which a row may have been left out.
                assert row in held or full, "also where it was"
                assert row in buckets[now] or (now == before[table, row] and full)
        assert [ids[0] for ids in rows_of(proposer, inputs[:3])] == changed.tolist()

    def test_no_row_moves_before_the_weights_change(self):
        weight, bias, _, proposer = ready(outputs=300)
        note(proposer, [3], steps=20)
        proposer.refresh(weight, bias)
        before = proposer.sketches[3].clone()
        assert proposer.changed.rows().tolist() == [3] * 20
        weight[3] *= -1
        proposer.refresh(weight, bias)
        assert not torch.equal(before, proposer.sketches[3])
        assert not len(proposer.changed.rows())

    def test_a_row_that_keeps_its_codes_is_not_inserted_again(self):
        """Else a few rows that are often labels would drive all others out of their buckets."""
        weight, bias, _, proposer = ready(outputs=300)
        for _ in range(5):
            weight[250] += 1  # A step has changed the weights, but not these rows.
            note(proposer, range(20), steps=8)
            proposer.refresh(weight, bias)
        for buckets in contents(proposer.tables):
            for ids in buckets:
                assert len(set(ids)) == len(ids)

    def test_rows_leave_the_head_and_others_enter_it(self):
        weight, bias, _, proposer = ready()
        head, rng = proposer._head.ids, np.random.default_rng(0)
        np.testing.assert_array_equal(head, np.sort(naive_head(proposer)))
        others, few = np.setdiff1d(np.arange(N), head), max(1, len(head) // 10)
        gone, new = (np.sort(rng.choice(each, few, False)) for each in (head, others))
        weight[gone], bias[gone] = 0, -1000
        bias[new] = 1000
        note(proposer, np.concatenate([gone, new]), steps=8)
        proposer.refresh(weight, bias)
        expected = np.union1d(np.setdiff1d(head, gone), new)
        np.testing.assert_array_equal(proposer._head.ids, expected)

    @pytest.mark.parametrize("change", [1e6, -1e6])
    def test_the_head_is_chosen_anew_when_it_has_grown_or_shrunk(self, change):
        weight, bias, _, proposer = ready()
        head = proposer._head.ids
        rows = np.setdiff1d(np.arange(N), head)[: len(head)] if change > 0 else head[::2]
        bias[rows] += change
        note(proposer, rows, steps=8)
        proposer.refresh(weight, bias)
        assert len(proposer._head) == len(head)
        assert np.isin(rows, proposer._head.ids).all() == (change > 0)
        np.testing.assert_array_equal(proposer._head.ids, np.sort(naive_head(proposer)))

    def test_a_rebuild_draws_other_hash_functions(self):
        weight, bias, inputs, proposer = ready(outputs=300)
        before, known = proposer.codes.copy(), rows_of(proposer, inputs[:1])[0]
        proposer.rebuild(weight, bias)
        assert (proposer.codes != before).mean() > 0.3
        again = fitted(weight, bias, inputs)
        again.rebuild(weight, bias)
        np.testing.assert_array_equal(again.codes, proposer.codes)
        assert (fitted(weight, bias, inputs, seed=1).codes != before).mean() > 0.3
        assert known[0] in rows_of(proposer, inputs[:1])[0]

    def test_a_rebuild_takes_new_directions(self):
        weight, bias, inputs, proposer = ready(outputs=300)
        before = proposer.projection.directions.clone()
        proposer.observe(inputs[:, torch.randperm(D)])
        proposer.rebuild(weight, bias)
        assert not torch.equal(proposer.projection.directions, before)


class TestSizes:
    @pytest.mark.parametrize("outputs", [100, 1500, 20_000, 2**20])
    @every_family
    def test_a_bucket_has_sixteen_rows_on_average(self, family, outputs):
        proposer = LSHProposer(D, outputs, family=FAMILIES[family])
        hashes, values = proposer.sizes()["hashes_per_table"], 2 if family == "simhash" else 8
        assert proposer.sizes()["num_tables"] == 8
        # K is whole, so there are up to the root of a digit more or fewer.
        held = outputs / values**hashes / 16
        assert hashes == 1 or values**-0.5 <= held <= values**0.5

    @every_family
    def test_those_that_are_given(self, family):
        options = {"hashes_per_table": 3, "num_tables": 5, "family": FAMILIES[family]}
        *_, proposer = ready(outputs=300, **options)
        directions = {"directions": D}
        assert proposer.sizes() == directions | {"hashes_per_table": 3, "num_tables": 5}
        assert proposer.codes.shape == (5, 300)
        assert proposer.tables.num_tables == 5
        values = 2 if family == "simhash" else 8
        assert proposer.codes.max() < values**3
        assert proposer.tables.num_buckets == min(values**3, 600)

    @pytest.mark.not_as_python
    def test_more_codes_are_folded_into_two_buckets_a_row(self):
        weight, bias, inputs, proposer = ready(hashes_per_table=20, num_tables=40)
        assert proposer.tables.num_buckets == 2 * N
        assert proposer.codes.max() >= 2 * N
        own = inputs[:2] - inputs.mean(0)
        weight[3:5] = 4000 * F.normalize(own, dim=1)
        note(proposer, [3, 4], steps=8)
        proposer.refresh(weight, bias)
        assert [ids[0] for ids in rows_of(proposer, inputs[:2])] == [3, 4]

    def test_what_the_first_lines_of_a_run_say(self):
        *_, proposer = ready(hashes_per_table=6, num_tables=5)
        said = re.fullmatch(
            rf"SimHash tables \(K 6, L 5\) over {N:,} outputs, (\d+) MB", proposer.description()
        )
        buckets = proposer.tables.arrays()
        arrays = [*buckets, proposer.codes, proposer.sketches.numpy()]
        if not uses_reference():  # The tables of the reference have no room to grow.
            held = sum(each.nbytes for each in arrays) / 1e6
            assert abs(int(said[1]) - held) <= 0.6

    def test_names_of_the_log(self):
        *_, proposer = ready(outputs=300)
        names = ("non_empty_share", "mean_bucket", "largest_bucket", "left_out_share")
        expected = {f"tables/{name}" for name in names} | {"look_up/rows_seen"}
        assert set(proposer.statistics()) == expected

    def test_another_number_of_outputs(self):
        weight, bias, inputs, proposer = ready(outputs=300)
        proposer.resize(60)
        assert not proposer.has_index
        assert proposer.statistics()["look_up/rows_seen"] == 0, "of the old tables"
        assert proposer.sizes()["hashes_per_table"] == 2
        proposer.rebuild(weight[:60], bias[:60])
        assert proposer.codes.shape == (8, 60)
        assert proposer.candidates(inputs[:2]).indices.max() < 60


class Largest:
    """A hash family of a user: the position of the largest coordinate, with random signs."""

    def __init__(self, in_features, hashes_per_table, num_tables, seed=0):
        self.in_features = self.num_buckets = in_features
        self.num_tables = num_tables
        self.redraw(seed)

    def redraw(self, seed):
        shape = self.num_tables, 1, self.in_features
        self.signs = torch.from_numpy(np.random.default_rng(seed).choice([-1.0, 1.0], shape))

    def codes(self, vectors):
        return (vectors * self.signs).argmax(2).numpy().astype(np.int32)

    def sparse_codes(self, vectors):
        raise NotImplementedError


class TestFamilies:
    @pytest.mark.parametrize("probes", [0, 3])
    def test_of_a_user_without_probes(self, probes):
        """Which are left out where a family does not know them."""
        *_, inputs, proposer = ready(outputs=600, family=Largest, probes=probes)
        codes = proposer.hash.codes(hashed(proposer, inputs[:FEW]))
        buckets, head = naive_buckets(proposer, codes), naive_head(proposer)
        found = proposer.find(inputs[:FEW], nobody(inputs[:FEW]), 600).numpy()
        for own, rows in zip(buckets, found, strict=True):
            expected = set(head.tolist()).union(*(part.tolist() for part in own))
            assert set(rows[rows >= 0].tolist()) == expected

    def test_that_is_a_lambda_is_not_copied(self):
        make = lambda *shape, **sizes: SimHash(*shape, **sizes)  # noqa: E731
        weight, bias, inputs = layer(outputs=300)
        proposer = fitted(weight, bias, inputs, family=make)
        twin = pickle.loads(pickle.dumps(copy.deepcopy(proposer)))
        twin.rebuild(weight, bias)
        proposer.rebuild(weight, bias)
        np.testing.assert_array_equal(twin.codes, proposer.codes)
        proposer.resize(200)
        with pytest.raises(ValueError, match="was a lambda"):
            twin.resize(200)

    def test_copies_of_others_go_on(self):
        weight, bias, inputs, proposer = ready(outputs=300)
        twin = pickle.loads(pickle.dumps(copy.deepcopy(proposer)))
        assert twin._rows is None, "a copy does not hold the weight"
        note(proposer, range(9), steps=3)
        assert not len(twin.changed.rows())
        twin.resize(200)
        twin.rebuild(weight[:200], bias[:200])
        assert twin.candidates(inputs[:2]).indices.max() < 200


class TestState:
    @pytest.mark.parametrize("outputs", [300, N])
    def test_gives_equal_tables(self, outputs):
        weight, bias, inputs, proposer = ready(outputs=outputs, seed=3)
        proposer.rebuild(weight, bias)
        note(proposer, range(40), steps=8)
        twin = LSHProposer(D, outputs, seed=3)
        twin.load_state_dict(copy.deepcopy(proposer.state_dict()))
        assert twin.has_index
        np.testing.assert_array_equal(proposer.codes, twin.codes)
        assert contents(proposer.tables) == contents(twin.tables)
        np.testing.assert_array_equal(proposer._head.ids, twin._head.ids)
        np.testing.assert_array_equal(proposer.changed.rows(), twin.changed.rows())
        for each in (proposer, twin):
            each.refresh(weight, bias)
        first, second = (
            each.propose(inputs[:9], nobody(inputs[:9]), np.full(9, 12), np.uint64(1))
            for each in (proposer, twin)
        )
        np.testing.assert_array_equal(first.ids, second.ids)

    def test_without_sketches_leaves_no_candidates_behind(self):
        *_, proposer = ready(outputs=300)
        proposer.load_state_dict(LSHProposer(D, 300).state_dict())
        assert not proposer.has_index
        assert len(proposer.sketches) == 0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"seed": 4}, "seed was 0 where this state was saved, and is 4"),
            ({"num_tables": 3}, "num_tables was 8"),
            ({"hashes_per_table": 2}, "codes was 16 where this state was saved, and is 4"),
            ({"family": DWTA}, "family was SimHash"),
        ],
    )
    def test_of_other_tables_is_refused(self, options, message):
        state = ready(outputs=300)[-1].state_dict()
        with pytest.raises(ValueError, match=message):
            LSHProposer(D, 300, **options).load_state_dict(state)

    @pytest.mark.parametrize("name", ["sketches", "noted", "directions", "recent", "rebuilds"])
    def test_that_is_damaged_is_refused(self, name):
        state = ready(outputs=300)[-1].state_dict()
        state[name] = state[name][:, :3] if getattr(state[name], "ndim", 0) == 2 else -1
        with pytest.raises((ValueError, TypeError), match=name):
            LSHProposer(D, 300).load_state_dict(state)


@pytest.mark.not_as_python
@kernels_only
@all_modes
def test_a_run_goes_on_bit_for_bit(mode):
    """In the middle of an interval between rebuilds, while the weights change."""
    make = partial(lsh_sampler, 16, 400, active=40, mode=mode, best=3)
    sampler, other = assert_goes_on(make, pause=27, end=60)
    assert other.rebuilds == sampler.rebuilds >= 2
