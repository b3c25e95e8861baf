"""The stack of layers: forward, prediction, training, and its state."""

import threading
from functools import partial

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, make_pattern, to_dense
from helpers.samplers import lsh_sampler, published_sampler, uniform_sampler

from slide.hashing.dwta import DWTA
from slide.hashing.simhash import SimHash
from slide.nn import ActiveLoss
from slide.nn.network import SlideNetwork
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.sampling import FullSampler

FEATURES, N = 30, 50
LSH = partial(lsh_sampler, active=16)
PUBLISHED = partial(published_sampler, num_tables=1, fill=0, active=16)
SOME = partial(uniform_sampler, active=5, mode="per_sample")


def make(hidden=(8, 7), sampler=LSH, **options):
    torch.manual_seed(0)
    return SlideNetwork(FEATURES, list(hidden), N, sampler, **options)


def draw_batch(seed=0, num_samples=6):
    rng = np.random.default_rng(seed)
    features = make_csr(rng, rng.integers(1, 9, num_samples), FEATURES)
    return features, make_pattern(rng, rng.integers(1, 4, num_samples), N)


def dense_hidden(network, features):
    x = torch.relu(to_dense(features, FEATURES) @ network.first.weight + network.first.bias)
    for layer in network.hidden:
        x = torch.relu(x @ layer.weight.T + layer.bias)
    return x


@pytest.mark.parametrize("hidden", [(8,), (8, 7), (8, 7, 9)])
def test_forward_is_the_dense_network_on_the_set(hidden):
    network = make(hidden)
    features, labels = draw_batch()
    out = network(features, labels)
    x = dense_hidden(network, features)
    torch.testing.assert_close(network.encode(features), x)
    full = x @ network.output.weight.T + network.output.bias
    ids = torch.from_numpy(out.active.ids).long()
    torch.testing.assert_close(out.values, full[:, ids])
    assert set(labels.indices.tolist()) <= set(ids.tolist())
    assert [type(layer).__name__ for layer in network.layers()] == [
        "SparseInputLinear",
        *["SampledLinear"] * len(hidden),
    ]


def test_hidden_samplers():
    network = make((20, 15), hidden_samplers=[SOME, None])
    features, _ = draw_batch()
    x = network._activate(network.first(features))
    assert ((x != 0).sum(1) <= 5).all()
    assert type(network.hidden[0].sampler) is FullSampler
    network = make((20, 15), hidden_samplers=[None, SOME])
    assert ((network.encode(features) != 0).sum(1) <= 5).all()


@pytest.mark.parametrize("mode", ["per_sample", "shared"])
@pytest.mark.parametrize("hidden_samplers", [(), (SOME, SOME)])
@pytest.mark.usefixtures("one_thread")
def test_training_lowers_the_loss(hidden_samplers, mode):
    network = make((20, 15), partial(LSH, mode=mode), hidden_samplers=hidden_samplers)
    optimizer = RowSparseAdam(network.parameters(), lr=0.05)
    features, labels = draw_batch()
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        out = network(features, labels)
        loss = ActiveLoss("softmax")(out.values, out.active)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])


def test_dropout():
    network = make((400, 300), dropout=0.5)
    features, _ = draw_batch()
    dropped = network.encode(features)
    network.eval()
    kept = network.encode(features)
    assert (dropped == 0).float().mean() > (kept == 0).float().mean() + 0.1
    torch.testing.assert_close(kept, network.encode(features))


class TestPredict:
    @pytest.mark.parametrize("sampler", [LSH, FullSampler, partial(uniform_sampler, active=9)])
    def test_exact(self, sampler):
        network = make(sampler=sampler, dropout=0.5)
        features, _ = draw_batch()
        scores, ids = network.predict(features, 4)
        x = dense_hidden(network, features)
        expected = (x @ network.output.weight.T + network.output.bias).topk(4)
        torch.testing.assert_close(scores, expected.values)
        assert torch.equal(ids, expected.indices)
        assert not scores.requires_grad
        assert network.training

    @pytest.mark.parametrize(
        "sampler", [LSH, partial(PUBLISHED, family=SimHash, hashes_per_table=1)]
    )
    def test_lsh_ranks_what_is_in_the_buckets(self, sampler):
        network = make(sampler=sampler, dropout=0.5)
        features, _ = draw_batch()
        scores, ids = network.predict(features, 6, "sampler")
        x = dense_hidden(network, features)
        full = x @ network.output.weight.T + network.output.bias
        found = network.output.sampler.candidates(x)
        for b in range(features.num_rows):
            own = np.unique(found.indices[found.indptr[b] : found.indptr[b + 1]])
            best = own[np.argsort(-full[b, own].detach().numpy())][:6]
            assert ids[b, : len(best)].tolist() == best.tolist()
            torch.testing.assert_close(scores[b, : len(best)], full[b, best])

    def test_lsh_may_find_too_few(self):
        family = partial(DWTA, bin_size=4)
        few = partial(PUBLISHED, family=family, hashes_per_table=2, bucket_capacity=2)
        network = make(sampler=few)
        scores, ids = network.predict(draw_batch()[0], 5, "sampler")
        assert (ids[:, 2:] == -1).all()
        assert torch.isinf(scores[:, 2:]).all()
        assert ((ids >= 0) == torch.isfinite(scores)).all()

    def test_lsh_where_all_outputs_are_active(self):
        network = make(sampler=partial(LSH, active=N))
        features, _ = draw_batch()
        for a, b in zip(
            network.predict(features, 5, "sampler"), network.predict(features, 5), strict=True
        ):
            torch.testing.assert_close(a, b)

    def test_does_not_disturb_training(self):
        network, other = make(hidden_samplers=[None, SOME]), make(hidden_samplers=[None, SOME])
        features, labels = draw_batch()
        for n in (network, other):
            n(features, labels)
        for search in ("exact", "index", "sampler"):
            network.predict(features, search=search)
        assert network.output.sampler.samples == other.output.sampler.samples
        assert network.output.sampler.rebuilds == other.output.sampler.rebuilds

    def test_no_module_changes_its_mode(self):
        network = make((400, 300), hidden_samplers=[None, SOME], dropout=0.5)
        network.hidden[0].eval()
        modes, seen = [m.training for m in network.modules()], []
        network.first.register_forward_hook(
            lambda *_: seen.extend(m.training for m in network.modules())
        )
        features, _ = draw_batch()
        scores, _ = network.predict(features)
        assert seen == modes == [m.training for m in network.modules()]
        network.eval()
        assert torch.equal(scores, network.predict(features)[0])

    def test_threads_predict_in_training_mode(self):
        network = make((400, 300), hidden_samplers=[None, SOME], dropout=0.5)
        features, _ = draw_batch()
        wanted, found = network.predict(features)[0], []
        inside, done = threading.Event(), threading.Event()

        def wait(*_):
            if threading.current_thread() is thread:
                inside.set()
                assert done.wait(60)

        network.first.register_forward_hook(wait)
        thread = threading.Thread(target=lambda: found.append(network.predict(features)[0]))
        thread.start()
        assert inside.wait(60)
        trained = network.encode(features)
        found.append(network.predict(features)[0])
        done.set()
        thread.join()
        assert all(torch.equal(scores, wanted) for scores in found)
        assert (trained == 0).float().mean() > 0.6  # Sets of 5, and dropout.

    def test_errors(self):
        features, _ = draw_batch()
        with pytest.raises(ValueError, match=r"k must be in \[1, 50\], not 51"):
            make().predict(features, 51)
        with pytest.raises(ValueError, match=r"search must be .*'fast'"):
            make().predict(features, search="fast")
        with pytest.raises(ValueError, match="search=sampler needs a sampler with an index"):
            make(sampler=FullSampler).predict(features, search="sampler")


def test_state_round_trip(tmp_path):
    network = make(hidden_samplers=[None, SOME])
    optimizer = RowSparseAdam(network.parameters(), lr=0.02)

    def step(n, o, seed):
        features, labels = draw_batch(seed)
        o.zero_grad()
        out = n(features, labels)
        loss = ActiveLoss("bce")(out.values, out.active)
        loss.backward()
        o.step()
        return loss.item(), out.active.ids.tolist()

    for seed in range(3):
        step(network, optimizer, seed)
    torch.save([network.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")
    expected = [step(network, optimizer, seed) for seed in range(3, 6)]
    torch.manual_seed(9)
    resumed = SlideNetwork(FEATURES, [8, 7], N, LSH, hidden_samplers=[None, SOME])
    other = RowSparseAdam(resumed.parameters())
    states = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(states[0])
    other.load_state_dict(states[1])
    assert [step(resumed, other, seed) for seed in range(3, 6)] == expected


def test_each_parameter_is_in_one_group():
    network = make()
    rest, first = network.parameter_groups(0.01, 3.0)
    assert (rest["lr"], first["lr"]) == (0.01, 0.03)
    assert {id(p) for p in first["params"]} == {id(p) for p in network.first.parameters()}
    ids = [id(p) for group in (rest, first) for p in group["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in network.parameters()}
    for options in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match=r"(lr|input_rate) must be a number above 0, not 0"):
            network.parameter_groups(*options)


def test_adam_moves_each_group_at_its_rate():
    network = make()
    before = [p.detach().clone() for p in network.parameters()]
    names = [name.partition(".")[0] for name, _ in network.named_parameters()]
    optimizer = RowSparseAdam(network.parameter_groups(0.01, 3.0))
    features, labels = draw_batch()
    out = network(features, labels)
    ActiveLoss("bce")(out.values, out.active).backward()
    optimizer.step()
    longest = dict.fromkeys(names, 0.0)
    for name, old, new in zip(names, before, network.parameters(), strict=True):
        longest[name] = max(longest[name], (new.detach() - old).abs().max().item())
    # Adam's first steps are as long as the rate.
    expected = {"first": 0.03, "hidden": 0.01, "output": 0.01}
    assert longest == pytest.approx(expected, rel=1e-3)


def test_init_scale_is_that_of_the_first_layer():
    networks = [make(init_scale=scale) for scale in (1.0, 0.25)]
    torch.testing.assert_close(networks[1].first.weight, 0.25 * networks[0].first.weight)
    for name in ("first.bias", "hidden.0.weight", "output.weight", "output.bias"):
        assert torch.equal(*(network.get_parameter(name) for network in networks))


def test_output_scale_is_that_of_the_output_weights():
    networks = [make(output_scale=scale) for scale in (1.0, 0.25)]
    torch.testing.assert_close(networks[1].output.weight, 0.25 * networks[0].output.weight)
    for name in ("first.weight", "first.bias", "hidden.0.weight", "output.bias"):
        assert torch.equal(*(network.get_parameter(name) for network in networks))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": []}, "hidden must name at least one width"),
        ({"hidden": [0]}, "hidden must be .* at least 1"),
        ({"dropout": 1.0}, "dropout must be in"),
        ({"init_scale": 0}, "init_scale must be a number above 0, not 0"),
        ({"output_scale": -1}, "output_scale must be a number above 0, not -1"),
        ({"hidden_samplers": [None]}, "1 hidden samplers do not fit 2 layers"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
