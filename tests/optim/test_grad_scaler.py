"""A GradScaler around RowSparseAdam: scaled gradients are unscaled."""

import copy

import pytest
import torch
from helpers.sparse_layers import B, D, draw_labels, make_layer
from torch import nn

from slide.optim.row_sparse_adam import RowSparseAdam


class Job:
    """An encoder and a sampled output layer, with one optimizer for both."""

    def __init__(self, sparse):
        torch.manual_seed(0)
        self.encoder, self.output = nn.Linear(3, D), make_layer(sparse_grad=sparse)
        # A large eps: without it, Adam's steps hardly depend on the scale of gradients.
        parameters = [*self.encoder.parameters(), *self.output.parameters()]
        self.optimizer = RowSparseAdam(parameters, lr=0.1, eps=1.0)
        self.x = torch.randn(B, 3)

    def loss(self, factor=1.0):
        return factor * self.output(self.encoder(self.x), draw_labels()).values.square().mean()

    def weights(self):
        return [p.detach().clone() for p in (*self.encoder.parameters(), *self.output.parameters())]


def test_rows_that_unscale_has_not_seen_are_refused():
    job, scaler = Job(sparse=False), torch.amp.GradScaler("cpu", init_scale=1024.0)
    before, state = job.weights(), copy.deepcopy(job.optimizer.state_dict())
    scaler.scale(job.loss()).backward()
    scaler.unscale_(job.optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_ does not see row gradients: leave it out"):
        scaler.step(job.optimizer)
    assert all(map(torch.equal, job.weights(), before))
    assert job.optimizer.state_dict() == state


@pytest.mark.parametrize(
    ("sparse", "unscaled_first"), [(False, False), (True, False), (True, True)]
)
def test_gradients_are_unscaled(sparse, unscaled_first):
    job, plain = Job(sparse), Job(sparse)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        scaler.scale(job.loss()).backward()
        if unscaled_first:
            scaler.unscale_(job.optimizer)
        scaler.step(job.optimizer)
        scaler.update()
        plain.loss().backward()
        plain.optimizer.step()
        for one in (job, plain):
            # Without rows on it, or a gradient of them: the step has taken both.
            assert sparse or not one.output.weight.row_gradients
            assert sparse or one.output.weight.grad is None
            one.optimizer.zero_grad()
    for found, wanted in zip(job.weights(), plain.weights(), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_step_with_infinities_is_left_out(sparse):
    job, scaler = Job(sparse), torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = job.weights()
    scaler.scale(job.loss(float("inf"))).backward()
    scaler.step(job.optimizer)
    scaler.update()
    assert all(map(torch.equal, job.weights(), before))
    assert scaler.get_scale() == 512
    if sparse:
        job.optimizer.zero_grad()
    else:
        assert job.output.weight.grad is None, "row gradients are gone after a step, as always"
        job.encoder.zero_grad()
    scaler.scale(job.loss()).backward()
    scaler.step(job.optimizer)
    assert not torch.equal(job.weights()[-1], before[-1])
