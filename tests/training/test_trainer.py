"""The trainer: resuming bit by bit, what is due when, learning, re-ranker, tiny data."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import job
from helpers.samplers import lsh_sampler
from helpers.splits import split_of

import slide
from slide import SlideNetwork
from slide.data import SparseDataset, validation_split
from slide.functional.losses import Loss
from slide.model import Model
from slide.nn import ActiveLoss, add_outputs
from slide.ranking import EnsembleRanker
from slide.sampling import ActiveSampler
from slide.sampling.sampler import MODES
from slide.sparse import Pattern
from slide.training import evaluate
from slide.training import trainer as trainer_module
from slide.training.checkpoint import Checkpoint
from slide.training.loop import start_biases

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY = ("schedule=fixed", "schedule.every=96")  # Every sixth step.
FEW = ("schedule.per_output=1000", "schedule.early=1000")  # Only before the first step.
CASES = {
    "lsh shared, skipped steps": (
        *("sampler=lsh", "sampler.weighting=stratified", "optimizer.correct_skipped=true"),
        *("sampler.mode=shared", *EVERY),
    ),
    "lsh in two layers": (
        *("network.hidden=[16,8]", "network.hidden_active=[null,4]", "sampler.mode=per_sample"),
        *("sampler=lsh", "runtime.threads=0", *EVERY),
    ),
    **{f"lsh {mode}": ("sampler=lsh", f"sampler.mode={mode}", *EVERY) for mode in MODES},
    **{f"lsh {mode}, few": ("sampler=lsh", f"sampler.mode={mode}", *FEW) for mode in MODES},
    "lsh by default": ("schedule.per_output=2",),
    "lsh with dwta": ("sampler=lsh", "hash=dwta", *EVERY),
    **{f"sketch {mode}": ("sampler=sketch", f"sampler.mode={mode}", *EVERY) for mode in MODES},
    **{f"sketch {mode}, few": ("sampler=sketch", f"sampler.mode={mode}", *FEW) for mode in MODES},
    "sketch by updates": ("sampler=sketch", "schedule.per_output=1", "schedule.at_least=2"),
    "published fifo": (
        *("sampler=slide2020", "hash.hashes_per_table=3", "hash.num_tables=4"),
        *("sampler.proposer.bucket_capacity=4", "sampler.mode=per_sample"),
        # New hash functions with every second rebuild.
        *("schedule=fixed", "schedule.every=32", "schedule.redraw_every=64"),
    ),
    "uniform hidden layers": (
        *("network.hidden=[16,8]", "network.hidden_active=[8,4]", "sampler=uniform"),
        "sampler.mode=per_sample",
    ),
    "uniform grouped": ("sampler=uniform", "sampler.group_size=3"),
    "recent per sample": ("sampler=recent", "sampler.mode=per_sample"),
    "full": ("sampler=full", "sampler.active=all", "lr_schedule=linear", "lr_schedule.warmup=0.3"),
}


def without_times(lines):
    return [
        {k: v for k, v in line.items() if "seconds" not in k and "speed/" not in k}
        for line in lines
    ]


def summary_of(folder):
    return json.loads((folder / "run/summary.json").read_text())


@pytest.fixture
def runs(tmp_path):
    """Two folders for runs that are compared."""
    for run in "ab":
        (tmp_path / run).mkdir()
    return tmp_path / "a", tmp_path / "b"


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(runs, monkeypatch, case):
    whole, broken = runs
    arguments = [
        *("runtime.deterministic=true", "network.dropout=0.3", "trainer.checkpoint_every=5"),
        *("trainer.log_every=1", "trainer.recall_every=4", "trainer.eval_every=6"),
        *CASES[case],
    ]
    arguments += [] if case.endswith("skipped steps") else job.UNRANKED
    job.main(*job.tiny(whole, *arguments))
    job.stop_at(monkeypatch, 7, 13)  # In the middle of both epochs, and after a checkpoint.
    assert "after step 7" in job.failure(*job.tiny(broken, *arguments))
    assert job.checkpoint(broken / "run")["step"] == 5
    torch.manual_seed(123)  # What went on elsewhere does not matter.
    assert "after step 13" in job.failure(f"resume={broken}/run")
    assert job.checkpoint(broken / "run")["step"] == 10
    torch.manual_seed(456)
    job.main(f"resume={broken}/run")
    expected, found = (job.checkpoint(folder / "run") for folder in runs)
    assert (expected["step"], expected["samples"]) == (16, 240)
    output = expected["network"]["output._extra_state"]
    wanted = 3 if "schedule=fixed" in arguments else 1 if FEW[0] in arguments else None
    if "published" in case:
        assert output["proposer"]["draw"] == 3
        wanted = 8
    if wanted is not None:
        assert output["rebuilds"] == wanted
        for each in (expected, found):
            assert 0 < each["rebuild_seconds"] < each["network_seconds"]
    elif "updates" in case:
        assert output["rebuilds"] > 3
    job.assert_same(found, expected)
    one, other = (without_times(job.lines(folder / "run")) for folder in runs)
    assert one == other
    one, other = map(summary_of, runs)
    for key in ("p_at_1", "psp_at_5", "active_mean", "steps", "samples", "epochs"):
        assert one[key] == other[key]


def test_an_index_that_is_not_saved_is_made_again(tmp_path):
    """That of FAISS, when a run is resumed; it goes on with the next random draws."""
    words = ["sampler=faiss", "sampler.proposer.factory=Flat", *FEW, *job.UNRANKED]
    job.main(*job.tiny(tmp_path, *words, "trainer.max_steps=5"))
    job.main(f"resume={tmp_path}/run", "trainer.max_steps=9")
    state = job.checkpoint(tmp_path / "run")["network"]["output._extra_state"]
    assert (state["rebuilds"], state["samples"], state["selections"]) == (2, 136, 9)


def test_another_seed_makes_another_run(tmp_path):
    states = []
    for seed in range(2):
        run = tmp_path / str(seed)
        more = ["runtime.deterministic=true", f"seed={seed}", f"run_dir={run}", "ranker=none"]
        job.main(*job.tiny(tmp_path, *more))
        states.append(job.checkpoint(run))
    with pytest.raises(AssertionError, match="checkpoint/network"):
        job.assert_same(*states)


def test_a_checkpoint_on_the_way_knows_the_seconds_of_compilation(tmp_path, monkeypatch):
    job.stop_at(monkeypatch, 7)
    monkeypatch.setattr(trainer_module, "compile_seconds", iter(range(100)).__next__)
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), checkpoint_every=3)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert job.checkpoint(tmp_path / "run")["compile_seconds"] == 2


def test_what_is_due_comes_when_it_is_due(tmp_path, monkeypatch):
    saved, evaluated, whole = [], [], trainer_module.predict_split
    monkeypatch.setattr(Checkpoint, "begin", lambda self, now: saved.append(now.step))
    monkeypatch.setattr(Checkpoint, "write", lambda self, now: saved.append(now.step))

    def predict_split(network, split, search, ranker):
        assert ranker is None
        evaluated.append((trainer.step, len(split), search))
        return whole(network, split, search, ranker)

    monkeypatch.setattr(trainer_module, "predict_split", predict_split)
    options = {"log_every": 3, "recall_every": 5, "eval_every": 4, "eval_samples": 10}
    options |= {"checkpoint_every": 7, "max_steps": 15, "evaluation": "index"}
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), **options)
    trainer.fit()
    assert trainer.step == 15
    assert saved == [7, 14, 15]
    assert evaluated == [(step, 10, "index") for step in (4, 8, 12)] + [(15, 40, "index")]
    assert job.steps(tmp_path / "run", "train/loss") == [3, 6, 9, 12, 15]
    assert job.steps(tmp_path / "run", "selection/recall") == [5, 10, 15]
    assert job.steps(tmp_path / "run", "eval/p_at_1") == [4, 8, 12, 15]


def test_a_holdout_leaves_the_test_samples_alone(tmp_path):
    data = job.make_data(tmp_path)
    test = SimpleNamespace(without_zeros=lambda: test)  # It has nothing else, and no length.
    blind = replace(data, test=test)
    trainer = job.make_trainer(tmp_path, blind, holdout=0.25, eval_every=3)
    summary = trainer.fit()
    assert summary["evaluated_on"] == "holdout"
    assert summary["samples"] == 2 * 90


def test_a_holdout_does_not_leak(tmp_path, monkeypatch):
    seen, biases, fit = [], Loss.prior_scores, EnsembleRanker.fit

    def prior_scores(self, labels, count):
        seen.append(labels.num_rows)
        return biases(self, labels, count)

    def noted_fit(self, network, train, held, inverse, search, every):
        seen.append((len(train), len(held), len(every)))
        return fit(self, network, train, held, inverse, search, every)

    monkeypatch.setattr(Loss, "prior_scores", prior_scores)
    monkeypatch.setattr(EnsembleRanker, "fit", noted_fit)
    job.main(*job.tiny(tmp_path, "dataset.holdout=0.25"))
    assert seen == [90, (90, 22, 112)]


def test_biases_start_where_the_loss_says():
    """A loss of one's own may say nothing."""
    labels = Pattern.from_lists([[0, 1], [1]])
    network = slide.SlideNetwork(6, [4], 5, slide.FullSampler)
    start_biases(network, lambda values, active: values.mean(), labels)
    assert not network.output.bias.any()
    loss = slide.ActiveLoss("squared_hinge")
    start_biases(network, loss, labels)
    assert network.output.bias.argmax() == 1
    expected = loss.prior_scores(labels, 5)
    np.testing.assert_array_equal(network.output.bias.detach(), expected)
    start_biases(network, loss, labels, 0.25)
    np.testing.assert_allclose(network.output.bias.detach(), expected - 0.25, rtol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "bce", "decoupled_softmax"])
def test_a_loss_without_a_margin_has_none_below_its_first_biases(name):
    labels, biases = Pattern.from_lists([[0, 1], [1]]), []
    for margin in (0.0, 0.25):
        network = slide.SlideNetwork(6, [4], 5, slide.FullSampler)
        start_biases(network, slide.ActiveLoss(name), labels, margin)
        biases.append(network.output.bias.detach())
    assert torch.equal(*biases)


@pytest.mark.parametrize(("margin", "least", "most"), [(0.0, 0.4, 1.0), (0.1, 0.0, 0.01)])
def test_first_biases_and_outputs_without_a_label(tmp_path, margin, least, most):
    """At the margin of a loss, -1 here, many negatives have a gradient; below it, hardly any."""
    data = job.make_data(tmp_path, num_labels=400)
    network = slide.SlideNetwork(60, [512], 400, slide.FullSampler, init_scale=0.05).eval()
    labels = data.train.labels
    start_biases(network, ActiveLoss("squared_hinge"), labels, margin)
    unknown = np.bincount(labels.indices, minlength=400) == 0
    assert unknown.sum() > 100
    scores = network(data.train.features).detach().numpy()
    assert least <= np.mean(scores[:, unknown] > -1) <= most


def test_rows_without_any_label(tmp_path):
    data = job.make_data(tmp_path)
    none = Pattern(np.zeros(len(data.train) + 1, np.int64), np.empty(0, np.int32))
    data = replace(data, train=replace(data.train, labels=none))
    with pytest.raises(ValueError, match="no training row has a label: in text"):
        job.make_trainer(tmp_path, data)


def test_the_log_says_how_many_outputs_no_step_has_changed(runs):
    """What a run says before its ninth step is what another one finds after eight."""
    found = []
    for folder, steps in zip(runs, (8, 9), strict=True):
        data = job.make_data(folder, num_labels=400)  # So few that all are looked at.
        torch.manual_seed(0)
        trainer = job.make_trainer(folder, data, recall_every=9, max_steps=steps)
        trainer.fit()
        weight = trainer.network.output.weight
        moments = trainer.loop.optimizer.state[weight]["exp_avg_sq"]
        found.append(1 - len(moments.nonzero()[:, 0].unique()) / 400)
    (line,) = job.lines(runs[1] / "run", "selection/never_updated")
    assert line["selection/never_updated"] == pytest.approx(found[0])
    assert 0 < found[0] < 1


@pytest.mark.compiled_only
@pytest.mark.parametrize("mode", ["shared", "per_sample"])
def test_it_learns(tmp_path, mode):
    sizes = {"num_features": 500, "num_labels": 500, "nonzeros": 30, "noise": 0.2}
    data = job.make_data(tmp_path, **sizes, train_samples=2000, test_samples=500)
    sampler = partial(lsh_sampler, active=100, mode=mode)
    network = SlideNetwork(data.num_features, [64], data.num_labels, sampler)
    trainer = job.make_trainer(tmp_path, data, network=network, batch_size=64, epochs=4)
    summary = trainer.fit()
    assert summary["active_mean"] <= 200
    assert summary["p_at_1"] > 4 * summary["majority_p_at_1"] > 0


def finished(folder, ranker, **options):
    """A trainer after its `fit`, and the summary; the same network and training data each time."""
    torch.manual_seed(0)
    data = job.make_data(folder, **job.WITH_HELD)
    if ranker is None:  # A ranker has samples held out.
        data = replace(data, train=validation_split(data.train, seed=0)[0])
    trainer = job.make_trainer(folder, data, ranker=ranker, **options)
    return trainer, trainer.fit()


def comparable(scores):
    """Propensities are those of all training data, also of the held-out samples."""
    others = ("psp", "maj", "recall")  # Recall is that of active sets.
    return {k: v for k, v in scores.items() if "_at_" in k and not any(o in k for o in others)}


def test_the_summary_holds_both_rankings(runs):
    options, ranker = {"evaluation": "index", "eval_every": 5}, EnsembleRanker(depth=20)
    alone, plain = finished(runs[0], None, **options)
    trainer, summary = finished(runs[1], ranker, **options)
    assert comparable(plain)
    for name, value in comparable(plain).items():
        assert summary[f"network_{name}"] == value
    scores = evaluate(trainer.network, trainer.eval_split, trainer.inverse, "index", ranker)
    for name, value in scores.items():
        assert summary[name] == pytest.approx(value, abs=1e-6)
    assert summary["p_at_1"] != summary["network_p_at_1"]
    assert summary["majority_p_at_1"] == plain["majority_p_at_1"] > 0
    assert not any(name.startswith("network_") and "_at_" in name for name in plain)
    assert plain["ranker_seconds"] == 0 < summary["ranker_seconds"]
    assert summary_of(runs[1]) == summary
    job.assert_same(trainer.network.state_dict(), alone.network.state_dict())
    # Evaluations on the way are the network's.
    logs = [job.lines(folder / "run", "eval/p_at_1") for folder in runs]
    assert [line["step"] for line in logs[0]] == [5, 10, 15, 16]
    for one, other in zip(*logs, strict=True):
        assert comparable(one) == comparable(other) != {}
    assert job.steps(runs[1] / "run", "reranked/p_at_1") == [16]
    assert not job.steps(runs[0] / "run", "reranked/p_at_1")


def test_training_seconds_are_all_of_training_and_its_parts_have_names(tmp_path):
    trainer, summary = finished(tmp_path, EnsembleRanker(), epochs="auto", max_steps=100)
    parts = ("network_seconds", "validation_seconds", "ranker_seconds")
    assert min(summary[name] for name in parts) >= 0  # A validation of few samples takes no time.
    assert min(summary["network_seconds"], summary["ranker_seconds"]) > 0
    assert summary["train_seconds"] == pytest.approx(sum(map(summary.get, parts)), abs=3e-3)
    # The log has the network's own, by which runs with and without a re-ranker are compared.
    seconds = trainer.counters.network_seconds
    assert seconds == pytest.approx(summary["network_seconds"], abs=1e-3)
    assert job.lines(tmp_path / "run", "train/loss")[-1]["train/seconds"] <= seconds
    assert summary["samples_per_second"] == pytest.approx(summary["samples"] / seconds, abs=0.1)


def test_a_trainer_evaluates_after_it_has_trained_but_trains_once(tmp_path):
    trainer = job.make_trainer(tmp_path, job.make_data(tmp_path), ranker=EnsembleRanker())
    trainer.fit()
    expected = job.lines(tmp_path / "run", "eval/p_at_1")[0]["eval/p_at_1"]
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"step": 1000, "train/loss": 0.5}\n')  # The run goes on in another process.
    before = job.files_of(tmp_path / "run")
    assert trainer.evaluate()["p_at_1"] == expected
    with pytest.raises(RuntimeError, match="has trained: make a new one with resume=True"):
        trainer.fit()
    assert job.files_of(tmp_path / "run") == before


def test_the_last_batch_is_short_and_all_samples_are_learnt_from(tmp_path):
    rows = [[i] for i in range(9)]
    split = split_of(rows, rows, 9, 9)
    data = SparseDataset("edges", split, split, 9, 9)
    network = SlideNetwork(9, [32], 9, partial(ActiveSampler, active=4, mode="per_sample"))
    start = network.first.weight.detach().clone()
    trainer = job.make_trainer(tmp_path, data, ActiveLoss("bce"), network=network, batch_size=4)
    trainer.fit()
    assert (trainer.step, trainer.counters.samples) == (6, 18)
    # A feature that one sample has moves if that sample was in a batch.
    assert (trainer.network.first.weight != start).any(1).all()


def test_one_thread_at_a_time_trains_a_network(tmp_path, monkeypatch):
    """Two of them ended the process: PyTorch frees gradients that the other one adds to."""
    data = job.make_data(tmp_path)
    trainer = job.make_trainer(tmp_path, data, epochs=1)
    (tmp_path / "other").mkdir()
    second = job.make_trainer(tmp_path / "other", data, network=trainer.network)
    model, done = Model(trainer.network), []
    calls = (
        second.fit,
        lambda: model.partial_fit(data.test.features, data.test.labels),
        lambda: add_outputs(trainer.network.output, 1),
    )

    def between_steps():
        with ThreadPoolExecutor(1) as other:
            for call in () if done else calls:
                with pytest.raises(RuntimeError, match="another thread is training or resizing"):
                    other.submit(call).result()
                done.append(call)
            other.submit(model.predict, data.test.features).result()

    monkeypatch.setattr(trainer.checkpoint, "check", between_steps)
    assert trainer.fit()["steps"] == 8
    assert len(done) == 3
    assert second.fit()["steps"] == 16  # As what was refused has changed nothing.
