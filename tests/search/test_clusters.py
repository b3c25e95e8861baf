"""Lists of near rows, and how rows that moved are put into others."""

import numpy as np
import pytest
import torch
from helpers.inner_products import draw_clusters, queries_for, recall

from slide.search import RowIndex, exact_top_k
from slide.search.clusters import GROWTH, LEAST_ROWS, WeightRows, near_rows

N = 20_000


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def rounded(request, monkeypatch):
    """Whether products are of bfloat16, as on processors that are quick at it."""
    for module in ("clusters", "row_index"):
        monkeypatch.setattr(f"slide.search.{module}.has_bfloat16", lambda: request.param)
    return request.param


def lists_of(weight, bias, seed=0):
    return near_rows(WeightRows(weight, bias), torch.arange(len(weight)), seed)


class TestNearRows:
    @pytest.mark.parametrize("rows", [1, 7, GROWTH * LEAST_ROWS - 1, GROWTH * LEAST_ROWS, 9_000])
    @pytest.mark.parametrize("has_bias", [True, False])
    def test_each_row_is_in_one_list(self, rows, has_bias):
        weight, bias = draw_clusters(rows, 3)
        lists = lists_of(weight, bias if has_bias else None)
        assert lists.order.sort().values.tolist() == list(range(rows))
        assert lists.starts[0] == 0
        assert lists.starts[-1] == rows
        assert (lists.starts.diff() > 0).all()
        assert (len(lists.starts) > 2) == (rows >= GROWTH * LEAST_ROWS)

    def test_rows_of_a_list_are_near(self, rounded):
        weight, bias = draw_clusters()
        rows, lists = torch.cat([weight, bias[:, None]], 1), lists_of(weight, bias)
        sizes = lists.starts.diff()
        means = torch.stack([own.mean(0) for own in rows[lists.order].split(sizes.tolist())])
        own = torch.repeat_interleave(torch.arange(len(means)), sizes)
        far = (rows[lists.order] - means[own]).square().sum(1)
        lengths = (rows[lists.order] - rows.mean(0)).square().sum(1)
        others = lists.starts[-2]
        assert far[:others].sum() < 0.4 * lengths[:others].sum()
        # Lengths are those from the mean of a sample.
        assert lengths[others:].min() >= 0.97 * lengths[:others].max(), "the last list is another"
        assert LEAST_ROWS <= len(lengths[others:]) < GROWTH * LEAST_ROWS

    def test_some_rows_alone(self):
        weight, bias = draw_clusters()
        numbers = torch.arange(5, N, 3)
        lists = near_rows(WeightRows(weight, bias), numbers, 0)
        assert torch.equal(lists.order.sort().values, numbers)
        alone = lists_of(weight[numbers], bias[numbers])
        assert torch.equal(numbers[alone.order], lists.order)
        assert torch.equal(alone.starts, lists.starts)

    def test_a_row_that_is_not_finite_moves_no_other(self):
        weight, bias = draw_clusters()
        bias[7], weight[9, 3] = -torch.inf, torch.nan
        zeros = weight.clone(), bias.clone()
        for tensor in zeros:
            tensor[[7, 9]] = 0
        assert torch.equal(lists_of(weight, bias).order, lists_of(*zeros).order)

    def test_equal_rows(self):
        """Lists that no row is nearest to are left out."""
        assert len(lists_of(torch.ones(5_000, 3), None).starts) == 3

    def test_draws_depend_on_the_seed_alone(self):
        layer = draw_clusters()
        one, two, other = (lists_of(*layer, seed).order for seed in (3, 3, 4))
        assert torch.equal(one, two)
        assert not torch.equal(one, other)


class TestRegroup:
    def move(self, weight, rows, seed):
        """Rows go to other directions, and become longer."""
        centres, _ = draw_clusters(len(rows), weight.shape[1], seed)
        weight[rows] = 1.5 * centres

    def test_rows_that_moved_are_found_among_fewer(self, rounded):
        """Without it they are far from their lists, of which the search sees more, and misses."""
        weight, bias = draw_clusters()
        index, rows = RowIndex(weight, bias), np.arange(0, N, 5)
        self.move(weight, rows, 7)
        index.update(rows)
        queries = queries_for(weight)
        wanted, found, seen = exact_top_k(queries, weight, bias, 5)[1], [], []
        for group in (False, True):
            if group:
                index.regroup(rows)
            found.append(recall(index.top_k(queries, 5, 0.9)[1], wanted))
            seen.append(index.seen)
        fresh = RowIndex(weight, bias)
        assert found[1] > 0.97
        assert recall(fresh.top_k(queries, 5, 0.9)[1], wanted) > 0.97
        assert seen[1] < 0.7 * seen[0]
        assert seen[1] < 1.3 * fresh.seen

    def test_all_rows_are_followed(self, rounded):
        """Also those that are not named, and a weight that is another tensor."""
        weight, bias = draw_clusters()
        index = RowIndex(weight, bias)
        index.weight, index.bias = weight * 0.5, bias + 1
        index.regroup(np.empty(0, np.int64))
        assert index.fits(index.weight, index.bias)
        state = index.state_dict()
        rows, scales = index.weight[state["ids"].astype(np.int64)], state["scales"][:, None]
        off = np.abs(state["codes"] * scales - rows.numpy())
        assert (off <= 0.51 * scales).all()
        np.testing.assert_array_equal(state["biases"], index.bias[state["ids"].astype(np.int64)])

    def test_few_levels(self):
        """A level is left as it is only if it has at least as many rows as the new one."""
        weight, bias = draw_clusters()
        index, rng, kept = RowIndex(weight, bias), np.random.default_rng(0), []
        for step in range(12):
            rows = rng.choice(N, 300, replace=False)
            self.move(weight, rows, step)
            index.regroup(rows, step)
            state = index.state_dict()
            assert sorted(state["ids"]) == list(range(N))
            assert (np.diff(state["starts"]) > 0).all()
            assert state["starts"][-1] == N
            sizes = np.diff([*state["starts"][state["levels"]], N])
            assert len(sizes) == 1 or sizes[-2] >= sizes[-1]
            # The last list is that of the longest rows, of all levels.
            assert LEAST_ROWS <= N - state["starts"][-2] < GROWTH * LEAST_ROWS
            kept.append(len(sizes))
        assert 2 < max(kept) < 6
        wanted = exact_top_k(queries_for(weight), weight, bias, 5)[1]
        assert recall(index.top_k(queries_for(weight), 5, 1.0)[1], wanted) > 0.97

    def test_all_rows_make_a_new_index(self):
        weight, bias = draw_clusters()
        index = RowIndex(weight, bias)
        index.regroup(np.arange(N), seed=5)
        for name, array in RowIndex(weight, bias, seed=5).state_dict().items():
            np.testing.assert_array_equal(index.state_dict()[name], array)

    def test_levels_are_restored(self):
        weight, bias = draw_clusters()
        index = RowIndex(weight, bias)
        index.regroup(np.arange(900))
        twin = RowIndex.restored(weight, bias, index.state_dict())
        for each in (index, twin):
            each.regroup(np.arange(800, 1_000), 3)
        for name, array in twin.state_dict().items():
            np.testing.assert_array_equal(index.state_dict()[name], array)
        earlier = index.state_dict()
        del earlier["levels"]
        assert RowIndex.restored(weight, bias, earlier).state_dict()["levels"].tolist() == [0]

    def test_other_rows_than_the_named_ones(self, rounded):
        """Lists that say nothing about their rows any more are made anew."""
        weight, bias = draw_clusters()
        index, twin = RowIndex(weight, bias), RowIndex(weight, bias)
        weight.copy_(draw_clusters(seed=9)[0])
        queries = queries_for(weight)
        wanted = exact_top_k(queries, weight, bias, 5)[1]
        for each in (index, RowIndex.restored(weight, bias, twin.state_dict())):
            each.regroup(np.arange(50))
            assert recall(each.top_k(queries, 5)[1], wanted) > 0.97

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_types_of_weights(self, dtype):
        weight, bias = (tensor.to(dtype) for tensor in draw_clusters(9_000))
        index, twin = RowIndex(weight, bias), RowIndex(weight.float(), bias.float())
        for each in (index, twin):
            each.update(np.arange(20))
            each.regroup(np.arange(900), 1)
        for name, array in twin.state_dict().items():
            np.testing.assert_array_equal(index.state_dict()[name], array)

    @pytest.mark.parametrize("change", ["width", "rows", "bias"])
    def test_rows_of_another_shape(self, change):
        """Kernels would write beside the arrays."""
        weight, bias = draw_clusters(500)
        index = RowIndex(weight, None)
        other = {
            "width": (torch.zeros(500, 17), None),
            "rows": (torch.zeros(501, 16), None),
            "bias": (weight, bias),
        }[change]
        message = "has a bias and the index" if change == "bias" else "an index of .* does not fit"
        with pytest.raises(ValueError, match=message):
            index.read_from(*other)
        with pytest.raises(ValueError, match=message):
            RowIndex.restored(*other, index.state_dict())
        index.weight, index.bias = other
        for call in (index.update, index.regroup):
            with pytest.raises(ValueError, match=message):
                call(np.arange(5))
