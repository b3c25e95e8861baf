"""Precision over seconds: curves of small runs, and what the page makes of curves."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import job

from slide.data import SparseDataset, Split
from slide.sparse import CSR, Pattern

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """The modules of the benchmarks, which import each other by their plain names."""
    names = ("curves", "judged", "peers", "time_page", "time_to_precision")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})


@pytest.mark.compiled_only
@pytest.mark.parametrize("more", [[], ["ranker=none"]])
def test_a_run_is_judged_after_each_epoch_and_at_its_end(bench, tmp_path, more):
    task = bench.curves.Task("slide", job.tiny(tmp_path, "trainer.epochs=3", *more), judged=20)
    with job.global_state_put_back():
        found = bench.curves.measured(task)
    seconds, p_at_1, *_ = zip(*found["curve"], strict=True)
    assert len(seconds) == 3 + (not more)  # Two epochs, the last one, and the re-ranker.
    assert list(seconds) == sorted(seconds)
    assert (seconds[-1] > seconds[-2] + 0.9 * found["ranker_seconds"]) or more
    assert found["train_seconds"] == pytest.approx(seconds[-1], abs=0.01)
    assert found["judged"] == 20
    assert found["p_at_1"] > 0.1
    assert max(p_at_1) <= 1


@pytest.mark.compiled_only
@pytest.mark.parametrize("method", ["dense", "sampled"])
def test_networks_in_plain_torch_learn_and_stop_in_time(bench, tmp_path, method):
    more = ["optimizer.lr=0.02", "trainer.epochs=8", "network.dropout=0"]
    task = bench.curves.Task(method, job.tiny(tmp_path, *more), judged=0)
    with job.global_state_put_back():
        found = bench.curves.measured(task)
        short = bench.curves.measured(task._replace(seconds=1e-9))
    assert found["epochs"] == found["planned"] == len(found["curve"]) == 8
    assert found["p_at_1"] == pytest.approx(found["curve"][-1][1], abs=1e-6)
    assert found["p_at_1"] > max(0.15, found["curve"][0][1])
    assert short["epochs"] < 1
    assert len(short["curve"]) == 1
    assert "stopped after" in bench.time_page.stopped(short)
    assert bench.time_page.stopped(found) == ""


@pytest.mark.compiled_only
def test_dense_training_that_does_not_fit_says_what_it_needs(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.curves, "available_bytes", lambda: 0)
    task = bench.curves.Task("dense", job.tiny(tmp_path))
    with job.global_state_put_back():
        found = bench.curves.measured(task)
    row = row_of("dense", [], 80) | found
    assert "does not fit, needs 0.0 GiB" in bench.time_page.line_of(row)["method"]
    assert bench.time_page.finished([row]) == []


def test_known_labels_are_left_out_for_everyone(bench):
    # Rows of a knowledge graph; the test row repeats a training row and asks for another label.
    def split(rows, labels):
        pattern = Pattern.from_lists(rows)
        ones = np.ones(len(pattern.indices), np.float32)
        return Split(CSR(*pattern, ones), Pattern.from_lists(labels), 7, 4)

    train, test = split([[0, 5], [0, 6]], [[2, 3], [1]]), split([[0, 5], [1, 4]], [[0], [2]])
    judged = bench.judged.Judged(SparseDataset("a", train, test, 7, 4))
    assert judged.left_out.tolist() == [2, 0]
    asked = []

    def best(features, k):
        asked.append(k)
        return np.array([[3, 2, 0, 1], [1, 2, 3, 0]])

    assert judged.judge(best)["p_at_1"] == 0.5
    assert asked == [4]  # No more than there are labels.


def row_of(method, curve, labels, dataset="a", **more):
    row = {"dataset": dataset, "method": method, "seed": None, "labels": labels, "curve": curve}
    row |= {"judged": 10, "date": "d", "code": "c", "machine": "m", "threads": 2}
    if curve:
        seconds, p_at_1, *_ = curve[-1]
        row |= {f"{kind}_at_{k}": p_at_1 for kind in ("p", "psp") for k in (1, 3, 5)}
        row["train_seconds"] = seconds
    return row | more


def curve(*points):
    return [[seconds, p_at_1, 0.2, 0.1] for seconds, p_at_1 in points]


def test_the_page_compares_seconds_to_the_best_peers_precision(bench, tmp_path):
    ours = curve((1, 0.3), (2, 0.5), (9, 0.6))
    peers = {"omikuji-1": curve((3, 0.3)), "omikuji-3": curve((6, 0.5)), "dense": []}
    rows = []
    for name, labels in (("large", 40_000), ("small", 50)):
        times = {"seed": 0, "network_seconds": 4.0, "ranker_seconds": 5.0, "eval_seconds": 1.0}
        rows.append(row_of("slide", ours, labels, name, **times))
        rows.append(row_of("slide-fast", ours[:1], labels, name, **times | {"ranker_seconds": 0}))
        rows += [row_of(each, points, labels, name) for each, points in peers.items()]
        rows[-1]["needs_gib"] = 99.5
    page = bench.time_page
    lines = page.against_best(page.of(rows, dataset="large"))
    assert [line["best peer"] for line in lines] == ["omikuji, 3 trees"] * 2
    assert [line["seconds to its P@1"] for line in lines] == ["2.0", "not reached"]
    assert [line["ratio"] for line in lines] == ["0.33", ""]
    assert [line["target"] for line in lines] == ["met", "**missed**"]
    late = page.against_best([rows[0] | {"curve": ours[2:]}, *rows[1:5]])
    assert late[0]["target"] == "**missed**"
    text = page.page({"rows": rows})
    assert text.index("### small") < text.index("### large")
    assert text.count("no target") == 2
    assert text.count("needs 99.5 GiB") == 2
    assert "| large | **slide** | 0.33 | 0.33 |" in text
    assert "| large | **slide** | 40,000 | 4.0 | 5.0 | 1.0 | 1.50 | **missed** |" in text
    page.draw(rows, tmp_path)
    assert (tmp_path / page.PICTURE).stat().st_size > 1000


@pytest.mark.compiled_only
def test_a_row_of_trees_is_kept_and_not_measured_again(bench, tmp_path, monkeypatch):
    data = job.make_data(tmp_path)
    asked = []

    def answer(train, judged, left_out):
        asked.append(len(judged))
        ids = np.zeros((len(judged), 5), np.int64) + np.arange(5)
        return bench.peers.Answers(ids, 2.5, 1.0)

    program = bench.time_to_precision
    monkeypatch.setattr(program, "warm_up", lambda: None)
    monkeypatch.setattr(program, "opened", lambda overrides: data)
    monkeypatch.setattr(program.peers, "omikuji", lambda count: bench.peers.Peer("1", answer))
    monkeypatch.chdir(tmp_path)
    words = ["--root", str(tmp_path), "--datasets", "a", "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["x", *words, "--quick", "--methods", "omikuji-1", "pecos-1"])
    with job.global_state_put_back():
        program.main()
        program.main()
    assert asked == [40]
    (row,) = json.loads((tmp_path / "time_to_precision.json").read_text())["rows"]
    assert (row["method"], row["curve"][0][0], row["judged"]) == ("omikuji-1", 2.5, 40)
    assert (tmp_path / "time_to_precision.md").exists()
