"""The commands from outside: what they write and how they end."""

import gc
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from helpers import job
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import slide
from slide.config import build_trainer, command
from slide.data import synthetic, transform
from slide.data.describe import describe, folder_bytes
from slide.sampling import ActiveSampler, LSHProposer, SketchProposer, never
from slide.training.evaluation import precision_at_k
from slide.training.loop import TrainingLoop
from slide.utils.run_folders import LABEL_LENGTH, RUN_LOCK, label_of, release_folder

TAGS = {
    *("train/loss", "train/learning_rate", "speed/samples_per_second", "speed/rebuild_share"),
    *("selection/active_mean", "selection/recall", "selection/recall_without_labels"),
    *("selection/candidates", "selection/chance", "selection/never_updated"),
    *("selection/filled", "look_up/rows_seen"),
    *("eval/p_at_1", "eval/p_at_3", "eval/p_at_5"),
}


def test_what_a_run_leaves_behind(tmp_path, capsys):
    more = ["trainer.log_every=2", "trainer.recall_every=8", "trainer.eval_every=10"]
    job.main(*job.tiny(tmp_path, *more))
    run = tmp_path / "run"
    names = {path.name.partition(".out")[0] for path in run.iterdir()}
    expected = {"config.yaml", "metrics.jsonl", "events", "checkpoints", "summary.json"}
    parts = {f"{part}.safetensors" for part in ("network", "ranker", "index")}
    assert names == expected | parts | {"README.md", "model.json", "run.lock"}

    config = OmegaConf.load(run / "config.yaml")
    assert "${" not in (run / "config.yaml").read_text(), "a key is not resolved"
    assert config.sampler.proposer.num_tables == config.hash.num_tables == 4
    assert config.run_dir == str(run)

    events = EventAccumulator(str(run))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= TAGS
    assert job.steps(run, "train/loss") == list(range(2, 17, 2))
    assert job.steps(run, "selection/recall") == [8, 16]
    assert job.steps(run, "eval/p_at_1") == [10, 16]
    assert 0 < job.lines(run, "selection/recall")[-1]["selection/recall"] <= 1

    summary = json.loads((run / "summary.json").read_text())
    assert summary["dataset"] == "synthetic"
    assert (summary["features"], summary["labels"]) == (60, 80)
    assert (summary["samples"], summary["epochs"], summary["steps"]) == (240, 2, 16)
    assert summary["evaluated_on"] == "test"
    assert 32 <= summary["active_mean"] < 60
    assert summary["peak_rss_mb"] > 50
    assert {"python", "torch", "numpy", "numba"} <= set(summary["versions"])
    network, final = (job.lines(run, f"{group}/p_at_1")[-1] for group in ("eval", "reranked"))
    for k in (1, 3, 5):
        assert summary[f"network_p_at_{k}"] == pytest.approx(network[f"eval/p_at_{k}"], abs=1e-6)
        assert summary[f"p_at_{k}"] == pytest.approx(final[f"reranked/p_at_{k}"], abs=1e-6)
    expected = "  ".join(f"P@{k} {summary[f'p_at_{k}']:.4f}" for k in (1, 3, 5))
    assert capsys.readouterr().out.splitlines()[-1] == f"{expected}  {run}"


def interrupt_at(monkeypatch, step, times, number=signal.SIGINT):
    """Send Ctrl-C, or another signal, in the midst of a step."""
    whole = TrainingLoop.update

    def update(self, loss):
        if self.counters.step == step:
            for _ in range(times):
                signal.raise_signal(number)
        return whole(self, loss)

    monkeypatch.setattr(TrainingLoop, "update", update)


def test_settings_have_no_dashes(capsys):
    with pytest.raises(SystemExit) as end:
        job.main("--sampler=lsh")
    assert end.value.code == 2
    assert "arguments: --sampler=lsh\nsettings have no dashes: " in capsys.readouterr().err


@pytest.mark.parametrize("run", [job.main, job.data])
def test_the_version_is_slide_s(capsys, run):
    run("--version")
    assert capsys.readouterr().out == f"slide {slide.__version__}\n"


def test_hydra_s_options_are_hydra_s(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job.main("optimizer.lr=0.25", "--cfg", "job", "trainer.max_steps=7")
    shown = OmegaConf.create(capsys.readouterr().out)
    assert (shown.optimizer.lr, shown.trainer.max_steps) == (0.25, 7)
    job.main("run_dir=a_lr=0.1", "--cfg", "job")  # A path that Hydra reads only in quotes.
    assert OmegaConf.create(capsys.readouterr().out).run_dir == "a_lr=0.1"
    assert shown.keys() == job.compose().keys()
    assert not list(tmp_path.iterdir())


RATES = ["0.1", "0.2"]


def shown_settings(run):
    """The settings and the names of scores that TensorBoard's page HParams has of a run."""
    (path,) = run.glob("events*")
    values = [each for event in EventFileLoader(str(path)).Load() for each in event.summary.value]
    found = {v.tag: HParamsPluginData.FromString(v.metadata.plugin_data.content) for v in values}
    scores = found["_hparams_/experiment"].experiment.metric_infos
    settings = found["_hparams_/session_start_info"].session_start_info.hparams
    return dict(settings), [each.name.tag for each in scores]


def test_a_sweep_leaves_only_its_runs(tmp_path, monkeypatch, capsys):
    """Its first run holds 700 MiB for a moment."""
    whole, sizes = command.build_trainer, [700 << 20, 0, 0]

    def build_trainer(*arguments):
        np.ones(sizes.pop(0), np.int8)
        return whole(*arguments)

    monkeypatch.setattr(command, "build_trainer", build_trainer)
    monkeypatch.chdir(tmp_path)
    arguments = [a for a in job.tiny(tmp_path) if not a.startswith("run_dir")]
    arguments.append("sampler.mode=per_sample")  # Else labels fill the set.
    job.main(*arguments, "trainer.max_steps=1", "-m", "optimizer.lr=0.1,0.2")
    said = capsys.readouterr()
    assert "job 2: optimizer.lr=0.2" in said.err
    lines = said.out.splitlines()
    assert [line.partition("  P@1 ")[0] for line in lines[:2]] == [
        f"optimizer.lr={r}" for r in RATES
    ]
    assert lines[2].split()[:5] == ["optimizer.lr", "P@1", "P@3", "P@5", "seconds"]
    columns = "looked up  recall  by chance  rows read  directions  tables  K  rebuilds"
    assert f" {columns} " in lines[2]
    assert [line.split()[0] for line in lines[3:]] == RATES
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "results"}
    runs = sorted((tmp_path / "results/synthetic").iterdir())
    assert [run.name.rpartition("_")[2] for run in runs] == [f"lr={rate}" for rate in RATES]
    shown = [shown_settings(run) for run in runs]
    assert [list(settings) for settings, _ in shown] == [["optimizer.lr"]] * 2
    assert shown[1][0]["optimizer.lr"].number_value == 0.2
    scores = [f"{part}/p_at_{k}" for part in ("eval", "reranked") for k in (1, 5)]
    assert shown[0][1] == scores
    if Path("/proc/self/clear_refs").exists():
        peaks = [json.loads((run / "summary.json").read_text())["peak_rss_mb"] for run in runs]
        assert 50 < peaks[1] < peaks[0] - 300
    job.main(*arguments, "trainer.max_steps=1", "ranker=none", f"run_dir={tmp_path}/alone")
    assert shown_settings(tmp_path / "alone")[1] == scores[:2]
    assert job.failure("-m", "optimizer.lrr=1,2").startswith("error: there is no key optimizer.lrr")
    assert "quote each path" in job.failure("-m", "resume=a_lr=0.1,b_lr=0.2")


def test_jobs_of_a_sweep_that_differ_in_seed_alone_are_one_line():
    sweep = command.Sweep(["seed=1,2", "loss=bce,softmax"])
    for loss, seed, score in (("bce", 1, 0.5), ("bce", 2, 0.25), ("softmax", 1, 0.125)):
        words = [f"seed={seed}", f"loss={loss}"]
        summary = {"p_at_1": score, "p_at_3": 0, "train_seconds": 2.0}
        sweep.outcomes.append(command.Outcome(words, summary, f"runs/{loss} {seed}"))
    sweep.outcomes.append(command.Outcome(["seed=2", "loss=softmax"], None, "error: no space"))
    lines = [re.split("  +", line) for line in sweep.table().splitlines()]
    assert lines == [
        ["seed", "loss", "P@1", "seconds", "folder"],
        ["1, 2", "bce", "0.3750 ± 0.1768", "2.0", "runs/bce 1 and 1 other seed"],
        ["1", "softmax", "0.1250", "2.0", "runs/softmax 1"],
        ["2", "softmax", "error: no space"],
    ]


@pytest.mark.parametrize(
    ("launcher", "key"), [([], "hash.K"), (["hydra/launcher=basic"], "optimizer.lr")]
)
def test_a_failing_job_does_not_end_a_sweep(tmp_path, capsys, launcher, key):
    """Keys appear as they were typed, also where a letter stands for one."""
    arguments = [*job.tiny(tmp_path, "sampler=lsh"), "trainer.max_steps=1", "ranker=none"]
    arguments += [*launcher, *[f"hydra.sweep.dir={tmp_path}/sweep"] * len(launcher)]
    message = job.failure("-m", *arguments, f"{key}=-1,2")
    assert message == "error: 1 of 2 jobs failed"
    said = capsys.readouterr()
    assert f"error: {key} must " in said.err
    head, first, second = said.out.splitlines()[-3:]
    assert head.startswith(f"{key} ")
    assert first.startswith("-1 ")
    assert second.endswith(f"  {tmp_path}/run/{key.rpartition('.')[2]}=2")
    shown, _ = shown_settings(tmp_path / f"run/{key.rpartition('.')[2]}=2")
    assert list(shown) == [key]


@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=basic"]], ids=str)
def test_a_combination_that_cannot_be_does_not_end_a_sweep(tmp_path, capsys, launcher):
    words = [*job.tiny(tmp_path, "sampler=sketch"), "trainer.max_steps=1", "ranker=none", *launcher]
    words += [f"hydra.sweep.dir={tmp_path}/sweep"] * len(launcher)
    said = job.failure("-m", *words, "schedule=fixed,backoff,backof", "schedule.first=9")
    assert said == "error: 2 of 3 jobs failed"
    shown = capsys.readouterr()
    first, second, third = shown.out.splitlines()[-3:]
    told = "there is no key schedule.first (in schedule.first=9): first belongs to "
    told += "schedule=backoff; fixed has every, redraw_every, redraw_first"
    assert first.startswith("fixed ")
    assert first.endswith(f"  error: {told}")
    assert second.endswith(f"  {tmp_path}/run/schedule=backoff")
    told_choices = "choices of schedule are backoff, fixed, updates; did you mean backoff?"
    assert third.endswith(told_choices)
    assert shown.err.splitlines()[0] == f"warning   1 of 3 runs cannot be: {told}"
    assert job.failure("-m", *words, "schedule=fixed,fixed", "schedule.first=9,3").endswith(told)
    if launcher:
        said = job.failure("-m", *words, "seed=1,2", "hydra/launcher=mine")
        assert "Could not find 'hydra/launcher/mine'" in said
        return
    assert "word is no setting" in job.failure("-m", *words, "seed=1,2", "word")
    told = "error: hydra.sweep.dir=x has no effect: the folder of a run is run_dir=x"
    assert job.failure("-m", "seed=1,2", "hydra.sweep.dir=x") == told
    assert job.failure("-m", "--cfg", "job") == "error: --multirun and --cfg do not go together"


def test_an_interrupt_ends_a_sweep(tmp_path, monkeypatch, capsys):
    interrupt_at(monkeypatch, 0, times=1)
    message = job.failure("-m", *job.tiny(tmp_path), "seed=1,2")
    assert message.startswith("interrupted after step 1")
    assert "job 2" not in capsys.readouterr().err


@pytest.mark.usefixtures("interrupts_raise")
def test_a_signal_between_two_jobs_ends_a_sweep_with_its_table(monkeypatch, capsys):
    jobs = iter([({"p_at_1": 0.5}, "runs/1"), None])

    def run(*_):
        return next(jobs) or signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(command, "_compose_and_run", run)
    with pytest.raises(SystemExit) as ended:
        command.Sweep(["seed=1,2"]).run()
    assert ended.value.code == 143
    assert "0.5000" in capsys.readouterr().out


@pytest.mark.usefixtures("interrupts_raise")
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("slide.config.command.build_trainer", "interrupted before the first step"),
        (
            "slide.training.trainer.predict_split",
            "interrupted after step 20; python train.py resume=",
        ),
        ("slide.config.command.write_run_model", "interrupted after step 20; python train.py"),
    ],
)
def test_a_termination_outside_of_training(tmp_path, monkeypatch, place, said):
    monkeypatch.setattr(place, lambda *_: signal.raise_signal(signal.SIGTERM))
    status, message = job.ended(*job.tiny(tmp_path, "ranker=none"))
    assert status == 143
    assert message.startswith(said)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_after_the_step_with_a_checkpoint(tmp_path, monkeypatch, number, status):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    run = tmp_path / "run"
    interrupt_at(monkeypatch, 4, 1, number)
    found, message = job.ended(*job.tiny(tmp_path, "trainer.log_every=1", *job.UNRANKED))
    assert found == status
    expected = f"interrupted after step 5; python train.py resume={run} goes on"
    assert message.startswith(expected)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert job.checkpoint(run)["step"] == 5
    assert not (run / "summary.json").exists()
    job.main(f"resume={run}")
    assert job.steps(run, "train/loss") == list(range(1, 17))
    assert (run / "summary.json").exists()


@pytest.fixture
def interrupts_raise():
    """As in a terminal; a process in the background of a shell may ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts_raise")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_ends_at_once(tmp_path, monkeypatch, number):
    before = signal.getsignal(signal.SIGINT)
    interrupt_at(monkeypatch, 4, 2, number)
    more = ["trainer.checkpoint_every=3"]
    assert "after step 4" in job.failure(*job.tiny(tmp_path, *more))
    assert signal.getsignal(signal.SIGINT) is before
    assert job.checkpoint(tmp_path / "run")["step"] == 3


@pytest.mark.compiled_only  # Plain Python warns of each operation on infinity.
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("optimizer.lr=1e30", "lower optimizer.lr"),
        ("network.init_scale=1e38", "at step 1, before any update, .*network.init_scale"),
    ],
)
def test_divergence_is_said_in_one_sentence(tmp_path, word, said):
    message = job.failure(*job.tiny(tmp_path, word, "trainer.checkpoint_every=1", "ranker=none"))
    assert re.match(f"error: .*{said}", message)
    assert not (tmp_path / "run/summary.json").exists()


def test_a_taken_folder(tmp_path, monkeypatch):
    arguments = job.tiny(tmp_path, "trainer.max_steps=1", "ranker=none")
    job.main(*arguments)
    before = job.files_of(tmp_path / "run")
    monkeypatch.setattr("slide.data.sources.synthetic", None)  # No data are read.
    message = job.failure(*arguments)
    told = f"run_dir={tmp_path}/run holds a run: resume={tmp_path}/run goes on with it"
    assert message == f"error: {told}"
    assert job.files_of(tmp_path / "run") == before


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path):
    words = job.tiny(tmp_path, "dataset.test_samples=0")
    told = "error: the data set has no rows to evaluate on; dataset."
    assert job.failure(*words).startswith(told)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine.txt").touch()
    told = "error: the data set has no training rows"
    assert job.failure(*words, "dataset.train_samples=0").startswith(told)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_a_folder_that_is_taken_while_data_are_read(tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr("slide.config.build.hold_folder", lambda _: (run / "model.json").touch())
    message = job.failure(*job.tiny(tmp_path, "trainer.max_steps=1"))
    assert message == f"error: run_dir={run} holds a model: name a new folder"
    assert [path.name for path in run.iterdir()] == ["model.json"]


def test_a_part_that_there_is_not(tmp_path):
    said = job.failure(*job.tiny(tmp_path, "loss._target_=slide.Nope"))
    assert said.startswith("error: Error locating target 'slide.Nope'")
    assert said.endswith("(modules are looked for on PYTHONPATH)")


def test_what_a_run_says(tmp_path, capsys):
    job.main(*job.tiny(tmp_path, "ranker=none", "dataset.holdout=0.2", "optimizer.lr=1e6"))
    said = capsys.readouterr().err
    assert "150 training rows, 0.2 of them held out in place of the test rows" in said
    assert "scores of only 30 rows are rough" in said
    assert "no better than always the most frequent labels (P@1 0." in said
    assert "within the noise of 30 rows: is the" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            [],
            "{sets}; SimHash tables (K 4, L 8) over 300 outputs, 0 MB; rebuilt by schedule updates",
        ),
        (
            ["sampler=lsh", "hash.K=5", "hash.L=3", "sampler.mode=per_sample", "schedule=fixed"],
            "sets of 75 outputs for a sample; SimHash tables (K 5, L 3) over 300 outputs, 0 MB; "
            "rebuilt by schedule fixed",
        ),
        (
            [
                "hash=dwta",
                "sampler.mode=shared",
                "schedule=backoff",
                "sampler.candidate_share=null",
            ],
            "sets of 75 outputs for the batch; DWTA tables (K 1, L 8) over 300 outputs, 0 MB; "
            "rebuilt by schedule backoff",
        ),
        (
            ["sampler.candidate_share=null", "sampler.mode=per_sample", "sampler=sketch"],
            "sets of at least 75 outputs for a sample; a scan of 300 of 300 sketches; rebuilt by "
            "schedule updates",
        ),
        (
            ["sampler.candidate_share=null", "sampler.lookups=0"],
            "{sets}; labels of the batch and uniform draws from 300 outputs",
        ),
        (["sampler.lookups=0"], "{sets}; labels of the batch and uniform draws from 300 outputs"),
        (["sampler=uniform"], "{sets}; labels of the batch and uniform draws from 300 outputs"),
        (
            ["sampler=uniform", "sampler.group_size=8", "sampler.active=1_00"],
            "sets of 100 outputs for 8 samples; labels of the batch and uniform draws from 300 "
            "outputs",
        ),
        (
            ["sampler=sketch"],
            "{sets}; a scan of 300 of 300 sketches; rebuilt by schedule updates",
        ),
        (
            ["sampler=faiss", "sampler.proposer.factory=Flat"],
            "{sets}; FAISS index Flat over 300 outputs; rebuilt by schedule updates",
        ),
        (
            ["sampler=slide2020"],
            "{sets}; SimHash tables as published (K 6, L 50) over 300 outputs; rebuilt by schedule "
            "updates",
        ),
        (["sampler=full"], "FullSampler(all 300 outputs)"),
        (["sampler.active=all"], "FullSampler(all 300 outputs)"),
        (["sampler.active=300"], "sets of all 300 outputs"),
    ],
)
def test_the_line_about_the_sampler(tmp_path, capsys, words, said):
    """Sets, what fills them, and when that is rebuilt."""
    sizes = {"num_labels": 300, "num_features": 60, "nonzeros": 8, "labels_per_row": 2}
    sizes |= {"train_samples": 32, "test_samples": 8}
    config = job.compose(
        *(f"dataset.{name}={value}" for name, value in sizes.items()),
        *(f"dataset.cache={tmp_path}/cache", f"run_dir={tmp_path}/run", "network.hidden=[8]"),
        *("ranker=none", *words),
    )
    build_trainer(config).monitor.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    assert [line.split()[0] for line in lines[:3]] == ["data", "memory", "network"]
    assert lines[3] == f"sampler   {said.format(sets='sets of 75 outputs for 16 samples')}"


def test_the_sampler_of_many_outputs():
    """The default one, with the memory that its tables, codes and sketches take."""
    sampler = ActiveSampler(16, 300_000, LSHProposer, active=128, mode="grouped")
    sampler.update(torch.randn(300_000, 16), None, None)
    lsh = sampler.proposer
    assert isinstance(lsh, LSHProposer)
    held = [*lsh.tables.buckets, lsh.codes, lsh.sketches]
    size = round(sum(each.nbytes for each in held) / 1e6)
    assert sampler.description() == (
        "sets of 128 outputs for 16 samples; SimHash tables (K 14, L 8) over 300,000 outputs, "
        f"{size} MB; rebuilt by schedule updates"
    )
    scan = ActiveSampler(16, 300_000, SketchProposer, active=20, rebuild=never)
    told = "sets of 20 outputs for the batch; a scan of 65,536 of 300,000 sketches; rebuilt by "
    assert scan.description() == f"{told}schedule never"


def test_labels_of_folders():
    assert label_of(["network.hidden=[64]"]) == "hidden=_64_"
    assert label_of(["+a.b=1", "seed=2"]) == "b=1,seed=2"
    alike = [f"a_key_{i}=some_value_{i}" for i in range(5)]
    one, other = (label_of([*alike, f"seed={seed}"]) for seed in (1, 2))
    assert one != other, "they differ where what is cut off does"
    assert len(one) == len(other) == LABEL_LENGTH
    assert one.startswith("a_key_0=some_value_0,a_key_1=")


STEPS = {"tf_idf": True, "l2_norm": True, "hashed_features": 50, "min_label_count": 2}
OVERRIDES = [f"transform.{key}={str(value).lower()}" for key, value in STEPS.items()]


@pytest.mark.usefixtures("one_thread")
def test_the_model_has_the_precision_of_the_run(tmp_path):
    """On raw rows; scores of a run are about the labels that its transform left."""
    job.main(*job.tiny(tmp_path, *OVERRIDES))
    raw = job.make_data(tmp_path, **job.WITH_HELD)
    (steps,) = transform(raw, **STEPS).steps
    model = slide.load(tmp_path / "run")
    assert (model.num_features, model.num_labels) == (raw.num_features, raw.num_labels)
    assert model.settings["network"]["hidden"] == [8]
    assert "${" not in json.dumps(model.settings)
    ids, _ = model.predict(raw.test.features, k=5)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    numbers = np.full(raw.num_labels, -1)
    numbers[steps.label_ids] = np.arange(len(steps.label_ids))
    found = precision_at_k(numbers[ids], steps.labels(raw.test.labels), 5)
    assert found == pytest.approx(summary["p_at_5"], abs=1e-6)


def test_the_second_one_is_refused(tmp_path):
    """A new run, and one that is resumed."""
    run = tmp_path / "run"
    run.mkdir()
    for words in (job.tiny(tmp_path, *job.UNRANKED), [f"resume={run}"]):
        before = job.files_of(run)
        with FileLock(run / RUN_LOCK):  # As another process has it.
            said = job.failure(*words, "trainer.max_steps=2")
        assert said == f"error: another process is running in {run}: wait until it ends"
        assert job.files_of(run) == before | {Path(RUN_LOCK): b""}
        job.main(*words, "trainer.max_steps=1")
        gc.collect()
        release_folder(run)  # As if this process had ended.


def data_words(folder):
    sizes = [f"dataset.{name}={value}" for name, value in job.SIZES.items()]
    return [*sizes, f"dataset.cache={folder}"]


def data_failure(*words):
    message = job.failure(*words, run=job.data)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message.removeprefix("error: ")


def test_describe_prints_the_table_of_the_configured_set(tmp_path, capsys):
    job.data("describe", *data_words(tmp_path), "~transform.l2_norm")
    assert capsys.readouterr().out == describe(synthetic(**job.SIZES, cache=tmp_path))


def test_prepare_tells_where_the_arrays_lie_that_a_run_opens(tmp_path, capsys):
    job.data("prepare", *data_words(tmp_path / "cache"), "transform.l2_norm=true")
    path, _, size = capsys.readouterr().out.partition("  ")
    assert Path(path).parent == tmp_path / "cache"
    assert size == f"{folder_bytes(Path(path)) / 1e6:,.1f} MB\n"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert before.keys() > set(Path(path).glob("*.npy")), "the source and the result"
    job.main(*job.tiny(tmp_path, *job.UNRANKED, "transform.l2_norm=true", "trainer.max_steps=1"))
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cache/**/*.npy")}
    assert before == after


def test_mistakes_are_told_in_one_line(tmp_path):
    said = data_failure("prep", *data_words(tmp_path))
    assert said == "the command must be describe or prepare, not 'prep'"
    said = data_failure("prepare", "dataset=xmc", f"dataset.root={tmp_path}")
    assert f"{tmp_path}/train.txt is missing" in said


@pytest.mark.parametrize("words", [[], ["describe", "-h"]])
def test_the_usage_text(capsys, words):
    job.data(*words)
    shown = capsys.readouterr().out
    assert "python train.py --help explains" in shown
    assert all(f"python -m slide.data {name}" in shown for name in command.DATA_COMMANDS)


def test_a_process_of_its_own():
    words = [sys.executable, "-m", "slide.data", "describe", "dataset.seed=-1"]
    done = subprocess.run(words, cwd=job.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: dataset.seed must be a whole number of at least 0, not -1\n"


def test_keys_of_a_run_are_refused():
    said = r"^error: optimizer.lr=1: describe takes keys .*, such as dataset=table dataset.path="
    with pytest.raises(SystemExit, match=said):
        job.data("describe", "dataset.nonzeros=3", "optimizer.lr=1")


def test_the_largest_seed():
    assert job.failure(f"seed={2**64}") == f"error: seed must be below 2^64, not {2**64}"
    slide.runtime.set_deterministic(False, 2**64 - 1)
