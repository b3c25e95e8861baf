"""Folders and files that somebody sent: nothing in them runs, and nothing waits for ever."""

import ast
import io
import json
import os
import re
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers import job
from helpers.caches import opening
from omegaconf import OmegaConf
from sklearn.base import clone

import slide
from slide import FullSampler, Model, SlideClassifier, SlideNetwork
from slide.config import resumed
from slide.config.compose import foreign_targets
from slide.model.folder import MODEL_FILE
from slide.predict import command as predict
from slide.utils.checks import printable
from slide.utils.figures import text_table
from slide.utils.files import json_digest, read_text
from slide.utils.progress_bar import ProgressBar


class Command:
    """Writes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def harmful(tmp_path):
    """The arguments of a call that runs a command, which makes the file ``ran``."""
    file = tmp_path / "extra.npy"
    np.save(file, np.array([Command(tmp_path / "ran")], object), allow_pickle=True)
    yield {"_target_": "numpy.load", "file": str(file), "allow_pickle": True}
    assert not (tmp_path / "ran").exists(), "a command of the folder ran"


@contextmanager
def soon(seconds=20):
    """What goes on for longer is an error, such as to wait for a pipe."""

    def late(*_):
        raise AssertionError("it is waited for")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# The configuration in the folder of a run.


def save_config(folder, *overrides, **changes):
    """The configuration of a run, as a run saves it, with other values of some keys."""
    saved = job.compose(*job.tiny(folder, *overrides))
    OmegaConf.set_struct(saved, False)
    for key, value in changes.items():
        OmegaConf.update(saved, key, value, merge=False)
    text = OmegaConf.to_yaml(saved, resolve=True)
    (folder / "config.yaml").write_text(text)
    return text


@pytest.mark.parametrize(
    "line",
    [
        r'name: "\x24{oc.env:HARMFUL}"',
        r'name: "\u0024{oc.env:HARMFUL}"',
        r'name: "\U00000024{oc.env:HARMFUL}"',
        r'name: "$\x7boc.env:HARMFUL}"',
        'name: "$\\\n    {oc.env:HARMFUL}"',
        r'name: ["a", {"b": "c\x24{oc.env:HARMFUL}"}]',
        r'"\x24{oc.env:HARMFUL}": 1',
        r'name: "\x3f??"',
    ],
)
def test_escapes_hide_no_reference(tmp_path, monkeypatch, line):
    monkeypatch.setenv("HARMFUL", "secret")
    text = save_config(tmp_path)
    (tmp_path / "config.yaml").write_text(text.replace("name: synthetic", line))
    said = job.failure(f"resume={tmp_path}")
    assert said.startswith(f"error: {tmp_path}/config.yaml is not the configuration of a run: ")
    assert said.endswith(": it refers to other values")


def test_what_was_checked_is_what_is_built(tmp_path, harmful):
    """A loss that depends on a size of batches, which was open while it was checked."""
    text = save_config(tmp_path, "ranker=none", **{"trainer.batch_size": None})
    loss = "${oc.create:${oc.decode:${oc.select:pick.b${trainer.batch_size}}}}"
    pick = {"bNone": "{_target_: slide.ActiveLoss, _args_: [softmax]}"}
    flow = f"{{_target_: numpy.load, file: {harmful['file']}, allow_pickle: true}}"
    pick |= {f"b{1 << n}": flow for n in range(10)}
    saved = {**OmegaConf.to_container(OmegaConf.create(text)), "loss": loss, "pick": pick}
    # JSON is YAML, in which a dollar may be spelt.
    (tmp_path / "config.yaml").write_text(json.dumps(saved).replace("${", r"\x24{"))
    job.make_data(tmp_path, **job.WITH_HELD)
    said = job.failure(f"resume={tmp_path}", "trainer.max_steps=1")
    assert said.endswith("is not the configuration of a run: it refers to other values")


def test_no_reference_is_left_in_a_resumed_configuration(tmp_path):
    """Neither of a group that the folder lacks, nor of words."""
    text = save_config(tmp_path)
    saved = OmegaConf.create(text)
    del saved["sampler"], saved["schedule"]
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(saved))
    words = [f"resume={tmp_path}", f"dataset.cache={tmp_path}/cache"]
    words.append("optimizer.lr=${sampler.candidate_share}")
    config = resumed(job.compose(words[0]), words)
    assert config.optimizer.lr == 0.25
    assert config.sampler.rebuild._target_ == "slide.sampling.by_updates"
    assert OmegaConf.to_container(config) == OmegaConf.to_container(config, resolve=True)


WRITES = ("Monitor", "Trainer", "CoreShare")


@pytest.mark.parametrize(
    ("key", "target"),
    [
        *(("loss", f"slide.training.{name}") for name in WRITES),
        *(("ranker.classifiers", f"slide.training.{name}") for name in WRITES),
        *(("loss", name) for name in ("slide.SlideNetwork", "slide.HashTables", "slide.CSRMatrix")),
        *(("dataset", f"slide.data.{name}") for name in ("SparseDataset", "write_xmc", "download")),
        *(("dataset", name) for name in ("slide.training.Monitor", "slide.data.sources.xmc.xmc")),
        *(("loss", name) for name in ("slide.save", "slide.Model", "slide.serve", "slide", "")),
    ],
)
def test_a_saved_run_is_built_of_parts_of_runs_only(tmp_path, key, target):
    save_config(tmp_path, **{key: {"_target_": target, "folder": f"{tmp_path}/written"}})
    said = job.failure(f"resume={tmp_path}")
    assert said == (
        f"error: {tmp_path}/config.yaml names {target}, which is no part of slide's runs and would "
        f"run: if you trust this folder, allow it by allow_targets=[{target}]"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_parts_of_runs_may_be_called_by_each_of_their_names():
    """Also those that no file of ``conf/`` names, such as another base scorer."""
    names = ["slide.LSHProposer", "slide.sampling.LSHProposer", "slide.sampling.never"]
    names += ["slide.ranking.Neighbours", "slide.ranking.ItemSimilarity", "slide.DWTA"]
    pages = [OmegaConf.load(path) for path in job.CONF.rglob("*.yaml")]
    targets = [page["_target_"] for page in pages if "_target_" in page]
    names += [name for name in targets if not name.startswith("slide.data.")]
    tree = OmegaConf.create({"loss": [{"_target_": name} for name in names]})
    assert foreign_targets(OmegaConf.create({"x": tree})) == []


# The parameters of a classifier.


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The folder of a classifier, and its rows."""
    folder = tmp_path_factory.mktemp("classifier") / "model"
    rows = np.eye(6, dtype=np.float32)[[0, 1, 2] * 4], ["a", "b", "c"] * 4
    own = {"settings": {"loss.hard_fraction": 0.5}}
    SlideClassifier(hidden=8, epochs=1, ranker=None, random_state=0, **own).fit(*rows).save(folder)
    return folder, rows


def with_parameters(folder, copy, **parameters):
    """A copy of a model with other parameters, and a hash that fits."""
    path = shutil.copytree(folder, copy) / MODEL_FILE
    content = json.loads(path.read_text())
    del content["sha256"]
    content["settings"] |= {name: repr(value) for name, value in parameters.items()}
    path.write_text(json.dumps(content | {"sha256": json_digest(content)}))
    return copy


REFERENCE = "${oc.create:{_target_: numpy.load, file: FILE, allow_pickle: true}}"
PARAMETERS = {
    "an argument": {"settings": {"loss._args_": [REFERENCE]}},
    "a target": {"settings": {"optimizer._target_": "numpy.load"}},
    "a partial": {"settings": {"sampler._partial_": False}},
    "a reference": {"settings": {"optimizer.lr": "${oc.env:HOME}"}},
    "a nested one": {"settings": {"optimizer.betas": [[{"_target_": "numpy.load"}]]}},
    "another parameter": {"hidden": ["${oc.env:HOME}"]},
    "a number": {"active": {"_target_": "numpy.load"}},
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters_of_a_folder_run_nothing(tmp_path, fitted, harmful, case):
    folder, rows = fitted
    text = repr(PARAMETERS[case]).replace("FILE", harmful["file"])
    ((name, value),) = ast.literal_eval(text).items()
    copy = with_parameters(folder, tmp_path / "copy", **{name: value})
    model = SlideClassifier.load(copy)
    assert (model.predict(rows[0]) == SlideClassifier.load(folder).predict(rows[0])).all()
    ways = [model.fit, model.partial_fit, clone(model).fit, clone(clone(model)).partial_fit]
    for fit in ways:
        with pytest.raises(ValueError, match="which would be looked up or run") as caught:
            fit(*rows)
        assert str(caught.value).startswith(f"{name} in {copy}/model.json holds ")
        assert str(caught.value).endswith(f"set it again by set_params({name}=...)")
    model.set_params(**{name: SlideClassifier().get_params()[name]}).fit(*rows)


def test_plain_parameters_of_a_folder_stay(fitted):
    folder, rows = fitted
    model = SlideClassifier.load(folder)
    assert model.settings == {"loss.hard_fraction": 0.5}
    assert clone(model).fit(*rows).model_.settings["loss"]["hard_fraction"] == 0.5


# Lists that are pipes, devices or links.


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, device])
def test_a_list_that_is_no_file(tmp_path, make):
    make(tmp_path / MODEL_FILE)
    with soon():
        with pytest.raises(ValueError, match="it is no file"):
            read_text(tmp_path / MODEL_FILE)
        with pytest.raises(ValueError, match="holds something else than a model"):
            Model(SlideNetwork(4, [8], 2, FullSampler)).save(tmp_path)
        assert job.failure(f"resume={tmp_path}").startswith("error: ")


def test_a_text_that_says_nothing_of_its_size(tmp_path):
    """As files of the system do, and those that grow while they are read."""
    version = Path("/proc/version")
    if version.exists():
        assert version.stat().st_size == 0
        assert read_text(version).startswith("Linux")
    (tmp_path / "list.json").touch()
    os.truncate(tmp_path / "list.json", (64 << 20) + 1)
    with pytest.raises(ValueError, match="it has more than 67,108,864 bytes"):
        read_text(tmp_path / "list.json")


def tiny_data(folder):
    return job.make_data(folder)


@pytest.mark.parametrize("make", [pipe, device])
def test_a_cache_whose_list_is_no_file_is_written_again(tmp_path, make):
    path = tiny_data(tmp_path).folder / "meta.json"
    path.unlink()
    make(path)
    with soon():
        assert tiny_data(tmp_path).num_labels == job.SIZES["num_labels"]
    assert path.is_file()
    assert not path.is_symlink()


@pytest.mark.parametrize("name", ["train/feature_values.npy", "meta.json", "train"])
def test_a_cache_with_links_is_written_again(tmp_path, capsys, name):
    """They might lead to any file."""
    path = tiny_data(tmp_path).folder / name
    mine = path.rename(tmp_path / "mine")
    path.symlink_to(mine)
    before = job.files_of(tmp_path / "mine") if mine.is_dir() else mine.read_bytes()
    tiny_data(tmp_path)
    assert not path.is_symlink()
    assert "is written again: " in capsys.readouterr().err
    assert before == (job.files_of(mine) if mine.is_dir() else mine.read_bytes())


def link(path):
    path.symlink_to(path.parents[1] / "made")


@pytest.mark.parametrize("make", [pipe, link])
def test_the_lock_of_a_cache_is_a_file(tmp_path, make):
    folder = tiny_data(tmp_path).folder
    (folder / "meta.json").write_text("{}")
    lock = folder.with_suffix(".lock")
    lock.unlink()
    make(lock)
    with soon(), pytest.raises(ValueError, match=r"\.lock must be a file, and no link"):
        tiny_data(tmp_path)
    assert not (tmp_path / "made").exists()


# What is printed.

ESCAPES = "\x1b]0;owned\x07", "\x9b31m", "\u202e"


def no_command(text):
    return all(each.isprintable() or each in "\n\t\r" for each in text)


def test_names_of_columns_are_no_commands_to_a_terminal(tmp_path, capsys):
    title, note, price = ESCAPES
    head = f'labels,"{title}two\nlines",{note}note,{price}price\n'
    rows = (f"{'ab'[n % 2]},word{n % 5} text {n},more words {n},{n}\n" for n in range(40))
    path = tmp_path / "table.csv"
    path.write_text(head + "".join(rows))
    job.data("describe", "dataset=table", f"dataset.path={path}", f"dataset.cache={tmp_path}/cache")
    printed = capsys.readouterr()
    assert no_command(printed.out)
    assert no_command(printed.err)
    assert r"\x1b]0;owned\x07two\nlines, \x9b31mnote" in printed.out
    words = ["dataset=table", f"dataset.path={path}", "dataset.labels=none"]
    assert no_command(job.failure("describe", *words, run=job.data))


def test_names_of_files_and_labels_are_no_commands_to_a_terminal(tmp_path, capfdbinary):
    bar = ProgressBar(total=9, desc=f"unpacking {ESCAPES[0]}\nname", file=io.StringIO())
    assert no_command(str(bar))
    assert r"unpacking \x1b]0;owned\x07\nname" in str(bar)
    bar.close()
    table = text_table([["run", f"{ESCAPES[1]}two\nlines"], ["P@1", "0.5"]], 80)
    assert no_command(table)
    assert table.count("\n") == 1
    network = SlideNetwork(3, [4], 2, FullSampler)
    Model(network, label_names=[f"{ESCAPES[1]}a", "grün"]).save(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text('{"features": [0, 2]}\n')
    predict.main([str(tmp_path / "model"), str(tmp_path / "rows.jsonl"), "-k", "2"])
    line = capfdbinary.readouterr().out.decode()
    assert no_command(line)
    assert set(json.loads(line)["labels"]) == {f"{ESCAPES[1]}a", "grün"}


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_all_that_is_printed_passes_through_one_place():
    """`slide.utils.progress_bar` alone prints, and ends processes with a text."""
    place = Path(slide.__file__).parent
    found = []
    for path in sorted(place.rglob("*.py")):
        if path == place / "utils/progress_bar.py":
            continue
        for name, call in calls(ast.parse(path.read_text(encoding="utf-8"))):
            text = any(
                isinstance(each, ast.JoinedStr | ast.Constant)
                and not isinstance(getattr(each, "value", ""), int)
                for each in call.args
            )
            prints = name == "print" or re.search(r"std(err|out)(\.buffer)?\.write|print_exc", name)
            if prints or (name in ("sys.exit", "SystemExit") and text):
                found.append(f"{path.relative_to(place)}:{call.lineno}: {name}")
    assert not found


def test_printable_keeps_what_it_is_told_to():
    assert printable("a\tb\n\x1b\u202e\udc80") == "a\tb\n\\x1b\\u202e\\udc80"
    assert printable("a\tb\n", "") == r"a\tb\n"


def test_a_folder_of_files_is_opened_as_before(tmp_path):
    """A link to the folder of a cache is no link in it."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files/train.txt").write_text("2 3 2\n0 0:1\n1 1:1 2:1\n")
    (tmp_path / "files/test.txt").write_text("1 3 2\n1 1:1\n")
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    first = opening(tmp_path)()
    before = (first.folder / "meta.json").stat().st_ino
    assert opening(tmp_path)().folder.joinpath("meta.json").stat().st_ino == before
