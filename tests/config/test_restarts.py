"""Processes that ``torchrun`` starts again go on with their own run, and with no other.

Processes that have other words, or that never come, end with a sentence.
"""

import json
import os
import re
from types import SimpleNamespace

import pytest
from helpers.torchrun import torchruns

from slide.config.processes import FolderNote, Ranks
from slide.distributed.launch import Place


def note_of(place, *words, size=2):
    group = SimpleNamespace(rank=0, size=size, broadcast=lambda value: value)
    return FolderNote(Ranks(Place(0, size, 0, size), group), place, words)


def test_a_folder_is_noted_for_the_words_of_its_run(tmp_path):
    note_of(tmp_path, "seed=1").write(tmp_path / "run")
    assert note_of(tmp_path, "seed=1").found() == tmp_path / "run"
    assert note_of(tmp_path, "seed=1", "dataset.root=/here").found() == tmp_path / "run"
    assert note_of(tmp_path, "seed=2").found() is None
    note_of(tmp_path, "seed=2").forget()
    note_of(tmp_path, "seed=1").forget(tmp_path / "other")
    assert note_of(tmp_path, "seed=1").found() == tmp_path / "run"
    note_of(tmp_path, "seed=1").forget(tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [
        ("TORCHELASTIC_RUN_ID", "7", False),
        ("MASTER_PORT", "1234", False),
        ("TORCHELASTIC_RESTART_COUNT", "1", True),
    ],
)
def test_a_note_is_of_one_torchrun(tmp_path, monkeypatch, name, value, same):
    told = {"RUN_ID": "none", "USE_AGENT_STORE": "True", "RESTART_COUNT": "0"}
    for each, said in told.items():
        monkeypatch.setenv(f"TORCHELASTIC_{each}", said)
    monkeypatch.setenv("MASTER_PORT", "29500")
    note = note_of(tmp_path)
    monkeypatch.setenv(name, value)
    assert (note_of(tmp_path).path == note.path) == same


def test_one_process_leaves_no_note(tmp_path):
    note_of(tmp_path, size=1).write(tmp_path / "run")
    assert not list(tmp_path.iterdir())
    note_of(tmp_path / "missing").forget()
    (tmp_path / "file").touch()
    note_of(tmp_path / "file").forget()


RUNS = """
import glob

found, quick = {}, [*small, "trainer.checkpoint_every=2", "runtime.timeout=8"]
# A folder that holds a run, and another run that names it.
run([*quick, "trainer.max_steps=3", f"run_dir={folder}/used"], 2)
before = open(f"{folder}/used/config.yaml").read()
other = [*quick, "trainer.max_steps=6", "seed=5", f"run_dir={folder}/used"]
found["used"] = [run(other, 2, TORCHELASTIC_RESTART_COUNT=n) for n in (0, 1)]
found["kept"] = open(f"{folder}/used/config.yaml").read() == before

# Ranks that are given other words, and one that no other joins.
one = [*quick, f"run_dir={folder}/apart"]
found["apart"] = run([one, [*one, "optimizer.lr=0.5"]], 2)
begin = time.perf_counter()
(alone,) = [Rank([*small, "runtime.timeout=1"], 0, 2, free_port(), f"{folder}/said-alone")]
found["alone"] = {**alone.wait(), "seconds": time.perf_counter() - begin}

# Two runs without run_dir, one beside the other; a rank of the first is killed.
def checkpoints():
    return glob.glob(f"{folder}/results/synthetic/*/checkpoints/*-step-*")

def wait_for(there):
    end = time.time() + 60
    while not there() and time.time() < end:
        time.sleep(0.02)

# Long enough that both are there at once; each checkpoint waits for the disk, so few of them.
longer = [word for word in quick if not word.startswith("trainer.checkpoint_every")]
longer += ["trainer.epochs=30", "trainer.checkpoint_every=20"]
words = [[*longer, f"seed={seed}"] for seed in (1, 2)]
first = start(words[0], 2)
wait_for(checkpoints)
(own,) = glob.glob(f"{folder}/results/synthetic/*/")
ranks = start(words[1], 2)
wait_for(lambda: len(glob.glob(f"{folder}/results/synthetic/*/config.yaml")) > 1)
first[1].kill()
for rank in first:
    rank.wait()
found["own"] = own
found["second"] = [rank.wait() for rank in ranks]
found["first"] = run(words[0], 2, TORCHELASTIC_RESTART_COUNT=1)
found["notes"] = glob.glob(f"{folder}/**/.torchrun-*", recursive=True, include_hidden=True)
found["folders"] = len(glob.glob(f"{folder}/results/synthetic/*/"))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return torchruns(RUNS, tmp_path_factory.mktemp("runs"))


pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]


def test_a_folder_of_another_run_is_refused_again(runs):
    for ranks in runs["used"]:
        assert [rank["status"] for rank in ranks] == [1, 1], ranks
        assert "used holds a run: resume=" in json.dumps(ranks)
    assert runs["kept"]


def test_ranks_with_other_words_end(runs):
    assert [rank["status"] for rank in runs["apart"]] == [1, 1], runs["apart"]
    said = "".join(rank["said"] for rank in runs["apart"])
    assert re.search(r"error: .* optimizer\.lr is \S+ on rank 0 and 0\.5 on rank 1: start", said)
    assert said.count("error: ") == 1


def test_a_rank_that_no_other_joins_ends(runs):
    assert runs["alone"]["status"] == 1
    told = "error: fewer than 2 processes were there after 1 seconds (runtime.timeout): look at"
    assert told in runs["alone"]["said"]
    assert runs["alone"]["said"].count("error: ") == 1
    assert runs["alone"]["seconds"] < 30


def test_a_run_beside_another_goes_on_with_its_own_folder(runs):
    for name in ("first", "second"):
        assert [rank["status"] for rank in runs[name]] == [0, 0], runs[name]
    assert runs["own"].rstrip("/").endswith(runs["first"][0]["said"].split()[-1])
    assert runs["folders"] == 2
    assert runs["notes"] == []
