"""What a row of a list may score by the index, and which lists are looked at because of it."""

from itertools import product

import numpy as np
import pytest
import torch
from helpers.inner_products import draw_clusters, queries_for, recall

from slide.search import RowIndex, exact_top_k
from slide.search.row_index import DEVIATIONS, SHARE


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def rounded(request, monkeypatch):
    """Whether means are multiplied as bfloat16, which processors do that are quick at it."""
    monkeypatch.setattr("slide.search.row_index.has_bfloat16", lambda: request.param)
    return request.param


class TestBounds:
    def bounds(self, index, layer, queries, deviations):
        """What a row of each list may score, from its mean and spread in float64."""
        state = index.state_dict()
        rows = torch.cat([layer[0], layer[1][:, None]], 1).double()[state["ids"].astype(np.int64)]
        out = []
        for own in rows.split(np.diff(state["starts"]).tolist()):
            spread = (own - own.mean(0)).square().sum(1).mean().sqrt()
            x = torch.nn.functional.pad(queries.double(), (0, 1), value=1.0)
            out.append(x @ own.mean(0) + deviations * x.norm(dim=1) * spread / x.shape[1] ** 0.5)
        return torch.stack(out, 1)

    def test_of_a_new_a_changed_and_a_restored_index(self, rounded):
        weight, bias = draw_clusters(seed=3)
        queries, index = queries_for(weight, 9), RowIndex(weight, bias)
        changes = torch.Generator().manual_seed(7)
        for step in range(3):
            twin = RowIndex.restored(weight, bias, index.state_dict())
            # The spread of a list of few rows is the difference of two sums of squares.
            for deviations, near in ((0, 0.06 if rounded else 0.02), (4.5, 0.8)):
                wanted = self.bounds(index, (weight, bias), queries, deviations)[:, :-1]
                assert len(wanted[0]) > 200
                for each, part in product((index, twin), (queries, queries[:1])):
                    found = each._bounds(part, deviations)
                    assert (found[:, -1] == torch.inf).all(), "the longest rows are seen by all"
                    assert (found[:, :-1] - wanted[: len(part)]).abs().max() < near
            moved = torch.arange(step, len(weight), 3)
            weight[moved] += torch.randn(len(moved), weight.shape[1], generator=changes)
            index.update(moved.numpy())

    def test_lists_beside_the_longest_rows_are_needed(self, rounded):
        weight, bias = draw_clusters(seed=3)
        queries, index = queries_for(weight), RowIndex(weight, bias)
        scores, ids = index.top_k(queries, 5)
        assert recall(ids, exact_top_k(queries, weight, bias, 5)[1]) > 0.97
        state = index.state_dict()
        longest = state["ids"][state["starts"][-2] :]
        assert len(longest) < index.seen < 0.3 * len(weight)
        assert np.isin(ids.numpy(), longest).mean() < 0.9
        for b in range(20):
            own = index.top_k(queries[b : b + 1], 5)
            torch.testing.assert_close(own[0][0], scores[b])
            assert own[1][0].tolist() == ids[b].tolist()

    def test_more_deviations_see_more_rows(self):
        weight, bias = draw_clusters(seed=3)
        queries, index, seen = queries_for(weight), RowIndex(weight, bias), []
        for deviations in (0, 2, DEVIATIONS, 9):
            index.top_k(queries, 1, 1 / 2, deviations=deviations)
            seen.append(index.seen)
        assert seen == sorted(set(seen))

    def test_the_limit_of_rows(self, monkeypatch):
        """By default a share of them, where these are more than 4,096."""
        weight, limits = torch.randn(300_000, 2), []

        def noted(*arguments):
            limits.append(arguments[6])

        index = RowIndex(weight, None)
        monkeypatch.setattr("slide.search.row_index.scan_lists", noted)
        for options in ({}, {"share": 0.1}, {"share": 0.001}, {"most_seen": 77}):
            index.top_k(weight[:2], 5, **options)
        assert limits == [round(SHARE * 300_000), 30_000, 4_096, 77]
