"""A network on several processes against one on a single process."""

import os
from functools import partial

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, make_pattern
from helpers.ranks import run_ranks, several

from slide.distributed.group import Group
from slide.distributed.sharded_network import MainProcessNetwork, ShardedNetwork
from slide.functional.losses import ActiveLoss
from slide.nn.network import SlideNetwork
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.sampling import ActiveSampler, LSHProposer
from slide.sampling.sampler import FullSampler

D, N, B = 200, 60, 32
SIZES = (2, 3)
STEPS = int(os.environ.get("SLIDE_RANK_STEPS", "11"))  # 100 on request: docs/contributing.md.
WORK = f"""
D, N, B = {D}, {N}, {B}
rng = np.random.default_rng(0)
COUNTS = {{"feature_counts": rng.zipf(1.5, D), "label_counts": rng.zipf(1.5, N)}}
BATCHES = [
    (make_csr(rng, rng.integers(0, 9, B), D), make_pattern(rng, rng.integers(0, 4, B), N))
    for _ in range(5)
]

def work(group):
    drawn = partial(ActiveSampler, active=7, mode="shared")
    own = {{"dropout": 0.2, "input_dropout": 0.1, "hidden_samplers": [None, drawn]}}
    network = ShardedNetwork(D, [16, 12], N, FullSampler, group, seed=3, **own, **COUNTS)
    optimizer = RowSparseAdam(network.parameter_groups(0.01, 2.0))
    group.calls.clear()
    group.bytes_sent = 0
    losses, torch_draws = [], torch.get_rng_state()
    for step in range({STEPS}):
        features, labels = BATCHES[step % 5]
        network.train()
        loss, active = network.output.loss(network.encode(features), labels, ActiveLoss("bce"))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if not step:
            first = dense_gradient(network.first.weight).tolist()
        optimizer.step()
    calls = dict(group.calls, sent=group.bytes_sent)
    assert torch.equal(torch_draws, torch.get_rng_state())
    scores, ids = network.predict(BATCHES[0][0], 25)
    dense = [p.double().sum().item() for p in network.hidden.parameters()]
    found = losses, calls, scores.tolist(), ids.tolist(), dense
    return found, first, network.first.shares.ids.tolist()
"""


@several
def test_as_one_process(tmp_path):
    """Complete sets: the same losses, the same best outputs, and so many messages."""
    found = run_ranks(WORK, tmp_path, *SIZES)
    (losses, none, scores, ids, _), first, _ = found[1][0]
    assert none == {"sent": 0}
    assert losses[-1] < losses[0]
    for size in SIZES:
        assert all(rank[0] == found[size][0][0] for rank in found[size])  # In each bit.
        own_losses, calls, own_scores, own_ids, _ = found[size][0][0]
        for _, own_first, rows in found[size]:
            np.testing.assert_allclose(own_first, np.array(first)[rows], rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(own_losses, losses, rtol=1e-5)
        np.testing.assert_allclose(own_scores, scores, rtol=1e-4, atol=1e-5)
        assert own_ids == ids
        # The hidden layer, its gradient and the loss; a ring takes a rank's own part twice.
        sent = [2 * 4 * count * (size - 1) // size for count in (B * 16, B * 12 + 1)]
        assert calls == {"all_reduce": 2 * STEPS, "sent": sum(sent) * STEPS}


SAMPLED = """
LABELS = 150

def draw(rng, rows):
    labels = rng.integers(0, LABELS, rows)
    columns = (3 * labels[:, None] + np.arange(3)).astype(np.int32)
    noise = rng.integers(0, 3 * LABELS, (rows, 1)).astype(np.int32)
    indices = np.concatenate([columns, noise], 1)
    features = CSR(4 * np.arange(rows + 1), indices.ravel(), np.ones(4 * rows, np.float32))
    return features, Pattern(np.arange(rows + 1), labels.astype(np.int32))

def precision(group, seed):
    sampler = partial(ActiveSampler, proposer=LSHProposer, active=48, mode="shared", seed=seed)
    network = ShardedNetwork(3 * LABELS, [16], LABELS, sampler, group, seed=seed)
    optimizer = RowSparseAdam(network.parameter_groups(0.02, 2.0))
    rng = np.random.default_rng(seed)
    sizes = []
    for step in range(40):
        features, labels = draw(rng, 32)
        loss, active = network.output.loss(network.encode(features), labels, ActiveLoss("softmax"))
        sizes.append(len(active.ids))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features, labels = draw(np.random.default_rng(99), 500)
    best = network.predict(features, 1)[1][:, 0].numpy()
    scores, ids = network.predict(features, 30, "sampler")  # Fewer candidates may be found.
    assert (((ids >= 0) & (ids < LABELS)) == scores.isfinite()).all()
    assert (scores.diff(dim=1)[scores[:, 1:].isfinite()] <= 0).all()
    agrees = float((ids[:, 0].numpy() == best).mean())
    return float((best == labels.indices).mean()), float(np.mean(sizes)), agrees

def work(group):
    return [precision(group, seed) for seed in range(3)]
"""


@several
def test_sampled_sets_learn_as_well(tmp_path):
    found = run_ranks(SAMPLED, tmp_path, 2)
    (alone, size, one), (both, half, two) = (np.transpose(found[n][0]) for n in (1, 2))
    assert found[2][0] == found[2][1]
    assert half.mean() < 0.65 * size.mean()
    spread = max(np.ptp(alone), np.ptp(both))
    assert alone.mean() > 0.3
    assert min(one.mean(), two.mean()) > 0.3  # Candidates of the tables of all ranks.
    assert abs(both.mean() - alone.mean()) <= spread


def draw_batch():
    rng = np.random.default_rng(0)
    return make_csr(rng, [5] * B, D), make_pattern(rng, [2] * B, N)


def make_pair(**options):
    """A network on one process, and a `SlideNetwork` with its weights."""
    sharded = ShardedNetwork(D, [16, 12], N, FullSampler, Group.alone(), **options)
    single = SlideNetwork(D, [16, 12], N, FullSampler)
    state = {name.replace("local.", ""): x for name, x in sharded.state_dict().items()}
    single.load_state_dict({name: state[name] for name in single.state_dict() if name in state})
    return sharded, single


def test_as_the_network_of_one_process():
    networks, (features, labels) = make_pair(), draw_batch()
    optimizers = [RowSparseAdam(each.parameter_groups(0.01, 2.0)) for each in networks]
    losses: list = [[], []]
    for _ in range(5):
        for network, optimizer, found in zip(networks, optimizers, losses, strict=True):
            weights = np.arange(B) / B
            hidden = network.encode(features)
            loss, _ = network.output.loss(hidden, labels, ActiveLoss("bce"), weights)
            found.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    np.testing.assert_allclose(*losses, rtol=1e-5)
    sharded, single = networks
    torch.testing.assert_close(sharded.predict(features, 9), single.predict(features, 9))
    torch.testing.assert_close(sharded(features, labels).values, single(features, labels).values)


def test_first_weights():
    """Their ranges are those of `SlideNetwork`, and they come from the seed alone."""
    sharded, _ = make_pair(init_scale=3.0, output_scale=0.5, seed=1)
    single = SlideNetwork(D, [16, 12], N, FullSampler, init_scale=3.0, output_scale=0.5)
    for own, other in zip(sharded.layers(), single.layers(), strict=True):
        found, wanted = (each.weight.std().item() for each in (own, other))
        assert found == pytest.approx(wanted, rel=0.15)
        assert not own.bias.any()
    torch.manual_seed(7)
    again, _ = make_pair(init_scale=3.0, output_scale=0.5, seed=1)
    for own, other in zip(sharded.parameters(), again.parameters(), strict=True):
        assert torch.equal(own, other)
    other, _ = make_pair(seed=2)
    for (name, own), another in zip(sharded.named_parameters(), other.parameters(), strict=True):
        assert name.endswith("bias") or not torch.equal(own, another)


def test_dropout_goes_on_from_its_state():
    features, _ = draw_batch()
    network, _ = make_pair(dropout=0.5, input_dropout=0.5)
    with torch.no_grad():
        network.encode(features)
        state = network.state_dict()
        state = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in state.items()}
        second = network.encode(features)
        third = network.encode(features)
        other, _ = make_pair(dropout=0.5, input_dropout=0.5, seed=0)
        other.load_state_dict(state)
        torch.manual_seed(123)
        assert torch.equal(other.encode(features), second)
        assert not torch.equal(second, third)
        network.eval()
        assert torch.equal(network.encode(features), network.encode(features))
    assert int(other.draws) == 2


def test_parameters_that_have_own_rows():
    network, _ = make_pair()
    shared = network.shared_rows()
    assert set(shared) == {"first.weight", "output.local.weight", "output.local.bias"}
    for name, parameter in network.named_parameters():
        if name in shared:
            assert len(shared[name]) == len(parameter)


def test_bad_use():
    group = Group.alone()
    with pytest.raises(ValueError, match="the first hidden layer computes all its neurons"):
        ShardedNetwork(D, [4], N, FullSampler, group, hidden_samplers=[FullSampler])
    looked_up = partial(ActiveSampler, proposer=LSHProposer, active=4)
    with pytest.raises(ValueError, match="can be drawn uniformly, and not looked up"):
        ShardedNetwork(D, [4, 8], N, FullSampler, group, hidden_samplers=[None, looked_up])
    with pytest.raises(ValueError, match="dropout must be in"):
        ShardedNetwork(D, [4], N, FullSampler, group, dropout=2.0)
    group.size = 61
    with pytest.raises(ValueError, match="61 processes cannot share out 60 labels"):
        ShardedNetwork(D, [4], N, FullSampler, group)
    network, _ = make_pair()
    with pytest.raises(ValueError, match=r"k must be in \[1, 60\], not 61"):
        network.predict(draw_batch()[0], 61)
    with pytest.raises(ValueError, match=r"features must lie in \[0, 200\)"):
        network.encode(make_csr(np.random.default_rng(0), [300], 400))
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 60\)"):
        network.output.loss(torch.ones(1, 12), [[60]], ActiveLoss("bce"))


ASKED = """
from slide.distributed.launch import patient_group

def make(group, **options):
    return ShardedNetwork(40, [8], 30, FullSampler, group, **options)
"""
WHOLE = """
def work(group):
    rng = np.random.default_rng(0)
    network = make(group, seed=3, label_counts=rng.zipf(1.5, 30))
    rows = make_csr(rng, [3, 1, 6, 2], 40)
    ids = np.array([[29, -1, 4], [-1, -1, -1], [0, 1, 2], [7, 8, -1]])
    # Alone, and then by the first one, with as many questions as it likes.
    hidden = network.embed(rows)
    direct = [network.output.top_k(hidden, 12)[1].tolist(),
              network.output.scores_of(hidden, ids).tolist()]
    with network.on_main_process(group) as asked:
        if asked is None:
            assert group.rank > 0
            return direct
        assert asked.output.out_features == 30
        for _ in range(2):
            hidden = asked.embed(rows)
            scores, best = asked.output.top_k(hidden, 12)
            asked.output.top_k(hidden, k=3, search="index")
            found = [best.tolist(), asked.output.scores_of(hidden, ids).tolist()]
    assert found == direct
    assert network.training
    return found
"""


FAILS = """
def work(group):
    try:
        with make(group).on_main_process(group) as asked:
            if asked is not None:
                raise ValueError("no such rows")
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
"""


@several
def test_the_others_do_not_wait_after_an_error(tmp_path):
    others = "RuntimeError: the first process failed: no such rows"
    assert run_ranks(ASKED + FAILS, tmp_path, 2) == {
        1: ["ValueError: no such rows"],
        2: ["ValueError: no such rows", others],
    }


FAILS_WITHIN = """
def work(group):
    if group.size == 1:
        return None
    network = make(group)
    rows, patient = make_csr(np.random.default_rng(0), [3, 1], 40), patient_group()
    begin = time.time()
    try:
        with network.on_main_process(patient) as asked:
            hidden = asked.embed(rows)
            network.output.local.top_k = None  # Not to be called: before the ranks exchange.
            asked.output.top_k(hidden, 3)
    except (TypeError, RuntimeError) as error:
        return [type(error).__name__, time.time() - begin]
"""


@several
def test_the_others_do_not_wait_for_an_answer_after_an_error(tmp_path):
    """They would wait in one group, and the first process in the other, for the whole time-out."""
    (first, _), (other, seconds) = run_ranks(ASKED + FAILS_WITHIN, tmp_path, 2)[2]
    assert (first, other) == ("TypeError", "LostProcessError")
    assert seconds < 30


@several
def test_the_first_one_gets_the_answers_of_all(tmp_path):
    found = run_ranks(ASKED + WHOLE, tmp_path, 2, 3)
    (alone,) = found[1]
    for size in (2, 3):
        for best, scores in found[size]:
            assert best == alone[0]
            assert torch.tensor(scores).allclose(torch.tensor(alone[1]), atol=1e-6)
            assert scores[0][1] == 0


def test_only_the_last_hidden_layer_is_known_to_all():
    group = Group.alone()
    asked = MainProcessNetwork(ShardedNetwork(9, [4], 5, FullSampler, group), group)
    hidden = asked.embed(torch.ones(1, 9))
    assert asked.output.top_k(hidden, 2)[1].shape == (1, 2)
    with pytest.raises(ValueError, match="x must be what embed has returned last"):
        asked.output.top_k(hidden.clone(), 2)


SCALED = """
def work(group):
    rng = np.random.default_rng(0)
    features, labels = make_csr(rng, [4] * 8, 30), make_pattern(rng, [2] * 8, 20)
    network = ShardedNetwork(30, [6, 5], 20, FullSampler, group, seed=3)
    optimizers = [RowSparseAdam(part.parameters()) for part in (network.output, network.hidden)]
    optimizers.append(RowSparseAdam(network.first.parameters()))
    scaler, found = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    for infinite in (None, 0, group.size - 1, None):
        loss, _ = network.output.loss(network.encode(features), labels, ActiveLoss("bce"))
        scaler.scale(loss).backward()
        weight, before = network.output.weight, network.output.weight.detach().clone()
        if group.rank == infinite:  # As when the product of gradient and hidden values overflows.
            weight.row_gradients = [take_row_gradients(weight).scaled(torch.inf)]
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        found.append([scaler.get_scale(), not torch.equal(weight, before), weight.grad is None])
        found[-1].append(bool(weight.isfinite().all()))
    return found
"""


@several
def test_all_ranks_leave_a_step_out_together(tmp_path):
    wanted = [[1024, True], [512, False], [256, False], [256, True]]
    for ranks in run_ranks(SCALED, tmp_path, 2, 3).values():
        for rank in ranks:
            assert rank == [[*each, True, True] for each in wanted]
