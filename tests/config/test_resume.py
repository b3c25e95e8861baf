"""``resume=<folder>``: what a run keeps, what may change, what a crash leaves."""

import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import job
from omegaconf import OmegaConf

from slide import ActiveLoss
from slide.config import build_trainer, resumed
from slide.data import write_xmc
from slide.model import load
from slide.training.checkpoint import find_folders, last_checkpoint
from slide.utils.run_folders import release_folder


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run of two steps, with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("ended")
    more = ["trainer.max_steps=2", "trainer.checkpoint_every=1", "ranker=none"]
    job.main(*job.tiny(folder, *more))
    return folder / "run"


@pytest.mark.parametrize("folder", ["missing", ""])
def test_nothing_to_resume(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    path = Path(folder) / "config.yaml"
    assert job.failure(f"resume={folder}") == f"error: resume={folder}: there is no {path}"
    assert not list(tmp_path.iterdir())


def test_the_command_that_is_printed_goes_on(tmp_path, monkeypatch, capsys):
    """As a shell reads it, whatever the name of the folder."""
    place = tmp_path / "jürgen's (new)_lr=0.001,hidden=_8_"
    place.mkdir()
    job.stop_at(monkeypatch, 3)
    said = job.failure(*job.tiny(place, "trainer.checkpoint_every=2", "ranker=none"))
    printed = said.partition("python train.py ")[2].partition(" goes on")[0]
    assert job.failure(f"run_dir={place}/run").endswith(f": {printed} goes on with it")
    with pytest.raises(FileNotFoundError) as missing:
        load(place / "run")
    assert str(missing.value).endswith(f", {printed} goes on with it")
    job.main(*shlex.split(printed), "trainer.max_steps=5")
    assert "resumed   goes on after step 2\n" in capsys.readouterr().err
    assert job.checkpoint(place / "run")["step"] == 5
    job.main("-m", *shlex.split(printed), "trainer.max_steps=6,7")
    assert job.checkpoint(place / "run")["step"] == 7


def test_without_a_checkpoint_a_run_begins_again(tmp_path, monkeypatch, capsys):
    job.stop_at(monkeypatch, 2)
    said = job.failure(*job.tiny(tmp_path, "ranker=none"))
    assert said.endswith(f"resume={tmp_path}/run begins again")
    job.main(f"resume={tmp_path}/run", "trainer.max_steps=3")
    assert "resumed   no checkpoint: it begins again\n" in capsys.readouterr().err


def test_weights_are_on_the_disk_once(tmp_path):
    """Of the last step, in checkpoint and model; where an earlier step was better, of that, too."""
    run, name = tmp_path / "run", "network.safetensors"
    words = ["ranker=none", "trainer.patience=9", "trainer.checkpoint_every=20"]
    job.main(*job.tiny(tmp_path, *words, "trainer.epochs=7"))
    for step in (56, 64):
        (best,) = find_folders(run / "best")
        files = [run / name, best / name, last_checkpoint(run) / name]
        assert last_checkpoint(run).name.endswith(f"-step-{step}")
        weights = {path.read_bytes() for path in files}
        assert len({path.stat().st_ino for path in files}) == len(weights)
        before = files[-1].read_bytes()
        load(run).save(run)  # A file of its own, not the checkpoint's.
        assert files[-1].read_bytes() == before
        job.main(f"resume={run}", "trainer.epochs=8")


def test_with_resume_null_a_new_run_takes_all_words(tmp_path):
    own = ["optimizer.lr=0.5", "optimizer.input_rate=${.lr}"]
    words = ["trainer.max_steps=1", "ranker=none", *own]
    job.main("resume=null", *job.tiny(tmp_path, *words))
    assert job.checkpoint(tmp_path / "run")["step"] == 1
    assert OmegaConf.load(tmp_path / "run/config.yaml").optimizer.lr == 0.5
    job.main(f"resume={tmp_path}/run", "trainer.max_steps=2")
    command = OmegaConf.load(tmp_path / "run/config.yaml").command
    assert command.words[-3:] == [own[0], "optimizer.input_rate=0.5", "trainer.max_steps=2"]
    assert command.choices.sampler == "lsh"


@pytest.mark.parametrize(
    "argument",
    [
        *("sampler=uniform", "hash.num_tables=5", "~trainer.seed", "++lr_schedule.floor=0.5"),
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


def test_a_run_from_before_a_group_can_be_resumed(tmp_path, ended):
    path = shutil.copytree(ended, tmp_path / "run") / "config.yaml"
    saved = OmegaConf.load(path)
    del saved["schedule"]
    OmegaConf.save(saved, path)
    job.main(f"resume={tmp_path}/run", "trainer.max_steps=3")
    assert job.checkpoint(tmp_path / "run")["step"] == 3
    assert "schedule" in OmegaConf.load(path)


NO_REBUILD = {"_target_": "slide.sampling.never", "_partial_": True}


def saved_by_an_earlier_slide(path, rebuild=None, **proposer):
    """Change the configuration of a run to that of a run of slide 0.1.0."""
    saved = OmegaConf.load(path)
    del saved.network["prior_margin"], saved.sampler["group_size"], saved.sampler["lookups"]
    saved.sampler.rebuild = rebuild or NO_REBUILD
    saved.sampler.proposer = {**(saved.sampler.get("proposer") or {}), **proposer} or None
    saved.schedule.growth = None
    OmegaConf.save(saved, path)


@pytest.mark.parametrize("sampler", ["uniform", "lsh", "sketch"])
def test_the_run_of_an_earlier_slide_goes_on(tmp_path, sampler):
    """Without settings that came later, and with a schedule that no file names now."""
    words = [f"sampler={sampler}", "sampler.mode=shared", "schedule=backoff", "schedule.first=16"]
    words = words if sampler != "uniform" else words[:2]
    words += ["ranker=none", "trainer.max_steps=3", "trainer.checkpoint_every=3"]
    job.main(*job.tiny(tmp_path, *words))
    run = tmp_path / "run"
    before = job.checkpoint(run)
    saved_by_an_earlier_slide(run / "config.yaml")
    job.main(f"resume={run}", "trainer.max_steps=12")
    config = OmegaConf.load(run / "config.yaml")
    assert (config.network.prior_margin, config.sampler.mode) == (0, "shared")
    assert config.sampler.rebuild == NO_REBUILD
    after = job.checkpoint(run)
    assert after["step"] == 12
    rebuilds = [state["network"]["output._extra_state"]["rebuilds"] for state in (before, after)]
    assert rebuilds == ([0, 0] if sampler == "uniform" else [2, 2])


def test_biases_of_an_earlier_run_start_at_the_scores(tmp_path):
    """Where it had no step yet: it had no margin below them."""
    biases, run = [], tmp_path / "run"
    job.main(*job.tiny(tmp_path, "ranker=none", "trainer.max_steps=1"))
    for change in (False, True):
        if change:
            saved_by_an_earlier_slide(run / "config.yaml")
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        config = resumed(job.compose(f"resume={run}"), [f"resume={run}"])
        trainer = build_trainer(config)
        trainer.monitor.close()
        release_folder(run)
        biases.append(trainer.network.output.bias.detach().clone())
    torch.testing.assert_close(biases[0] + 0.1, biases[1], rtol=0, atol=1e-6)
    counts = np.bincount(trainer.train_split.labels.indices, minlength=80)
    shares = counts / len(trainer.train_split)
    assert biases[1].argmax() == shares.argmax()


def test_growth_of_an_earlier_run(tmp_path):
    """It could be null, which meant 0.7."""
    words = ["sampler=slide2020", "schedule=backoff", "hash.K=2", "hash.L=2", "ranker=none"]
    job.main(*job.tiny(tmp_path, *words, "trainer.max_steps=1"))
    path = tmp_path / "run/config.yaml"
    rebuild = OmegaConf.to_container(OmegaConf.load(path).sampler.rebuild)
    saved_by_an_earlier_slide(path, {**rebuild, "growth": None})
    job.main(f"resume={tmp_path}/run", "trainer.max_steps=3")
    assert OmegaConf.load(path).sampler.rebuild.growth == 0.7


def test_a_run_whose_sampler_is_gone(tmp_path, ended):
    path = shutil.copytree(ended, tmp_path / "run") / "config.yaml"
    saved_by_an_earlier_slide(path, _target_="slide.IndexProposer", best=8, most_seen=4096)
    before = job.files_of(tmp_path / "run")
    for more in ([], ["allow_targets=[slide.IndexProposer]"]):
        said = job.failure(f"resume={tmp_path}/run", "trainer.max_steps=3", *more)
        assert said == (
            f"error: {path} names slide.IndexProposer, which slide no longer has: start a new run"
        )
    assert job.files_of(tmp_path / "run") == before


def test_a_resumed_run_takes_what_may_change(tmp_path):
    more = ["trainer.max_steps=3", "trainer.log_every=1", "sampler.mode=per_sample"]
    rate = ["lr_schedule=constant", "optimizer.lr=0.001"]
    job.main(*job.tiny(tmp_path, *more, *rate, "ranker=none"))
    changes = ["trainer.max_steps=6", "optimizer.lr=0.25", "sampler.active=40"]
    job.main(f"resume={tmp_path}/run", *changes, "trainer.evaluation=index")
    config = OmegaConf.load(tmp_path / "run/config.yaml")
    assert (config.trainer.max_steps, config.optimizer.lr, config.sampler.active) == (6, 0.25, 40)
    assert config.trainer.log_every == 1
    log = job.lines(tmp_path / "run", "train/loss")
    assert [line["train/learning_rate"] for line in log] == [0.001] * 3 + [0.25] * 3
    assert [line["selection/active_mean"] for line in log] == [32] * 3 + [40] * 3
    job.main(f"resume={tmp_path}/run", "trainer.max_steps=7")
    rates = [line["train/learning_rate"] for line in job.lines(tmp_path / "run", "train/loss")]
    assert rates[-1] == 0.25, "what was changed once stays"
    said = job.failure(f"resume={tmp_path}/run", "trainer.max_steps=8", "selection.active=64")
    assert "there is no key selection.active" in said


def test_a_limit_that_lies_behind_is_said(tmp_path, capsys):
    job.main(*job.tiny(tmp_path, "trainer.max_steps=6", "ranker=none"))
    job.main(f"resume={tmp_path}/run")
    assert "no training is left" not in capsys.readouterr().err
    job.main(f"resume={tmp_path}/run", "trainer.max_steps=5")
    assert "step 6 is past the last, 5: no training is left" in capsys.readouterr().err


def test_files_may_move_and_other_rows_are_refused(tmp_path):
    here, there, run = tmp_path / "here", tmp_path / "there", tmp_path / "run"
    data = job.make_data(tmp_path, **job.WITH_HELD)
    here.mkdir()
    for name, split in (("train.txt", data.train), ("test.txt", data.test)):
        write_xmc(here / name, split)
    own = ("dataset.num", "dataset.nonzeros", "dataset.labels_per", "dataset.train", "dataset.test")
    words = [word for word in job.tiny(tmp_path) if not word.startswith(own)]
    words += ["dataset=xmc", f"dataset.root={here}"]
    job.main(*words, "ranker=none", "trainer.max_steps=3")

    head, *lines = (here / "train.txt").read_text().splitlines(keepends=True)
    (here / "train.txt").write_text("".join([head, *lines[::-1]]))
    before = job.files_of(run)
    message = job.failure(f"resume={run}", "trainer.max_steps=5")
    assert re.search(r"is of another run: its checksum of the training rows is \w+, not", message)
    assert job.files_of(run) == before

    (here / "train.txt").write_text("".join([head, *lines]))
    here.rename(there)
    job.main(f"resume={run}", f"dataset.root={there}", "trainer.max_steps=5")
    assert job.checkpoint(run)["step"] == 5
    assert OmegaConf.load(run / "config.yaml").dataset.root == str(there)


def test_the_folder_of_a_run_may_be_copied(tmp_path):
    run, copy = tmp_path / "run", tmp_path / "there" / "copy"
    job.main(*job.tiny(tmp_path, "ranker=none", "trainer.max_steps=3"))
    shutil.copytree(run, copy)
    job.main(f"resume={run}", "trainer.max_steps=5")
    expected = job.checkpoint(run)
    shutil.rmtree(run)
    job.main(f"resume={copy}", "trainer.max_steps=5")
    job.assert_same(job.checkpoint(copy), expected)
    assert not run.exists()


class Command:
    """Writes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


FOREIGN = {
    "loss": {"_target_": "numpy.load", "file": "RUN/extra.npy", "allow_pickle": True},
    "sampler": {"_target_": "os.system", "_args_": ["touch RUN/ran"]},
    "dataset.x": {"_partial_": True, "more": [[{"_target_": "subprocess.getoutput"}]]},
    "ranker": {"_target_": "slide.data.write_xmc", "path": "RUN/ran"},
    "network.x": {"_target_": "slide.runtime.os.system", "command": "touch RUN/ran"},
    "dataset.name": {"_target_": "slide.data.xmc", "root": "RUN/ran"},
    "dataset.fetch": {"_target_": "slide.data.download", "mirrors": [[{"url": "http://a/ran"}]]},
}


def save_resolved(config, run):
    """As a run does it."""
    text = OmegaConf.to_yaml(config, resolve=True).replace("RUN/", f"{run}/")
    (run / "config.yaml").write_text(text)


@pytest.mark.parametrize("key", FOREIGN)
def test_the_folder_of_a_stranger_runs_nothing(tmp_path, key):
    run = tmp_path / "run"
    run.mkdir()
    np.save(run / "extra.npy", np.array([Command(run / "ran")], object), allow_pickle=True)
    saved = job.compose(*job.tiny(tmp_path), f"run_dir={run}", f"+allow_targets={TRUSTED}")
    OmegaConf.set_struct(saved, False)
    OmegaConf.update(saved, key, FOREIGN[key], merge=False)
    save_resolved(saved, run)
    before = job.files_of(run)
    said = job.failure(f"resume={run}")
    target = "subprocess.getoutput" if key == "dataset.x" else FOREIGN[key]["_target_"]
    assert said == (
        f"error: {run}/config.yaml names {target}, which is no part of slide's runs and would run: "
        f"if you trust this folder, allow it by allow_targets=[{target}]"
    )
    assert job.files_of(run) == before


@pytest.mark.parametrize(
    "text",
    [
        "loss: {_target_: '${oc.env:HARMFUL}'}",
        "\n".join(f"a{n}: ${{a{n + 1}}}${{a{n + 1}}}" for n in range(60)) + "\na60: xx",
        "a0: &a0 [1, 2]\n" + "\n".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]" for n in range(60)),
        "[1, 2]",
        "command: 5",
        "command: {choices: {}}",
        "command: {words: [], choices: [1]}",
        "command: {words: [3], choices: {}}",
        "a: " + "[" * 9999,
        "#" * (10**6 + 1),
        "a: !!int ''",
        "a: !!python/object/apply:os.system ['touch ran']",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin1"),
    ],
)
def test_a_configuration_that_no_run_has_written(tmp_path, monkeypatch, text):
    monkeypatch.setenv("HARMFUL", "os.system")
    (tmp_path / "config.yaml").write_text(text)
    said = job.failure(f"resume={tmp_path}")
    assert said.startswith(f"error: {tmp_path}/config.yaml is not the configuration of a run: ")
    assert "\n" not in said


def test_a_configuration_of_any_length_is_not_read_whole(tmp_path):
    (tmp_path / "config.yaml").touch()
    os.truncate(tmp_path / "config.yaml", 1 << 36)
    said = job.failure(f"resume={tmp_path}")
    assert said.endswith("the configuration of a run: it has more than 67,108,864 bytes")


def test_the_folder_of_a_stranger_does_not_choose_where_arrays_are_written(tmp_path, monkeypatch):
    """Who resumes names the place, or it is a cache already."""
    monkeypatch.chdir(tmp_path)
    job.main(*job.tiny(tmp_path, "trainer.max_steps=1", "ranker=none"))
    other = tmp_path / "home/.config"
    path = tmp_path / "run/config.yaml"
    text = path.read_text()
    for place in (other, "datasets/../home/.config", "~/arrays", "home/.config"):
        path.write_text(text.replace(f"cache: {tmp_path}/cache", f"cache: {place}"))
        said = job.failure("resume=run", "trainer.max_steps=2")
        assert said.startswith(
            f"error: run/config.yaml names dataset.cache={place}, where no cache"
        )
    assert not list(tmp_path.glob("home*"))
    job.main("resume=run", "trainer.max_steps=2", f"dataset.cache={other}")
    job.main("resume=run", "trainer.max_steps=3")
    path.write_text(text.replace(f"cache: {tmp_path}/cache", "cache: datasets/mine/cache"))
    job.main("resume=run", "trainer.max_steps=4")
    assert job.checkpoint(tmp_path / "run")["step"] == 4


def test_nothing_is_fetched_to_where_the_folder_of_a_stranger_says(tmp_path):
    saved = job.compose("dataset=bibtex", f"dataset.root={tmp_path}/home", f"run_dir={tmp_path}")
    save_resolved(saved, tmp_path)
    words = ["dataset=bibtex", f"resume={tmp_path}"]
    assert resumed(job.compose(*words), words[1:]).dataset.fetch is None
    words.append(f"dataset.root={tmp_path}/home")
    assert resumed(job.compose(*words), words[1:]).dataset.fetch is not None


@pytest.mark.parametrize("name", ["run.lock", "metrics.jsonl", "checkpoints", "more/report.html"])
def test_a_resumed_run_follows_no_links(tmp_path, ended, name):
    """The log would be appended to what it names, and a lock would empty it."""
    mine, link = tmp_path / "mine", shutil.copytree(ended, tmp_path / "run") / name
    mine.write_text("mine")
    link.parent.mkdir(exist_ok=True)
    shutil.rmtree(link) if link.is_dir() else link.unlink(missing_ok=True)
    link.symlink_to(mine)
    said = job.failure(f"resume={tmp_path}/run", "trainer.max_steps=3")
    assert said.startswith(f"error: {link} is no file and no folder")
    assert mine.read_text() == "mine"


# What the folder itself allows does not count.
TRUSTED = "[numpy.load,os.system,subprocess.getoutput,slide.data.write_xmc,slide.data.download,"
TRUSTED += "slide.data.xmc]"


def own_loss(name, hard_fraction):
    """A part of a user's own."""
    return ActiveLoss(name, hard_fraction)


def test_a_part_of_the_user_s_own_is_allowed_by_name(tmp_path):
    target = f"{__name__}.own_loss"
    job.main(*job.tiny(tmp_path, "trainer.max_steps=1", "ranker=none", f"loss._target_={target}"))
    resume = [f"resume={tmp_path}/run", "trainer.max_steps=2"]
    assert f"names {target}, which is no part of slide" in job.failure(*resume)
    assert "allow_targets must be a list, " in job.failure(*resume, f"allow_targets={target}")
    job.main(*resume, f"allow_targets=[{target}]")
    assert job.checkpoint(tmp_path / "run")["step"] == 2
    assert f"names {target}, which is no part of slide" in job.failure(*resume)


@pytest.mark.parametrize(
    ("name", "damage"), [("checkpoint.json", b""), ("network.safetensors", b"not a checkpoint")]
)
def test_a_damaged_checkpoint_is_not_overwritten(tmp_path, ended, name, damage):
    run = shutil.copytree(ended, tmp_path / "run")
    last = last_checkpoint(run)
    path = last / name
    path.write_bytes(damage)
    message = job.failure(f"resume={run}", "trainer.max_steps=3")
    assert message.startswith(f"error: {path} has ")
    assert message.endswith(f"; without {last} the run goes on from {run}/checkpoints/1-step-1")
    assert path.read_bytes() == damage
    shutil.rmtree(last)
    job.main(f"resume={run}", "trainer.max_steps=3")
    assert job.checkpoint(run)["step"] == 3
