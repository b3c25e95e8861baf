"""Races between settings: who leaves, who wins, and what a contender does."""

import pytest
import torch
from helpers import job

from slide import ActiveLoss, FullSampler, RowSparseAdam
from slide.data import Batches
from slide.training.planner import HeldRows
from slide.training.race import Contender, Standing, race, run_alone


class Runner:
    """A contender whose precision is known; it counts its steps."""

    steps = 10

    def __init__(self, half, end):
        self.scores, self.calls = {5: half, 10: end}, []

    def run_to(self, step):
        self.calls.append(step)
        return self.scores[step]


def test_the_worse_half_leaves():
    runners = {
        "a": Runner(0.5, 0.6),
        "b": Runner(0.1, 0.9),
        "c": Runner(0.4, 0.7),
        "d": Runner(0.2, 0.8),
        "e": Runner(0.3, 0.2),
    }
    found = race({name: lambda each=each: each for name, each in runners.items()})
    assert [runners[name].calls for name in "abcde"] == [[5, 10], [5], [5, 10], [5], [5, 10]]
    assert found["b"] == Standing(0.1, -1.0)
    assert max(found, key=lambda name: found[name].end) == "c"
    assert race({}) == {}


def contender(tmp_path, lr=0.01, steps=8):
    data = job.make_data(tmp_path)
    torch.manual_seed(0)
    network = job.make_network(data, FullSampler)
    optimizer = RowSparseAdam(network.parameters(), lr=lr)
    batches = Batches(data.train, 16, seed=0)
    held = HeldRows(data.train, data.test, "other")
    return Contender(network, optimizer, ActiveLoss("bce"), batches, held, steps), optimizer


def test_a_contender_learns_and_its_rate_falls_to_zero(tmp_path):
    runner, optimizer = contender(tmp_path, steps=60)
    before = runner.held.precision(runner.network)
    half = runner.run_to(30)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    end = runner.run_to(60)
    assert optimizer.param_groups[0]["lr"] == 0
    assert end == runner.held.precision(runner.network) > before
    again, _ = contender(tmp_path, steps=60)
    assert run_alone(lambda: again) == Standing(half, end)


def test_a_contender_whose_loss_is_not_finite_loses(tmp_path):
    runner, _ = contender(tmp_path)
    runner.network.output.bias.data.fill_(float("nan"))
    assert runner.run_to(4) == -1.0
