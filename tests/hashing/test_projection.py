"""Projections on the principal directions of recent inputs, against float64."""

import pickle

import numpy as np
import pytest
import torch
from helpers.grids import pairs

from slide.backend import backend
from slide.hashing import projection as module
from slide.hashing.projection import RECENT, Projection, principal_directions, random_directions

D, K, N = 12, 12, 700


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def draw_inputs(count, width=D, seed=0):
    """Inputs of different variances in directions that are no axes, around a mean."""
    spread = 2.0 ** -torch.arange(width)
    turn = torch.linalg.qr(draw(width, width, seed=99)).Q
    return draw(count, width, seed=seed) * spread @ turn.T + draw(width, seed=98)


def observed(width=D, directions=K, batches=(200, 300), weight=None):
    """A projection that has seen inputs and been renewed, and all inputs."""
    one = Projection(width, seed=3, directions=directions)
    inputs = [draw_inputs(n, width, seed=i) for i, n in enumerate(batches)]
    for x in inputs:
        one.observe(x)
    one.renew(draw(N, width, seed=7) if weight is None else weight, None, directions)
    return one, torch.cat(inputs)


def assert_orthonormal(directions):
    columns = directions.double()
    torch.testing.assert_close(
        columns.T @ columns, torch.eye(columns.shape[1]).double(), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(("width", "number"), [(9, 4), (5, 5), (1, 1)])
def test_random_directions(width, number):
    found = [random_directions(width, number, seed) for seed in (1, 1, 2, 2**63 - 1)]
    assert found[0].shape == (width, number)
    assert found[0].is_contiguous()
    assert torch.equal(found[0], found[1])
    for directions in found:
        assert_orthonormal(directions)
    assert width == 1 or not torch.allclose(found[0], found[2])


class TestPrincipalDirections:
    @pytest.mark.parametrize("warm", [False, True])
    def test_are_those_of_the_covariance(self, warm):
        """With as many directions as numbers, one round finds them."""
        x = draw_inputs(400)
        x -= x.mean(0)
        found = principal_directions(x, random_directions(D, D, 0), warm).double()
        assert_orthonormal(found)
        wanted = torch.linalg.eigh(x.double().T @ x.double()).eigenvectors.flip(1)
        # Each direction up to its sign; variances of neighbours differ by a factor of 4.
        torch.testing.assert_close(
            (found * wanted).sum(0).abs()[:8], torch.ones(8).double(), atol=1e-3, rtol=0
        )

    def test_few_of_many(self):
        x = draw_inputs(400, 60)
        x -= x.mean(0)
        found = principal_directions(x, random_directions(60, 5, 0), warm=False)
        assert_orthonormal(found)
        best = np.linalg.svd(x.double().numpy(), compute_uv=False)[:5] ** 2
        held = (x.double() @ found.double()).square().sum(0).numpy()
        np.testing.assert_allclose(held, best, rtol=1e-3)

    @pytest.mark.parametrize("factor", [1e-20, 1e-3, 1e20, 1e30])
    def test_of_tiny_and_large_vectors(self, factor):
        x, start = draw_inputs(50) - draw_inputs(50).mean(0), random_directions(D, 4, 0)
        found, wanted = (principal_directions(x * f, start, warm=False) for f in (factor, 1))
        torch.testing.assert_close((found * wanted).sum(0).abs(), torch.ones(4), atol=1e-3, rtol=0)

    @pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
    def test_without_variance_or_numbers_the_start_stays(self, value):
        x, start = torch.zeros(5, D), random_directions(D, 3, 0)
        x[2, 1] = value
        assert torch.equal(principal_directions(x, start, warm=False), start)

    def test_inputs_in_fewer_directions_than_there_are(self):
        found = principal_directions(draw(2, D), random_directions(D, 6, 0), warm=False)
        assert_orthonormal(found)
        x = draw(2, D)
        torch.testing.assert_close((x @ found).norm(dim=1), x.norm(dim=1), rtol=1e-4, atol=0)


class TestRenew:
    @pairs(width=[D, 40], directions=[5, D])
    def test_takes_mean_directions_and_variances_of_recent_inputs(self, width, directions):
        one, x = observed(width, directions)
        x = x.double()
        torch.testing.assert_close(one.mean_input.double(), x.mean(0), rtol=1e-4, atol=1e-5)
        centred = x - x.mean(0)
        assert one.directions.shape == (width, directions)
        assert_orthonormal(one.directions)
        best = np.linalg.svd(centred.numpy(), compute_uv=False)[:directions] ** 2 / len(x)
        np.testing.assert_allclose(one.variances, best, rtol=0.02, atol=1e-6)
        assert (one.variances.diff() <= 1e-6).all()

    def test_the_last_inputs_count(self):
        one = Projection(D, seed=0)
        batches = [draw_inputs(300, seed=i) + i for i in range(7)]
        for x in batches:
            one.observe(x)
        assert torch.equal(one.recent, torch.cat(batches)[-RECENT:])
        assert sum(map(len, one._batches)) <= RECENT + 300
        one.renew(draw(N, D), None, D)
        wanted = torch.cat(batches)[-RECENT:].mean(0)
        torch.testing.assert_close(one.mean_input, wanted)

    def test_a_second_renewal_begins_where_the_first_one_ended(self):
        """From directions of similar inputs one round is enough."""
        one, x = observed(40, 5)
        one.observe(draw_inputs(500, 40, seed=5))
        one.renew(draw(N, 40), None, 5)
        x = torch.cat([x, draw_inputs(500, 40, seed=5)]).double()
        best = np.linalg.svd((x - x.mean(0)).numpy(), compute_uv=False)[:5] ** 2 / len(x)
        np.testing.assert_allclose(one.variances, best, rtol=1e-3)

    def test_without_inputs_random_directions_stay(self, monkeypatch):
        use_bfloat16(monkeypatch, False)
        one, weight, bias = Projection(D, seed=3, directions=4), draw(N, D), draw(N, seed=1)
        before = one.directions.clone()
        one.renew(weight, bias, 4)
        assert torch.equal(one.directions, before)
        assert torch.equal(before, random_directions(D, 4, 3))
        assert not one.mean_input.any()
        assert (one.variances == 1).all()
        wanted = torch.cat([(weight @ before).mean(0), bias.mean()[None]])
        torch.testing.assert_close(one.offset, wanted, atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("most", [3, D])
    def test_the_offset_is_the_mean_row(self, most, monkeypatch):
        use_bfloat16(monkeypatch, False)
        one, _ = observed()
        weight, bias = draw(N, D, seed=1) + 3, draw(N, seed=2)
        weight[5, 2] = torch.nan  # It counts as zeros.
        one.renew(weight, bias, most)
        rows = naive_rows(one, weight, bias, most)
        rows[5] = 0
        assert one.offset.shape == (most + 1,)
        np.testing.assert_allclose(one.offset, rows.mean(0), rtol=1e-4, atol=1e-4)

    def test_of_9000_rows_each_third_one_counts_in_the_offset(self, monkeypatch):
        """The mean of at most 4,096 rows, which lie evenly, is precise enough."""
        use_bfloat16(monkeypatch, False)
        one, weight = Projection(2, seed=0), torch.zeros(9000, 2)
        weight[::3], weight[1::3], weight[2::3] = 6.0, -3.0, 9.0
        one.renew(weight, None, 2)
        torch.testing.assert_close(one.offset[:2], torch.full((2,), 6.0) @ one.directions)


class TestObserve:
    def test_inputs_that_are_not_finite_are_not_kept(self):
        one, x = Projection(D, seed=0), draw_inputs(6)
        x[1, 3], x[4, 0] = torch.nan, torch.inf
        one.observe(x)
        assert torch.equal(one.recent, x[[0, 2, 3, 5]])

    def test_finite_inputs_whose_sum_is_not(self):
        one, x = Projection(2, seed=0), torch.tensor([[3e38, 0.0], [3e38, 0.0], [1.0, 2.0]])
        one.observe(x)
        assert torch.equal(one.recent, x)

    def test_inputs_may_change_afterwards(self):
        one, x = Projection(D, seed=0), draw_inputs(6).double().requires_grad_()
        one.observe(x)
        kept = one.recent.clone()
        x.data.zero_()
        assert torch.equal(one.recent, kept)
        assert kept.any()
        assert (kept.dtype, kept.requires_grad) == (torch.float32, False)


def naive_rows(one, weight, bias, most):
    """Rows in the first directions and their priors, in float64."""
    weight, directions = weight.double(), one.directions[:, :most].double()
    priors = weight @ one.mean_input.double()
    priors = priors if bias is None else priors + bias.double()
    return torch.cat([weight @ directions, priors[:, None]], 1).numpy()


def use_bfloat16(monkeypatch, rounds):
    monkeypatch.setattr(module, "has_bfloat16", lambda device: rounds)


class TestRows:
    @pairs(
        rounds=[False, True],
        has_bias=[False, True],
        count=[0, 1, 512, 513],
        most=[1, 5, D + 9],
        way=["kernels", "torch"],
        dtype=[torch.float32, torch.float64, torch.bfloat16],
        contiguous=[True, False],
    )
    def test_against_float64(
        self, monkeypatch, rounds, has_bias, count, most, way, dtype, contiguous
    ):
        one, _ = observed()
        weight, bias = draw(N, D, seed=1).to(dtype), draw(N, seed=2).to(dtype)
        weight = weight if contiguous else weight.T.contiguous().T
        rows = np.random.default_rng(0).permutation(N)[:count].astype(np.int32)
        use_bfloat16(monkeypatch, rounds)
        with backend(way):
            found = one.rows(weight, bias if has_bias else None, rows, most)
        assert (found.shape, found.dtype) == ((count, min(most, D) + 1), torch.float32)
        expected = naive_rows(one, weight, bias if has_bias else None, most)[rows]
        # Priors are precise, too, where products are rounded to 8 bits.
        np.testing.assert_allclose(found[:, -1], expected[:, -1], rtol=1e-4, atol=1e-5)
        errors, longest = np.abs(found[:, :-1].numpy() - expected[:, :-1]), weight.norm(dim=1)
        bound = (2**-7 if rounds else 1e-5) * longest.double().numpy()[rows][:, None]
        assert (errors <= bound).all()
        assert not rounds or most == 1 or not count or errors.max() > 1e-5, "they are rounded"

    def test_rows_without_numbers(self, monkeypatch):
        one, _ = observed()
        weight = draw(20, D)
        weight[3, 4], weight[7, 0] = torch.nan, torch.inf
        use_bfloat16(monkeypatch, True)
        found = one.rows(weight, None, np.arange(20, dtype=np.int32), D)
        lost = (~found.isfinite()).any(1)
        assert np.flatnonzero(lost).tolist() == [3, 7]


@pytest.mark.parametrize("most", [4, D])
def test_inputs_without_the_mean_in_the_first_directions(most):
    one, x = observed()
    x = x[:9].double().requires_grad_()
    found = one.inputs(x, most)
    expected = (x.detach() - one.mean_input.double()) @ one.directions[:, :most].double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert (found.dtype, found.requires_grad) == (torch.float32, False)


def test_scores_are_priors_and_products_of_projections(monkeypatch):
    """With as many directions as numbers nothing is lost."""
    use_bfloat16(monkeypatch, False)
    one, x = observed()
    weight, bias = draw(N, D, seed=1), draw(N, seed=2)
    rows = one.rows(weight, bias, np.arange(N, dtype=np.int32), D)
    scores = one.inputs(x, D) @ rows[:, :-1].T + rows[:, -1]
    torch.testing.assert_close(scores, x @ weight.T + bias, rtol=1e-3, atol=1e-3)


class TestState:
    def make(self):
        return Projection(D, seed=11, directions=5)

    def test_round_trip(self):
        one, weight = self.make(), draw(N, D)
        one.observe(draw_inputs(300))
        one.renew(weight, None, 3)
        one.observe(draw_inputs(200, seed=1))
        state, other = pickle.loads(pickle.dumps(one.state())), self.make()
        other.load("it", state, 3)
        some = np.arange(20, dtype=np.int32)
        for _ in range(2):
            assert torch.equal(other.offset, one.offset)
            assert torch.equal(other.rows(weight, None, some, 3), one.rows(weight, None, some, 3))
            assert torch.equal(other.inputs(weight, 3), one.inputs(weight, 3))
            for each in (one, other):  # Both go on alike.
                each.observe(draw_inputs(100, seed=2))
                each.renew(weight, None, 3)

    def test_shares_no_memory(self):
        one, other = self.make(), self.make()
        one.observe(draw_inputs(30))
        one.renew(draw(N, D), None, 5)
        state = one.state()
        other.load("it", state, 5)
        for array in state.values():
            array[:] = 7
        for name, tensor in one.tensors().items():
            assert torch.equal(getattr(other, name), tensor)
            tensor.fill_(7)
            assert not (getattr(one, name) == 7).any()
        assert torch.equal(other.recent, one.recent)
        assert torch.equal(other.offset, one.offset)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("offset", np.zeros(5, np.float32), r"offset must be \(4,\), not \(5,\)"),
            ("offset", np.zeros((1, 4), np.float32), "it is damaged: offset"),
            ("recent", np.zeros((3, D + 1), np.float32), "it is damaged: recent"),
            ("mean_input", np.zeros(D - 1, np.float32), "it is damaged: mean_input"),
            ("directions", np.zeros((D, 4), np.float32), "it is damaged: directions"),
            ("directions", np.full((D, 5), np.nan, np.float32), "it is damaged: directions"),
            ("variances", np.full(5, -1, np.float32), "it is damaged: variances"),
            ("variances", np.zeros(5), "it is damaged: variances"),
        ],
    )
    def test_of_other_shapes_or_types(self, name, value, message):
        one = self.make()
        one.renew(draw(N, D), None, 3)
        self.make().load("it", one.state(), 3)
        with pytest.raises(ValueError, match=message):
            self.make().load("it", one.state() | {name: value}, 3)

    def test_take_projects_as_another_one_until_inputs_come(self):
        one, other = observed(directions=5)[0], Projection(D, seed=1, directions=5)
        other.observe(draw_inputs(50, seed=4))
        other.take(**one.tensors())
        assert len(other.recent) == 0, "earlier inputs are of other directions"
        x, weight = draw_inputs(9, seed=5), draw(N, D)
        assert torch.equal(other.inputs(x, 5), one.inputs(x, 5))
        other.renew(weight, None, 5)
        assert torch.equal(other.inputs(x, 5), one.inputs(x, 5))
        other.observe(draw_inputs(50, seed=6))
        other.renew(weight, None, 5)
        assert not torch.allclose(other.inputs(x, 5), one.inputs(x, 5))

    @pytest.mark.parametrize(
        ("name", "shape"),
        [("mean_input", (D + 1,)), ("directions", (D, 4)), ("variances", (4,)), ("variances", ())],
    )
    def test_take_refuses_other_shapes(self, name, shape):
        one = self.make()
        with pytest.raises(ValueError, match=rf"{name} must be \("):
            one.take(**one.tensors() | {name: torch.ones(shape)})
