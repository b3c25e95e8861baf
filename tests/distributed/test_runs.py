"""``train.py`` on several processes: scores, folders and weights as on any other number."""

import json
import os

import numpy as np
import pytest
from helpers.torchrun import torchruns

import slide
from slide.tensor_folder import read_tensors
from slide.training.checkpoint_folders import last_checkpoint

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]
RUNS = """
found = {"whole": run([*small, "trainer.checkpoint_every=5", f"run_dir={folder}/whole"], 2)}
words = [*small, "trainer.checkpoint_every=5", f"run_dir={folder}/parts"]
for size, steps in ((2, 7), (3, 12), (1, 16), (2, 20)):
    found[f"{size} {steps}"] = run([*words, f"trainer.max_steps={steps}"], size)
    words = [f"resume={folder}/parts"]
found["again"] = run([f"resume={folder}/whole"], 1)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the ranks of all runs said, and the folder of the runs."""
    folder = tmp_path_factory.mktemp("runs")
    return torchruns(RUNS, folder), folder


def lines(folder, name):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in found if name in line]


def test_they_end_well_and_one_process_speaks(runs):
    for name, ranks in runs[0].items():
        assert [rank["status"] for rank in ranks] == [0] * len(ranks), f"{name}: {ranks}"
        assert "P@1" in ranks[0]["said"]
        assert all(not rank["said"] for rank in ranks[1:])


def test_resumed_on_other_numbers_of_processes_they_end_as_one_that_nothing_disturbed(runs):
    whole, parts = (read_tensors(runs[1] / name, "network") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, weight in whole.items():
        assert (weight - parts[name]).abs().max() < 1e-5, name
    losses = [lines(runs[1] / name, "train/loss") for name in ("whole", "parts")]
    assert len(losses[0]) == len(losses[1]) == 20
    for one, other in zip(*losses, strict=True):
        assert other == pytest.approx(one, rel=1e-5)


def test_moments_come_along_exactly(runs):
    """From rank to rank: the first moments of all rows, put together from two checkpoints."""
    folders = [last_checkpoint(runs[1] / name) for name in ("whole", "parts")]
    for part in (0, 1):
        one, other = (read_tensors(folder, f"rank-{part}") for folder in folders)
        assert one.keys() == other.keys()
        moments = [name for name in one if "exp_avg" in name]
        assert len(moments) == 8
        for name in (*moments, "rows.first", "rows.output"):
            assert (one[name] - other[name]).abs().max() < 1e-6, name


def test_the_scores_are_those_of_one_process(runs):
    """One process that goes on with the last checkpoint has nothing to do but to evaluate."""
    said, again = (runs[0][name][0]["said"].splitlines()[-1] for name in ("whole", "again"))
    assert said.startswith("P@1 0.")
    assert again == said


def test_the_summary_tells_of_the_processes(runs):
    summary, single = (
        json.loads((runs[1] / name / "summary.json").read_text()) for name in ("parts", "warm")
    )
    assert set(summary) - set(single) == {"processes", "exchange_seconds"}
    assert summary["processes"] == 2
    assert summary["active_mean"] == 60


def test_one_process_opens_the_model(runs):
    model = slide.load(runs[1] / "parts")
    assert (model.num_features, model.num_labels) == (90, 60)
    rows = slide.CSR(np.array([0, 2]), np.array([3, 70], np.int32), np.ones(2, np.float32))
    labels, scores = model.predict(rows, k=3)
    assert len(set(labels[0].tolist())) == 3
    assert (np.diff(scores[0]) <= 0).all()


def test_one_folder_with_a_log_of_one_process(runs):
    for name in ("whole", "parts"):
        folder = runs[1] / name
        assert lines(folder, "train/loss") != []
        assert len(list((folder / "checkpoints").iterdir())) == 2
        assert not list(folder.glob("*.tmp"))
