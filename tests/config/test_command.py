"""``python train.py`` from outside: what it writes, how it ends, what it says of mistakes."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import job
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from slide.files import read_tensors
from slide.training.trainer import Trainer

TAGS = {
    *("train/loss", "train/learning_rate", "speed/samples_per_second", "speed/rebuild_share"),
    *("selection/active_mean", "selection/recall"),
    *("tables/non_empty_share", "tables/largest_bucket"),
    *("eval/p_at_1", "eval/p_at_3", "eval/p_at_5"),
}
SUMMARY = {
    *("dataset", "samples", "features", "labels", "epochs", "steps", "train_seconds"),
    *("eval_seconds", "samples_per_second", "p_at_1", "p_at_3", "p_at_5", "active_mean"),
    *("rebuild_seconds", "peak_rss_mb", "versions"),
}


def test_what_a_run_leaves_behind(tmp_path, capsys):
    more = ["trainer.log_every=2", "trainer.recall_every=8", "trainer.eval_every=10"]
    job.main(*job.tiny(tmp_path, *more, *job.SAMPLED))
    run = tmp_path / "run"
    names = {path.name.partition(".out")[0] for path in run.iterdir()}
    expected = {"config.yaml", "metrics.jsonl", "events", "checkpoint.pt", "summary.json"}
    assert names == expected | {"ranker.pt"}

    config = OmegaConf.load(run / "config.yaml")
    assert "${" not in (run / "config.yaml").read_text(), "a key is not resolved"
    assert config.sampler.family.num_tables == config.hash.num_tables == 4
    assert config.run_dir == str(run)

    events = EventAccumulator(str(run))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= TAGS
    for tag in events.Tags()["scalars"]:
        written = [(line["step"], line[tag]) for line in job.lines(run, tag)]
        read = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in read] == [step for step, _ in written]
        values = [value for _, value in written]
        assert [value for _, value in read] == pytest.approx(values, rel=1e-5), tag
    assert job.steps(run, "train/loss") == list(range(2, 17, 2))
    assert job.steps(run, "selection/recall") == [8, 16]
    assert job.steps(run, "eval/p_at_1") == [10, 16]
    last = job.lines(run, "speed/rebuild_share")[-1]
    assert 0 <= last["speed/rebuild_share"] < 1
    last = job.lines(run, "tables/largest_bucket")[-1]
    assert 1 <= last["tables/largest_bucket"] <= 80
    assert 0 < last["tables/non_empty_share"] <= 1
    assert 0 < last["selection/recall"] <= 1

    summary = json.loads((run / "summary.json").read_text())
    assert set(summary) >= SUMMARY
    assert summary["dataset"] == "synthetic"
    assert (summary["features"], summary["labels"]) == (60, 80)
    assert (summary["samples"], summary["epochs"], summary["steps"]) == (240, 2, 16)
    assert summary["evaluated_on"] == "test"
    assert 32 <= summary["active_mean"] < 60
    assert summary["train_seconds"] > summary["rebuild_seconds"] >= 0
    assert summary["samples_per_second"] > 0
    assert summary["peak_rss_mb"] > 50
    assert {"python", "torch", "numpy", "numba"} <= set(summary["versions"])
    network, final = (job.lines(run, f"{group}/p_at_1")[-1] for group in ("eval", "reranked"))
    for k in (1, 3, 5):
        assert summary[f"network_p_at_{k}"] == pytest.approx(network[f"eval/p_at_{k}"], abs=1e-6)
        assert summary[f"p_at_{k}"] == pytest.approx(final[f"reranked/p_at_{k}"], abs=1e-6)
    expected = "  ".join(f"P@{k} {summary[f'p_at_{k}']:.4f}" for k in (1, 3, 5))
    assert capsys.readouterr().out.splitlines()[-1] == f"{expected}  {run}"


def test_run_folders_by_default_do_not_collide(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "2020-01-02")
    arguments = [a for a in job.tiny(tmp_path, *job.SAMPLED) if not a.startswith("run_dir")]
    for name in ("2020-01-02", "2020-01-02_1", "2020-01-02_2"):
        job.main(*arguments, "trainer.max_steps=1")
        assert (tmp_path / "results/synthetic" / name / "summary.json").exists()
        assert capsys.readouterr().out.endswith(f"  results/synthetic/{name}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "results"}


@pytest.mark.compiled_only
def test_a_killed_run_can_be_resumed(tmp_path):
    command = [sys.executable, str(job.ROOT / "train.py")]
    more = ["trainer.checkpoint_every=1", "trainer.log_every=1", "trainer.epochs=100000"]
    # Weights and moments of some megabytes, so that most of the time goes into checkpoints.
    arguments = job.tiny(tmp_path, *more, *job.SAMPLED, "network.hidden=[8192]")
    run = tmp_path / "run"
    with (tmp_path / "killed.log").open("w") as log:
        process = subprocess.Popen(
            [*command, *arguments], cwd=tmp_path, stdout=log, stderr=log, text=True
        )
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            if (run / "metrics.jsonl").exists() and len(job.steps(run, "train/loss")) >= 6:
                break
        process.kill()
        assert process.wait() == -signal.SIGKILL, (tmp_path / "killed.log").read_text()
    done = read_tensors(run / "checkpoint.pt")["step"]
    assert 5 <= done < 1000
    resumed = subprocess.run(
        [*command, f"resume={run}", f"trainer.max_steps={done + 4}"],
        **{"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120},
    )
    assert resumed.returncode == 0, resumed.stderr
    assert re.fullmatch(
        r"P@1 0\.\d{4}  P@3 0\.\d{4}  P@5 0\.\d{4}  " + re.escape(str(run)),
        resumed.stdout.splitlines()[-1],
    )
    assert job.steps(run, "train/loss") == list(range(1, done + 5))
    assert job.steps(run, "eval/p_at_1") == [done + 4]
    assert json.loads((run / "summary.json").read_text())["steps"] == done + 4
    assert not list(run.glob("*.tmp"))
    events = EventAccumulator(str(run))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, done + 5))


def interrupt_at(monkeypatch, step, times):
    """Send Ctrl-C in the midst of a step."""
    whole = Trainer.update

    def update(self, loss):
        if self.step == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return whole(self, loss)

    monkeypatch.setattr(Trainer, "update", update)


def test_an_interrupt_ends_after_the_step_with_a_checkpoint(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    run = tmp_path / "run"
    interrupt_at(monkeypatch, 4, times=1)
    message = job.failure(*job.tiny(tmp_path, "trainer.log_every=1", *job.SAMPLED))
    expected = f"interrupted after step 5; python train.py resume={run} goes on"
    assert message.startswith(expected)
    assert signal.getsignal(signal.SIGINT) is before
    assert read_tensors(run / "checkpoint.pt")["step"] == 5
    assert not (run / "summary.json").exists()
    job.main(f"resume={run}")
    assert job.steps(run, "train/loss") == list(range(1, 17))
    assert (run / "summary.json").exists()


def test_a_second_interrupt_ends_at_once(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    interrupt_at(monkeypatch, 4, times=2)
    more = ["trainer.checkpoint_every=3", *job.SAMPLED]
    assert "after step 4" in job.failure(*job.tiny(tmp_path, *more))
    assert signal.getsignal(signal.SIGINT) is before
    assert read_tensors(tmp_path / "run/checkpoint.pt")["step"] == 3


@pytest.mark.compiled_only  # Plain Python warns of each operation on infinity.
def test_divergence_is_said_in_one_sentence(tmp_path):
    more = ["optimizer.lr=1e30", "trainer.checkpoint_every=1", *job.SAMPLED]
    message = job.failure(*job.tiny(tmp_path, *more))
    assert message.startswith("error: ")
    assert "lower optimizer.lr" in message
    assert not (tmp_path / "run/summary.json").exists()


# Arguments, and what the message must show beside the name of the last key.
IMPOSSIBLE = [
    *(f"seed={value}" for value in ("-1", "x", "1.5")),
    *(f"runtime.threads={value}" for value in ("-1", "100000", "two", "true", "1.5")),
    *(f"runtime.deterministic={value}" for value in ("2", "maybe")),
    *("dataset.num_features=0", "dataset.num_labels=x", "dataset.train_samples=-1"),
    *("dataset.test_samples=1.5", "dataset.nonzeros=many", "dataset.nonzeros=61"),
    *("dataset.labels_per_row=0", "dataset.popularity=-1", "dataset.feature_popularity=x"),
    *("dataset.noise=1", "dataset.seed=-1"),
    *("dataset=bibtex dataset.root=7", "dataset=bibtex dataset.lenient=5"),
    *(f"network.hidden={value}" for value in ("[]", "8", "[8,0]", "[8,x]", "null", "[1.5]")),
    *(f"network.hidden_active={value}" for value in ("4", "[4,5]", "[0]", "[x]", "null")),
    *(f"network.dropout={value}" for value in ("1", "-0.1", "x", "nan")),
    "network.prior_bias=2",
    *(f"hash.hashes_per_table={value}" for value in ("0", "25", "x", "2.5")),
    *(f"hash.num_tables={value}" for value in ("0", "x", "null")),
    *(f"hash.bucket_capacity={value}" for value in ("0", "-3", "x")),
    *("hash.bucket_policy=lifo", "hash.norm=l2", "hash.center=3"),
    *("hash=dwta hash.bin_size=6", "hash=dwta hash.hashes_per_table=9"),
    *(f"sampler.mode={value}" for value in ("both", "1", "null")),
    *(f"sampler.active={value}" for value in ("0", "-1", "1.5", "x", "null")),
    *(f"sampler.candidate_share={value}" for value in ("2", "-0.1", "x", "nan")),
    *(f"sampler.weighting={value}" for value in ("ht", "true")),
    *("sampler.seed=-1", "sampler=faiss sampler.kind=annoy", "sampler=faiss sampler.probes=0"),
    *("sampler=faiss sampler.neighbours=x", "sampler=uniform sampler.active=0"),
    *(f"schedule.first={value}" for value in ("0", "1.5", "x")),
    *(f"schedule.growth={value}" for value in ("-1", "1000", "x", "nan")),
    *("schedule.redraw_every=-1", "schedule=fixed schedule.every=-5"),
    *("schedule=fixed schedule.every=x", "schedule=fixed schedule.redraw_every=0.5"),
    *(f"optimizer.lr={value}" for value in ("0", "-1", "x", "nan", "inf", "null")),
    *(f"optimizer.betas={value}" for value in ("0.9", "[0.9]", "[0.9,1]", "[-1,0.9]", "[a,b]")),
    *("optimizer.eps=0", "optimizer.weight_decay=-1", "optimizer.correct_skipped=5"),
    *("lr_schedule.warmup=1", "lr_schedule.warmup=x", "lr_schedule=linear lr_schedule.floor=2"),
    *("lr_schedule=linear lr_schedule.floor=x", "lr_schedule=linear lr_schedule.warmup=-1"),
    *(f"trainer.{key}=0" for key in ("batch_size", "epochs", "log_every")),
    *(
        f"trainer.{key}={value}"
        for key, value in zip(
            ("max_steps", "eval_every", "eval_samples", "checkpoint_every", "recall_every"),
            ("-1", "1.5", "x", "null", "true"),
            strict=True,
        )
    ),
    *("trainer.epochs=1.5", "trainer.batch_size=x", "trainer.seed=-1"),
    *("trainer.holdout=1", "trainer.holdout=-0.1", "trainer.holdout=x", "trainer.evaluation=fast"),
    *("sampler=full trainer.evaluation=lsh", "sampler=faiss network.hidden_active=[4]"),
    *("sampler=full network.hidden_active=[4]", "run_dir="),
]


@pytest.mark.parametrize("arguments", IMPOSSIBLE)
def test_impossible_values_are_named_before_data_are_read(tmp_path, arguments):
    *groups, setting = arguments.split(" ")
    key, value = setting.split("=")
    kept = job.tiny(tmp_path)
    if "dataset=bibtex" in groups:
        kept = [word for word in kept if not word.startswith("dataset")]
        kept.append(f"dataset.cache={tmp_path}/cache")
    message = job.quick_failure(*groups, *kept, setting)
    assert message.startswith("error: ")
    assert "\n" not in message
    assert re.search(rf"\b{key.rpartition('.')[2]}\b", message), message
    shown = {"null": "None", "true": "True", "": "''"}.get(value, value)
    # Of a list, one wrong entry may be shown.
    entries = [shown, shown.replace(",", ", "), *shown.strip("[]").split(",")]
    assert any(re.search(rf"(?<!\w){re.escape(entry)}(?!\w)", message) for entry in entries), (
        message
    )
    assert not list(tmp_path.iterdir()), "something was read or written"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("optimizer.lrr=1", "optimizer.lrr"),
        ("optimiser.lr=1", "optimiser.lr"),
        ("max_steps=1", "max_steps"),
        ("sampler=lhs", r"sampler/lhs'(.|\n)*faiss\n\s*full\n\s*lsh\n\s*uniform"),
        ("dataset=amazon", "dataset/amazon'"),
        ("solver=adam", "solver"),
    ],
)
def test_unknown_keys_and_choices(tmp_path, capsys, argument, message):
    with pytest.raises(SystemExit) as stopped:
        job.main(*job.tiny(tmp_path), argument)
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_a_taken_folder(tmp_path, monkeypatch):
    arguments = job.tiny(tmp_path, "trainer.max_steps=1", *job.SAMPLED)
    job.main(*arguments)
    before = (tmp_path / "run/checkpoint.pt").read_bytes()
    monkeypatch.setattr("slide.data.sources.synthetic", None)  # No data are read.
    message = job.failure(*arguments)
    assert (
        message
        == f"error: run_dir={tmp_path}/run holds a run: resume={tmp_path}/run goes on "
        + ("with it")
    )
    assert (tmp_path / "run/checkpoint.pt").read_bytes() == before
    (tmp_path / "file").touch()
    message = job.failure(*arguments, f"run_dir={tmp_path}/file")
    assert message == f"error: run_dir must be the path of a folder, not '{tmp_path}/file'"


@pytest.mark.parametrize("folder", ["missing", "", "7"])
def test_nothing_to_resume(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    path = Path(folder) / "config.yaml"
    assert job.failure(f"resume={folder}") == f"error: resume={folder}: there is no {path}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "argument",
    [
        *("sampler=uniform", "hash=dwta", "recipe=slide2020", "dataset=bibtex", "loss=bce"),
        *("network.hidden=[4]", "hash.num_tables=5", "+hash.bin_size=4", "schedule.first=3"),
        *("seed=5", "trainer.batch_size=4", "trainer.holdout=0.5", "trainer.seed=3"),
        *("optimizer.betas=[0.5,0.5]", "optimizer.correct_skipped=true", "run_dir=elsewhere"),
        *("dataset.num_labels=99", "sampler.mode=per_sample", "~trainer.seed"),
        *("++lr_schedule.floor=0.5", "+new.key=1"),
    ],
)
def test_a_resumed_run_keeps_its_groups_and_shapes(tmp_path, argument, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    config = ["hash: {num_tables: 4}", "lr_schedule: {warmup: 0.0}", "seed: 0"]
    (run / "config.yaml").write_text("\n".join(config))
    key = argument.lstrip("+").partition("=")[0]
    message = job.failure(f"resume={run}", argument)
    assert message == f"error: {argument}: a resumed run keeps its {key}; start a new one instead"
    assert (run / "config.yaml").read_text() == "\n".join(config)


def test_a_resumed_run_takes_what_may_change(tmp_path):
    more = ["trainer.max_steps=3", "trainer.log_every=1"]
    rate = ["lr_schedule=constant", "optimizer.lr=0.001"]
    job.main(*job.tiny(tmp_path, *more, *rate, *job.SAMPLED))
    changes = ["trainer.max_steps=6", "optimizer.lr=0.25", "sampler.active=40"]
    job.main(f"resume={tmp_path}/run", *changes, "trainer.evaluation=lsh")
    config = OmegaConf.load(tmp_path / "run/config.yaml")
    assert (config.trainer.max_steps, config.optimizer.lr, config.sampler.active) == (6, 0.25, 40)
    assert config.trainer.log_every == 1
    rates = [line["train/learning_rate"] for line in job.lines(tmp_path / "run", "train/loss")]
    assert rates == [0.001] * 3 + [0.25] * 3
    job.main(f"resume={tmp_path}/run", "trainer.max_steps=7")
    rates = [line["train/learning_rate"] for line in job.lines(tmp_path / "run", "train/loss")]
    assert rates[-1] == 0.25, "what was changed once stays"


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint"])
def test_a_damaged_checkpoint_is_not_overwritten(tmp_path, damage):
    job.main(*job.tiny(tmp_path, "trainer.max_steps=1", *job.SAMPLED))
    checkpoint = tmp_path / "run/checkpoint.pt"
    checkpoint.write_bytes(damage)
    message = job.failure(f"resume={tmp_path}/run", "trainer.max_steps=2")
    assert message.startswith(f"error: {checkpoint} is not a readable checkpoint")
    assert checkpoint.read_bytes() == damage


def test_help(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        job.main("--help")
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "python train.py [group=choice ...] [key=value ...]" in said
    assert "hash.bucket_policy" in said
    assert max(map(len, said.splitlines())) <= 100
    assert not list(tmp_path.iterdir())
