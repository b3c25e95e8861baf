"""``top_k(search="index")``: an index over the weight that is never older than the weight."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.samplers import lsh_sampler, uniform_sampler

from slide.nn import ActiveLoss, SampledLinear
from slide.optim import RowSparseAdam
from slide.sparse import Pattern

D, N, B = 8, 6_000, 50
SAMPLERS = {"uniform": uniform_sampler, "lsh": lsh_sampler, "all": None}


def make_layer(name="uniform", **options):
    torch.manual_seed(0)
    sampler = SAMPLERS[name] and SAMPLERS[name](D, N, active=40)
    layer = SampledLinear(D, N, sampler, **options)
    with torch.no_grad():
        layer.weight *= torch.exp(torch.randn(N, 1))
    return layer


def inputs():
    return torch.randn(B, D, generator=torch.Generator().manual_seed(1))


def agreement(layer, k=3):
    """Share of the answers of exact search that the index gives, with the same scores."""
    x = inputs()
    (scores, wanted), (found, ids) = (layer.top_k(x, k, search) for search in ("exact", "index"))
    same = ids == wanted
    assert ((found - scores).abs() <= rounding(layer, x, wanted))[same].all()
    return same.float().mean().item()


def rounding(layer, x, ids):
    """How far two sums of the same terms in different orders can be apart (Higham 2002, 4.2)."""
    terms = x.abs()[:, None] * layer.weight.detach().abs()[ids]
    total = terms.sum(2) + (0 if layer.bias is None else layer.bias.detach().abs()[ids])
    return 2 * (D + 1) * torch.finfo(total.dtype).eps * total


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("bias", [True, False])
def test_it_answers_as_exact_search(name, bias):
    layer = make_layer(name, bias=bias)
    assert agreement(layer) > 0.95
    assert layer.row_index().seen < N


@pytest.mark.parametrize("optimizer", ["RowSparseAdam", "SGD"])
def test_it_follows_training(optimizer):
    layer = make_layer(sparse_grad=optimizer == "SGD")
    kind = RowSparseAdam if optimizer == "RowSparseAdam" else torch.optim.SGD
    step = kind(layer.parameters(), lr=10.0 if kind is RowSparseAdam else 0.5)
    first, before = layer.row_index(), layer.top_k(inputs(), 1, "index")[0]
    assert layer.row_index() is first
    labels = Pattern.from_lists([[b] for b in range(B)])
    for _ in range(10):
        step.zero_grad()
        layer.loss(inputs(), labels, ActiveLoss("squared_hinge"))[0].backward()
        step.step()
    assert layer.row_index() is not first
    assert agreement(layer) > 0.95
    assert (layer.top_k(inputs(), 1, "index")[0] != before).any()


def test_it_follows_every_other_change():
    layer, other = make_layer(), make_layer("lsh")
    with torch.no_grad():
        other.weight.mul_(-1)
    changes = [
        lambda: layer.load_state_dict(make_layer().state_dict()),
        lambda: layer.weight.data.neg_(),
        lambda: setattr(layer, "weight", torch.nn.Parameter(other.weight.detach().clone())),
        lambda: setattr(layer, "bias", None),
        layer.double,
        layer.float,
    ]
    for change in changes:
        index = layer.row_index()
        assert layer.row_index() is index
        change()
        assert layer.row_index() is not index
    assert agreement(layer) > 0.95


def test_copies_make_their_own():
    layer = make_layer()
    layer.row_index()
    without = len(pickle.dumps(make_layer()))
    assert len(pickle.dumps(layer)) < without + 1_000
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            twin.weight.neg_()
        assert agreement(twin) > 0.95
    assert not any("index" in name for name in layer.state_dict())
    assert agreement(layer) > 0.95


@pytest.mark.not_as_python
def test_threads_may_search_at_the_same_time():
    layer, x = make_layer(), inputs()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: layer.top_k(x, 3, "index")[1], range(8)))
    for ids in found:
        assert torch.equal(ids, found[0])


def test_errors():
    layer = make_layer()
    for k in (0, N + 1):
        with pytest.raises(ValueError, match=rf"k must be in \[1, {N}\], not {k}"):
            layer.top_k(inputs(), k, search="index")
    with pytest.raises(ValueError, match="search must be one of exact, index, sampler"):
        layer.top_k(inputs(), 1, search="tables")
    with pytest.raises(ValueError, match="search=sampler needs a sampler with an index"):
        layer.top_k(inputs(), 1, search="sampler")
