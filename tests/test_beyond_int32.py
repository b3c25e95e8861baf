"""Weights of more than 2^31 entries, of which most are never touched: products and updates."""

import gc
import mmap
import sys

import numpy as np
import pytest
import torch

from slide.active_set import ActiveSet
from slide.functional import active_linear, active_linear_loss, sparse_linear
from slide.optim import RowSparseAdam
from slide.search import index_top_k
from slide.sparse import CSR, Pattern

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs memory that is not reserved"),
    pytest.mark.usefixtures("one_thread"),
]
ROWS, WIDTH = (1 << 20) + 5, 2056
# Rows of the large weight, and the entries before the last one do not fit into 31 bits.
LAST = np.array([ROWS - 1, 3, ROWS - 2, (1 << 20) - 7, 0], np.int32)
assert ROWS * WIDTH > 1 << 31


@pytest.fixture
def huge():
    """Makes zeros ``(ROWS, WIDTH)``, float32 if no other type is asked for."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE

    def make(dtype=torch.float32):
        try:
            buffer = mmap.mmap(-1, ROWS * WIDTH * dtype.itemsize, flags=flags)
        except OSError as error:
            pytest.skip(f"no addresses: {error}")
        return torch.frombuffer(buffer, dtype=dtype).view(ROWS, WIDTH)

    yield make
    gc.collect()


@pytest.fixture
def twins(huge, request):
    """The same rows in a large and in a small weight, each with an optimizer."""
    small = torch.nn.Parameter(torch.randn(len(LAST), WIDTH).to(request.param))
    weight = huge(request.param)
    for place, row in zip(LAST.tolist(), small.detach(), strict=True):
        weight[place] = row
    large = torch.nn.Parameter(weight)
    return large, small, _adam(large, huge), _adam(small, lambda: torch.zeros(len(LAST), WIDTH))


def _adam(weight, zeros):
    optimizer = RowSparseAdam([weight], lr=0.1)
    optimizer.state[weight] = {"step": 0, "exp_avg": zeros(), "exp_avg_sq": zeros()}
    return optimizer


def assert_equal_after_steps(twins, losses):
    large, small, *optimizers = twins
    for _ in range(2):
        found = [loss(weight) for weight, loss in zip((large, small), losses, strict=True)]
        torch.testing.assert_close(*found)
        for loss, optimizer in zip(found, optimizers, strict=True):
            loss.backward()
            optimizer.step()
    before = small.detach()
    after = torch.stack([large.detach()[place] for place in LAST.tolist()])
    torch.testing.assert_close(after, before)
    # The rows beside them, where an offset of 32 bits would have led.
    for place in (1, 2, ROWS - 3, (1 << 20) - 6, ROWS - (1 << 20)):
        assert not large.detach()[place].any()


@pytest.mark.parametrize(
    ("twins", "mode"),
    [(torch.float32, "shared"), (torch.bfloat16, "per_sample")],
    indirect=["twins"],
)
def test_an_output_layer(twins, mode):
    x = torch.randn(2, WIDTH).to(twins[0].dtype)
    targets = Pattern(np.array([0, 1, 2]), np.array([0, 1], np.int32))

    def loss(weight, ids, outputs):
        if mode == "shared":
            active = ActiveSet(outputs, ids, None, targets)
            return active_linear_loss(x, weight, None, active, "bce")
        active = ActiveSet(outputs, ids, np.array([0, 3, 5]), targets)
        return active_linear(x, weight, None, active).square().mean()

    places = np.arange(len(LAST), dtype=np.int32)
    assert_equal_after_steps(
        twins, [lambda w: loss(w, LAST, ROWS), lambda w: loss(w, places, len(LAST))]
    )


@pytest.mark.parametrize("twins", [torch.float32], indirect=True)
def test_an_input_layer(twins):
    def loss(weight, columns):
        rows = CSR(np.array([0, 3, 5]), columns, np.linspace(0.5, 1, 5, dtype=np.float32))
        return sparse_linear(rows, weight, None).square().mean()

    places = np.arange(len(LAST), dtype=np.int32)
    assert_equal_after_steps(twins, [lambda w: loss(w, LAST), lambda w: loss(w, places)])


@pytest.mark.parametrize("twins", [torch.bfloat16], indirect=True)
def test_scores_of_candidates(twins):
    large, small, *_ = twins
    candidates = Pattern(np.array([0, 5]), LAST)
    x = torch.randn(1, WIDTH).to(large.dtype)
    scores, ids = index_top_k(x, large.detach(), None, candidates, 2)
    wanted = (x @ small.detach().T).topk(2)
    torch.testing.assert_close(scores, wanted.values)
    assert ids.tolist() == [LAST[wanted.indices[0].numpy()].tolist()]
