"""Layers of several processes on a device without values, ``meta``: no step waits for any."""

from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.matrices import make_csr

import slide
from slide.backend import backend
from slide.config.compose import read_config
from slide.config.ranks import RankInfo, find_rank_device
from slide.distributed import Group, ShardedNetwork, ShardedSampledLinear
from slide.distributed.processes import join_ranks, parting
from slide.functional.losses import LOSSES

fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
UNIFORM = partial(slide.ActiveSampler, active=12)
# `slide.LSHProposer` asks which rows it found.
SAMPLERS = {
    "full": slide.FullSampler,
    "uniform": UNIFORM,
    "uniform per sample": partial(UNIFORM, mode="per_sample"),
}
LABELS = slide.Pattern.from_lists([[3], [5, 7], [], [5]])


@pytest.fixture
def group():
    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    yield Group()
    dist.destroy_process_group()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_step_does_not_wait_for_values(name, group):
    network = ShardedNetwork(50, [8], 200, SAMPLERS[name], group, dropout=0.3).to("meta")
    optimizer = slide.RowSparseAdam(network.parameter_groups(0.01, 2.0))
    features = make_csr(np.random.default_rng(0), [3, 0, 5, 1], 50)
    kinds = [*LOSSES, slide.ActiveLoss("bce", 0.5), slide.ActiveLoss("softmax", 0.5)]
    for kind in kinds:
        loss = slide.ActiveLoss(kind) if isinstance(kind, str) else kind
        weights = np.array([1.0, 0.5, 2.0, 0.0])
        value, active = network.output.loss(network.encode(features), LABELS, loss, weights)
        assert value.device.type == "meta"
        assert name == "full" or active.ids.device.type == "meta"
        value.backward()
        slide.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert {p.device.type for p in network.parameters()} == {"meta"}
    assert int(network.draws) == len(kinds)  # The host counts.
    scores, ids = network.eval().predict(features, k=3)
    assert scores.shape == ids.shape == (4, 3)


def test_data_parallel_layer_does_not_wait_for_values(group):
    layer = ShardedSampledLinear(8, 200, UNIFORM, group).to("meta")
    x = torch.ones(4, 8, device="meta", requires_grad=True)
    loss, _ = layer.loss(x, LABELS, slide.ActiveLoss("softmax"), np.ones(4))
    loss.backward()
    slide.RowSparseAdam(layer.parameters()).step()
    assert x.grad.shape == (4, 8)
    assert layer.top_k(x, 3)[1].shape == (4, 3)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("name", LOSSES)
def test_both_ways_learn_the_same(name, fraction, group):
    found = []
    for way in ("kernels", "torch"):
        with backend(way):
            network = ShardedNetwork(50, [8], 200, UNIFORM, group, dropout=0.3).double()
            optimizer = slide.RowSparseAdam(network.parameter_groups(0.01, 2.0))
            features = make_csr(np.random.default_rng(0), [3, 2, 5, 1], 50)
            loss, losses = slide.ActiveLoss(name, fraction), []
            for _ in range(3):
                value, _ = network.output.loss(network.encode(features), LABELS, loss)
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                losses.append(value.item())
            found.append(losses)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_group_must_exchange_between_hosts(group, monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda processes: "cuda:nccl")
    with pytest.raises(ValueError, match=r"cuda:nccl only: join them by .*cpu:gloo,cuda:nccl"):
        Group()


def gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_each_process_takes_a_gpu_of_its_own(monkeypatch):
    gpus(monkeypatch, 2)
    for local in (0, 1):
        info = RankInfo(rank=2 + local, size=4, local_rank=local, local_size=2)
        assert find_rank_device("cuda", info) == torch.device("cuda", local)
        assert find_rank_device("cpu", info) == torch.device("cpu")
    assert find_rank_device("cuda", RankInfo()) == torch.device("cuda")
    assert find_rank_device("cuda:1", RankInfo(1, 2)) == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="one GPU to all 2 processes of a machine"):
        find_rank_device("cuda:1", RankInfo(1, 2, 1, 2))
    with pytest.raises(ValueError, match=r"each of the 3 processes .* finds 2: start at most 2"):
        find_rank_device("cuda", RankInfo(1, 3, 1, 3))
    gpus(monkeypatch, 1)  # Each process sees its own.
    assert find_rank_device("cuda:0", RankInfo(1, 2, 1, 2)) == torch.device("cuda", 0)


@pytest.mark.parametrize(("device", "kind"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_what_carries_tensors(device, kind, monkeypatch):
    """The process group that a run of several processes joins, and the GPU it works on."""
    gpus(monkeypatch, 2)
    told = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}
    for name, value in (told | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29400}).items():
        monkeypatch.setenv(name, str(value))
    chosen, store = [], fake.FakeStore()
    monkeypatch.setattr(dist, "rendezvous", lambda *_, **__: iter([(dist.HashStore(), 1, 2)]))
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    join = dist.init_process_group

    def note(kind, **options):
        chosen.append(kind)
        join("fake", store=store, rank=options["rank"], world_size=options["world_size"])

    monkeypatch.setattr(dist, "init_process_group", note)
    monkeypatch.setattr("slide.distributed.processes._joined", [])
    monkeypatch.setattr("slide.distributed.processes.patient_group", Group.alone)
    monkeypatch.setattr("slide.distributed.processes.silence", lambda quiet: None)
    joined = []
    with suppress(KeyboardInterrupt), parting():
        joined.append(join_ranks(read_config([f"runtime.device={device}"])).group)
        raise KeyboardInterrupt
    assert not dist.is_initialized()
    gpu = [torch.device("cuda", 1)] if device == "cuda" else []
    assert chosen == [*gpu, kind]
    assert [(group.rank, group.size) for group in joined] == [(1, 2)]
