"""Directions that are learnt: the loss, what is learnt from, and what it is good for."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.samplers import lsh_sampler
from slide.hashing.learned import best_rows, collision_loss

from slide.backend import BACKENDS, backend
from slide.hashing import InnerProductHash, LearnedSimHash, SimHash, inner_product, learned
from slide.sampling import LSHProposer
from slide.sampling.schedules import fixed
from slide.search.exact import exact_top_k

D, N = 16, 1000
SIZES = {"hashes_per_table": 6, "num_tables": 8}


def draw_layer():
    """Rows that differ more in some coordinates than in others, and inputs that do likewise."""
    generator = torch.Generator().manual_seed(0)
    widths = torch.arange(1.0, D + 1) ** -1
    rows, inputs = (torch.randn(n, D, generator=generator) for n in (N, 600))
    return rows * widths, 0.1 * torch.randn(N, generator=generator), inputs * widths.flip(0)


def naive_loss(inputs, good, others):
    """By the definition: the share of exp(s) that the good row has, s summed over a table."""

    def shared(a, b):
        return sum(
            np.exp(sum(x * y for x, y in zip(*each, strict=True)))
            for each in zip(a, b, strict=True)
        )

    losses = []
    for one, wanted in zip(inputs, good, strict=True):
        everything = shared(one, wanted) + sum(shared(one, other) for other in others)
        losses.append(-np.log(shared(one, wanted) / everything))
    return np.mean(losses)


def test_the_loss():
    signs = [torch.tanh(torch.randn(n, 3, 4, dtype=torch.float64)) for n in (5, 5, 7)]
    found = collision_loss(*signs).item()
    assert found == pytest.approx(naive_loss(*(each.numpy() for each in signs)))


def test_the_best_rows(monkeypatch):
    monkeypatch.setattr(learned, "_BLOCK", 3)
    rows, _, inputs = draw_layer()
    found = best_rows(inputs[:8], rows[:50])
    expected = np.argsort(-(inputs[:8] @ rows[:50].T).numpy(), axis=1)[:, : learned.WANTED]
    assert found.tolist() == expected.tolist()
    assert best_rows(inputs[:8], rows[:4]).shape == (8, 4)


def learn(seed=0, times=1, steps=4, lr=0.05):
    rows, _, inputs = draw_layer()
    family = LearnedSimHash(D, **SIZES, steps=steps, lr=lr)
    for _ in range(times):
        family.learn(rows, inputs, seed)
    return family.directions


def test_equal_arguments_give_equal_directions():
    np.testing.assert_array_equal(learn(), learn())
    assert not np.array_equal(learn(), learn(seed=1))
    assert not np.array_equal(learn(), learn(times=2)), "it goes on from where it is"
    assert learn().dtype == np.float32


def test_nothing_to_learn_from():
    family = LearnedSimHash(D, **SIZES)
    before = family.directions
    family.learn(torch.ones(0, D), torch.ones(3, D), 0)
    family.learn(torch.ones(3, D), torch.ones(0, D), 0)
    assert family.directions is before
    np.testing.assert_array_equal(before, SimHash(D, **SIZES).directions)
    np.testing.assert_array_equal(before, learn(steps=0))


@pytest.mark.parametrize("kind", ["inputs", "rows"])
@pytest.mark.parametrize("bad", ["one", "nan", "inf"])
def test_vectors_that_teach_nothing(kind, bad):
    rows, _, inputs = draw_layer()
    family = LearnedSimHash(D, **SIZES, steps=2)
    wrong = {"inputs": inputs.clone(), "rows": rows.clone()}
    if bad == "one":
        wrong[kind] = wrong[kind][:1]
    else:
        wrong[kind][3, 0] = float(bad)
    before = family.directions
    family.learn(**wrong, seed=0)
    family.learn(**wrong, seed=1)
    np.testing.assert_array_equal(family.directions, before)
    family.learn(rows, inputs, 0)
    np.testing.assert_array_equal(family.directions, learn(steps=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_vectors_of_any_type(dtype):
    rows, _, inputs = draw_layer()
    family = LearnedSimHash(D, **SIZES, steps=2)
    family.learn(rows.to(dtype), inputs.to(dtype), 0)
    assert np.isfinite(family.directions).all()
    family.learn(torch.zeros(20, D), torch.zeros(20, D), 0)
    assert np.isfinite(family.directions).all(), "vectors without a direction"


def test_state():
    family, other = LearnedSimHash(D, **SIZES, steps=2), LearnedSimHash(D, **SIZES, seed=1)
    rows, _, inputs = draw_layer()
    family.learn(rows, inputs, 0)
    other.load_state_dict(family.state_dict())
    np.testing.assert_array_equal(other.codes(rows), family.codes(rows))
    with pytest.raises(ValueError, match=r"\(16, 48\) do not fit a family of shape \(16, 8\)"):
        LearnedSimHash(D, 4, 2).load_state_dict(family.state_dict())


@pytest.mark.parametrize(("name", "value"), [("steps", -1), ("lr", 0), ("hashes_per_table", 32)])
def test_numbers_out_of_range(name, value):
    with pytest.raises(ValueError, match=name):
        LearnedSimHash(D, **(SIZES | {name: value}))


class Pupil(SimHash):
    """Keeps what it is shown."""

    def learn(self, rows, inputs, seed):
        self.shown = rows, inputs, seed


@pytest.mark.parametrize("norm", ["simple_lsh", "cosine"])
@pytest.mark.parametrize("center", [True, False])
def test_it_learns_from_what_is_hashed(monkeypatch, norm, center):
    monkeypatch.setattr(inner_product, "RECENT", 50)
    weight, bias, inputs = draw_layer()
    family = Pupil(D + 2, **SIZES)
    hashed = InnerProductHash(family, norm, center)
    hashed.fit(weight, bias)
    hashed.learn(weight, bias, np.uint64(7))
    assert not hasattr(family, "shown"), "there are no inputs yet"
    for start in range(0, 160, 40):
        hashed.observe(inputs[start : start + 40])
    assert sum(map(len, hashed.recent)) == 80, "whole batches, as few as there must be"
    hashed.learn(weight, bias, np.uint64(7))
    rows, queries, _ = family.shown
    # What it is shown has the codes of what is hashed.
    np.testing.assert_array_equal(family.codes(queries), hashed.query_codes(inputs[110:160]))
    np.testing.assert_array_equal(family.codes(rows), hashed.row_codes(weight, bias))
    monkeypatch.setattr(inner_product, "SHOWN", 100)
    hashed.learn(weight, bias, np.uint64(7))
    some = {tuple(row) for row in family.shown[0].tolist()}
    assert len(some) > 90
    assert some < {tuple(row) for row in rows.tolist()}


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_one_bad_vector_does_not_stop_it(bad):
    """Such as an output that a bias of -inf masks."""
    weight, bias, inputs = draw_layer()
    bias[3], inputs[5, 0] = bad, bad
    family = Pupil(D + 2, **SIZES)
    hashed = InnerProductHash(family)
    hashed.observe(inputs)
    hashed.fit(weight, bias)
    hashed.learn(weight, bias, np.uint64(7))
    for shown, vectors in zip(family.shown, (weight, inputs), strict=False):
        assert len(shown) == len(vectors) - 1
        assert shown.isfinite().all()


def sampler(family, seed=0, **options):
    return lsh_sampler(
        *(D, N),
        active=80,
        mode="per_sample",
        candidate_share=1.0,
        seed=seed,
        **options,
        family=partial(family, **SIZES),
        rebuild=partial(fixed, every=300),
    )


def test_more_of_the_best_rows_are_found():
    weight, bias, inputs = draw_layer()
    wanted = exact_top_k(inputs[300:], weight, bias, 10)[1].numpy()
    found = {}
    for family in (SimHash, LearnedSimHash):
        chosen = sampler(family)
        for _ in range(2):  # The inputs of the first call are learnt from in the second.
            chosen.update(weight, bias, inputs[:300])
        active = chosen.select(inputs[300:], None)
        found[family] = np.mean([np.isin(ids, active.row(b)) for b, ids in enumerate(wanted)])
    assert found[LearnedSimHash] > 1.2 * found[SimHash]


@pytest.mark.parametrize("name", BACKENDS)
def test_resumes(name):
    """Directions, and the inputs that the next rebuild learns from, are in the state."""
    weight, bias, inputs = draw_layer()

    def steps(chosen, first, last):
        out = []
        for i in range(first, last):
            part = inputs[100 * (i % 6) :][:100]
            chosen.update(weight + 0.1 * i, bias, part)
            out.append(chosen.select(part, None).ids)
        return np.concatenate(out)

    family = partial(LearnedSimHash, steps=3)
    with backend(name):
        for stop in (2, 4):
            one, other = sampler(family), sampler(family)
            steps(one, 0, stop)
            steps(other, 3, 5)
            other.load_state_dict(one.state_dict())
            np.testing.assert_array_equal(steps(one, stop, 7), steps(other, stop, 7))


def test_layers_that_grow_keep_the_inputs():
    weight, bias, inputs = draw_layer()
    chosen = sampler(LearnedSimHash)
    chosen.update(weight, bias, inputs)
    chosen.resize(N + 1)
    chosen.update(torch.cat([weight, weight[:1]]), torch.cat([bias, bias[:1]]), inputs)
    before = SimHash(D + 2, **SIZES).directions
    assert not np.array_equal(chosen.proposer.hash.family.directions, before)


def test_layers_that_grow_keep_what_was_learnt():
    """An opened model has no inputs to learn from again."""
    weight, bias, inputs = draw_layer()
    chosen = sampler(LearnedSimHash, redraw=partial(fixed, every=300))
    for _ in range(2):
        chosen.update(weight, bias, inputs[:300])
    learnt = chosen.proposer.hash.family.directions
    chosen.resize(N + 1)
    np.testing.assert_array_equal(chosen.proposer.hash.family.directions, learnt)


def test_codes_of_another_length_are_drawn():
    proposer = LSHProposer(D, N, family=LearnedSimHash)
    before = proposer.hash.family.directions.shape
    proposer.resize(100 * N)
    assert proposer.hash.family.directions.shape > before


def test_it_learns_in_inference_mode_too():
    with torch.inference_mode():
        rows, inputs = torch.randn(50, 8), torch.randn(20, 8)
        family = LearnedSimHash(8, hashes_per_table=4, num_tables=2, steps=3)
        before = family.directions.copy()
        family.learn(rows, inputs, seed=0)
    assert (family.directions != before).any()
