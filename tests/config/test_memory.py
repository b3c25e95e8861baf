"""Memory: what a run says that it needs, and memory that the system does not give."""

import tracemalloc
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import job

from slide import FullSampler, SlideNetwork
from slide.config import build_network, build_optimizer, fill_in, open_dataset
from slide.config import memory as needs
from slide.config.compose import user_errors
from slide.config.ranks import RankInfo, Ranks
from slide.data import Batches, Split, validation_split
from slide.nn import ActiveLoss
from slide.ranking import EnsembleRanker
from slide.ranking import memory as ranking_memory
from slide.sparse import CSR, Pattern
from slide.training.checkpoint import Checkpoint

MIB = 1 << 20
# Weights of 7 MiB and as many moments.
LARGE = ("dataset.num_labels=6000", "network.hidden=[300]", "trainer.max_steps=1")


@pytest.fixture
def free(monkeypatch):
    """So much memory is free."""
    return lambda size: monkeypatch.setattr(needs, "free_memory", lambda: size)


def said(capsys):
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("memory")]
    return line


@pytest.mark.parametrize(("there", "told"), [(3 << 30, "; 3.0 GiB are free"), (None, "")])
def test_enough_or_not_known(tmp_path, free, capsys, there, told):
    free(there)
    needs.announce_memory(*opened(tmp_path, *LARGE, "ranker=none"))
    assert said(capsys) == (f"memory    needs at least 14 MiB: weights 7 MiB, moments 7 MiB{told}")


def test_too_little(tmp_path, free, capsys):
    """The run begins nevertheless, because moments and a re-ranker come later."""
    free(13 * MIB)
    job.main(*job.tiny(tmp_path, *LARGE, "ranker=none"))
    assert said(capsys).endswith(
        "; 13 MiB are free. To need less: network.hidden=[150], optimizer.rowwise=true"
    )


def test_several_processes_of_a_machine(tmp_path, free, capsys):
    """The first one has the re-ranker, too."""
    config, data = opened(tmp_path, *LARGE)
    first, other = (
        Ranks(RankInfo(r, 2, r, 2), SimpleNamespace(size=2, is_main_process=r == 0))
        for r in range(2)
    )  # type: ignore[arg-type]
    own = needs.memory_needs(config, data, EnsembleRanker(), other)
    assert own.keys() == {"weights", "moments"}
    ranker = needs.memory_needs(config, data, EnsembleRanker(), first)["re-ranker"]
    free(3 << 30)
    needs.announce_memory(config, data, EnsembleRanker(), first)
    every = round((ranker + 2 * sum(own.values())) / MIB)
    assert said(capsys).startswith(f"memory    needs at least {every} MiB for 2 processes: weights")
    free(2 * own["weights"] - 1)
    with pytest.raises(ValueError, match="the weights alone take 7 MiB, and 7 MiB are free"):
        needs.announce_memory(config, data, ranks=other)


def test_not_even_the_weights(tmp_path, free):
    free(5 * MIB)
    message = job.failure(*job.tiny(tmp_path, *LARGE, "ranker=none"))
    assert message == (
        "error: the weights alone take 7 MiB, and 5 MiB are free: network.hidden=[150]"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("beta1", "words"), [(0.0, []), (0.9, ["rowwise=true"]), (0.9, ["correct_skipped=true"])]
)
def test_weights_and_moments(tmp_path, beta1, words):
    words = [f"optimizer.{word}" for word in (f"betas=[{beta1},0.9]", *words)]
    config, data = opened(tmp_path, "network.hidden=[16,12]", "sampler=full", *words)
    network = build_network(config, 60, 80)
    optimizer = build_optimizer(config, network)
    batch = Batches(data.train, 150, 0).batch(0, 0)
    hidden = network.encode(batch.features)
    network.output.loss(hidden, batch.labels, ActiveLoss("bce"))[0].backward()
    optimizer.step()
    parts = needs.memory_needs(config, data)
    assert parts["weights"] == bytes_of(network.parameters())
    assert parts["moments"] == sum(bytes_of(state.values()) for state in optimizer.state.values())


def bytes_of(tensors):
    return sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor) and t.dim())


def opened(folder, *words):
    config = job.compose(*job.tiny(folder, *words))
    data = open_dataset(config)
    fill_in(config, len(data.train), data.num_labels)
    return config, data


def test_pairs_of_features_and_labels(monkeypatch, tmp_path):
    """From a sample of the features; here of a twentieth of them."""
    data = job.make_data(tmp_path, num_features=3000, num_labels=2000, train_samples=4000)
    x, y = data.train.features, data.train.labels
    every = {
        (feature, label)
        for row in range(len(data.train))
        for feature in x.indices[x.indptr[row] : x.indptr[row + 1]].tolist()
        for label in y.indices[y.indptr[row] : y.indptr[row + 1]].tolist()
    }
    assert ranking_memory._pairs(data.train)[0] == len(every)
    monkeypatch.setattr(ranking_memory, "SAMPLED", int(np.diff(x.indptr) @ np.diff(y.indptr)) // 20)
    assert ranking_memory._pairs(data.train)[0] == pytest.approx(len(every), rel=0.1)


def generated(folder, rows, labels, nonzeros, own):
    sizes = {"train_samples": rows, "num_labels": labels, "nonzeros": nonzeros}
    data = job.make_data(folder, num_features=3000, labels_per_row=own, **sizes)
    return replace(data.train, kind="other")


def graph(_):
    """Answers of a question are some of twenty that go with its relation."""
    rng, rows, labels = np.random.default_rng(0), 15_000, 3000
    asked = rng.permutation(3000 * 40)[:rows]
    features = np.stack([asked // 40, 3000 + asked % 40], axis=1).astype(np.int32)
    answers = 20 * (asked % 40)[:, None] + np.argsort(rng.random((rows, 20)), axis=1)[:, :4]
    bounds = np.arange(rows + 1)
    x = CSR(2 * bounds, features.ravel(), np.ones(2 * rows, np.float32))
    y = Pattern(4 * bounds, answers.astype(np.int32).ravel())
    return Split(x, y, 3040, labels, kind="graph")


def items(_):
    """The twenty items of a row, one of each shelf; half of them are seen before the others."""
    rng, rows, count = np.random.default_rng(0), 4000, 3000
    own = (150 * np.arange(20) + rng.integers(0, 150, (rows, 20))).astype(np.int32)
    own = np.take_along_axis(own, np.argsort(rng.random((rows, 20)), axis=1), axis=1)
    own = np.sort(own.reshape(rows, 2, 10), axis=2).reshape(rows, 20)
    bounds = 10 * np.arange(rows + 1)
    x = CSR(bounds, own[:, :10].ravel(), np.ones(10 * rows, np.float32))
    y = Pattern(bounds, own[:, 10:].ravel())
    return Split(x, y, count, count, kind="items")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.compiled_only
@pytest.mark.parametrize(
    ("make", "candidates", "warm"),
    [
        (partial(generated, rows=4000, labels=2000, nonzeros=40, own=4), 180, 400),
        (partial(generated, rows=8000, labels=6000, nonzeros=20, own=4), 180, 400),
        # Of one label a row, a tree of labels learns, too.
        (partial(generated, rows=10_000, labels=6000, nonzeros=20, own=1), 180, 2500),
        (graph, 110, 400),
        (items, 110, 400),  # Regressions are in the place of classifiers.
    ],
)
def test_the_re_ranker(tmp_path, make, candidates, warm):
    """Bytes that its training takes, of which NumPy tells Python, and what is foretold."""
    every = make(tmp_path)
    train, held = validation_split(every, 0)
    network = SlideNetwork(every.num_features, [4], every.num_labels, FullSampler)
    # Compilers take memory; a few rows need the same kernels.
    few = (split.slice(0, min(warm, len(split))) for split in (train, held))
    EnsembleRanker().fit(network, *few, every=train)
    ranker = EnsembleRanker()
    tracemalloc.start()
    ranker.fit(network, train, held, every=every)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    needed = ranking_memory.bytes_needed(every, every.kind, candidates, 50)
    # More if fewer of the labels are candidates than half of them, as of these items.
    assert 0.8 * peak < needed < 2 * peak


SAID = "error: there is not enough memory ("


def test_a_header_that_lies(tmp_path):
    """It is noticed before anything has a number for each of its features or labels."""
    data = tmp_path / "files"
    data.mkdir()
    for name in ("train.txt", "test.txt"):
        (data / name).write_text("2 2147483647 2147483647\n1 0:1\n0 1:1\n")
    words = [f"dataset.root={data}", f"dataset.cache={tmp_path}/cache", "ranker=none"]
    tracemalloc.start()
    try:
        said = job.failure("dataset=xmc", *words, f"run_dir={tmp_path}/run")
        assert tracemalloc.get_traced_memory()[1] < 1 << 30
    finally:
        tracemalloc.stop()
    assert said.startswith("error: the weights alone take ")


@pytest.mark.parametrize(
    ("argument", "begin"),
    [
        ("network.hidden=[8,10000000000]", "error: the weights alone take "),
        ("dataset.num_features=999999999999999", "error: dataset.num_features must be in "),
    ],
)
def test_impossible_sizes(tmp_path, argument, begin):
    said = job.failure(*job.tiny(tmp_path, argument, "ranker=none"))
    assert "\n" not in said
    assert said.startswith(begin)


@pytest.mark.parametrize("ask", [lambda: torch.empty(2**50), lambda: np.empty(2**50)])
def test_both_libraries(ask):
    said = r"not enough memory \(.*(GiB|PiB|EiB|allocate)"
    with pytest.raises(SystemExit, match=said), user_errors():
        ask()


def test_the_memory_of_a_device():
    told = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 7.79 GiB"
    said = r"not enough memory \(20.00 GiB were asked for at once on the device\): lower"
    with pytest.raises(SystemExit, match=said), user_errors():
        raise torch.cuda.OutOfMemoryError(told)


def test_other_errors_of_torch_pass_through():
    with pytest.raises(RuntimeError, match="shape"), user_errors():
        torch.zeros(2).view(3)


def test_in_training(tmp_path, monkeypatch):
    begin = Checkpoint.begin

    def full(self, counters):
        begin(self, counters)
        if counters.step == 4:
            raise MemoryError

    monkeypatch.setattr(Checkpoint, "begin", full)
    more = ["trainer.checkpoint_every=2", "trainer.max_steps=6", "ranker=none"]
    said = job.failure(*job.tiny(tmp_path, *more))
    assert said.startswith(SAID)
    assert said.endswith(f"resume={tmp_path}/run goes on from the last checkpoint")
    monkeypatch.undo()
    job.main(f"resume={tmp_path}/run")
    assert job.steps(tmp_path / "run", "eval/p_at_1") == [6]
