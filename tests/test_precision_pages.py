"""Pages on precision and predictions: what is measured, and what their tables compare."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import job

from slide import FullSampler, SlideNetwork
from slide.data import SparseDataset, Split, holdout, write_xmc
from slide.sparse import CSR, Pattern
from slide.training.evaluation import calibration_error

ROOT = Path(__file__).parents[1]
PUBLISHED = json.loads((ROOT / "tests/benchmarks/published.json").read_text())
CLAIMS = [(name, row) for name, known in PUBLISHED["sets"].items() for row in known["rows"]]


def scored(value, **case):
    return case | {f"{kind}_at_{k}": value for kind in ("p", "psp") for k in (1, 3, 5)}


def test_the_first_table_compares_with_the_best_peer_with_seen_items_left_out(bench):
    rows = [
        scored(value, dataset="a", method=method, seed=seed)
        for method, seed, value in (
            ("slide", 0, 0.5),
            ("slide", 1, 0.6),
            ("omikuji", None, 0.9),
            ("omikuji" + bench("peers").LEFT_OUT, None, 0.5),
            ("pecos" + bench("peers").LEFT_OUT, None, 0.51),
        )
    ]
    (line, *_) = bench("precision").comparisons("a", rows)
    assert line["P@k, ours"] == "55.0 ± 5.0"
    assert line["P@k, best peer"] == "51.0 (pecos)"
    assert line["PSP@k, difference"] == "+4.0"


def graph():
    """Rows of a knowledge graph; a test row repeats a training row and asks for another label."""

    def split(rows, labels):
        pattern = Pattern.from_lists(rows)
        ones = np.ones(len(pattern.indices), np.float32)
        return Split(CSR(*pattern, ones), Pattern.from_lists(labels), 7, 4)

    train, test = split([[0, 5], [0, 6]], [[2, 3], [1]]), split([[0, 5], [1, 4]], [[0], [2]])
    return SparseDataset("a", train, test, 7, 4)


def test_seen_items_are_left_out_for_everyone(bench):
    peers, asked = bench("peers"), []
    evaluation = peers.Evaluation(graph())
    assert evaluation.left_out.tolist() == [2, 0]

    def best(features, k):
        asked.append(k)
        return np.array([[3, 2, 0, 1], [1, 2, 3, 0]])

    assert evaluation.of(best)["p_at_1"] == 0.5
    assert asked == [4]  # No more than there are labels.

    def answer(train, test, left_out):
        asked.append(left_out.tolist())
        return peers.Answers(np.array([[2, 3, 0, -1, -1], [2, 3, 0, -1, -1]]), 1.0, 1.0)

    whole, left_out = peers.measure(peers.Peer("1", answer), "omikuji", graph())
    assert asked[1:] == [[2, 0]]
    assert (whole["p_at_1"], left_out["p_at_1"]) == (0.5, 1)
    assert left_out["method"] == "omikuji, known labels left out"


def test_the_bins_give_the_calibration_error(bench):
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(30)[:5] for _ in range(200)])
    ids[::9, 3:] = -1
    labels = Pattern.from_lists([sorted(rng.permutation(30)[:8].tolist()) for _ in ids])
    scores = rng.random(ids.shape)
    bins = bench("precision").reliability(scores, ids, labels)
    gaps = np.abs(np.subtract(bins["right"], bins["scores"])).sum()
    assert sum(bins["answers"]) == (ids >= 0).sum()
    expected = calibration_error(scores, ids, labels)
    assert gaps / (ids >= 0).sum() == pytest.approx(expected, abs=1e-4)
    assert expected > 0.1


@pytest.mark.parametrize("variant", ["no linear classifiers", "no network"])
def test_a_partly_blind_ranker_sees_zeros(bench, variant, tmp_path):
    ablation = bench("ablation")
    data = job.make_data(tmp_path, train_samples=300, test_samples=50)
    torch.manual_seed(0)
    network = SlideNetwork(60, [8], 80, FullSampler)
    ranker = ablation.ranker_of(variant).fit(network, *holdout(data.train, 0.3, 0))
    found = ranker.ranking_features(network, data.test.features, least=5, search="exact")
    blind = [name in ablation.UNSEEN[variant] for name in found.names]
    assert sum(blind) == len(ablation.UNSEEN[variant])
    assert (found.columns[:, blind] == 0).all()
    assert (found.columns[:, np.logical_not(blind)] != 0).any(0).sum() > 5


def test_an_ablation_compares_the_same_seeds_of_one_commit(bench):
    default, variant = bench("ablation").DEFAULT, "no dropout"
    rows = [
        scored(value, dataset="a", seed=seed, variant=name, code=code)
        for name, seed, value, code in (
            (default, 0, 0.5, "x"),
            (default, 1, 0.7, "x"),
            (variant, 0, 0.4, "x"),
            (variant, 1, 0.5, "x"),
            (variant, 2, 0.9, "x"),
            ("no network", 0, 0.9, "y"),
        )
    ]
    text = bench("ablation").section("a", rows)
    assert "| no dropout | 45.0 ± 5.0 (**-15.0 ± 5.0**) |" in text
    assert "| no network" not in text
    assert "Rows without a row of the recipe of their commit: 2." in text


@pytest.mark.compiled_only
@pytest.mark.parametrize("more", [[], ["ranker=none"]])
def test_a_run_is_evaluated_after_each_epoch_and_at_its_end(bench, tmp_path, more):
    words = job.tiny(tmp_path, "trainer.epochs=3", *more)
    with job.global_state_put_back():
        found = bench("curves").measured(bench("curves").Task("slide", words, evaluated=20))
    seconds, p_at_1, *_ = zip(*found["curve"], strict=True)
    assert len(seconds) == 3 + (not more)  # Two epochs, the last one, and the re-ranker.
    assert list(seconds) == sorted(seconds)
    assert (seconds[-1] > seconds[-2] + 0.9 * found["ranker_seconds"]) or more
    assert found["train_seconds"] == pytest.approx(seconds[-1], abs=0.01)
    assert found["evaluated"] == 20
    assert found["p_at_1"] > 0.1
    assert max(p_at_1) <= 1


@pytest.mark.compiled_only
@pytest.mark.parametrize("method", ["dense", "sampled"])
def test_networks_in_plain_torch_learn_and_stop_in_time(bench, tmp_path, method):
    more = ["optimizer.lr=0.02", "trainer.epochs=8", "network.dropout=0"]
    task = bench("curves").Task(method, job.tiny(tmp_path, *more))
    with job.global_state_put_back():
        found = bench("curves").measured(task)
        short = bench("curves").measured(task._replace(seconds=1e-9))
    assert found["epochs"] == found["planned"] == len(found["curve"]) == 8
    assert found["p_at_1"] == pytest.approx(found["curve"][-1][1], abs=1e-6)
    assert found["p_at_1"] > max(0.15, found["curve"][0][1])
    assert short["epochs"] < 1
    assert len(short["curve"]) == 1
    assert "stopped after" in bench("time_to_precision").stopped(short)
    assert bench("time_to_precision").stopped(found) == ""


@pytest.mark.compiled_only
def test_dense_training_that_does_not_fit_says_what_it_needs(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench("curves"), "available_bytes", lambda: 0)
    task = bench("curves").Task("dense", job.tiny(tmp_path))
    with job.global_state_put_back():
        found = bench("curves").measured(task)
    page, row = bench("time_to_precision"), row_of("dense", [], 80) | found
    assert "does not fit, needs 0.0 GiB" in page.line_of(row)["method"]
    assert page.finished([row]) == []


def row_of(method, curve, labels, dataset="a", **more):
    row = {"dataset": dataset, "method": method, "seed": None, "labels": labels, "curve": curve}
    row |= {"evaluated": 10, "date": "d", "code": "c", "machine": "m", "threads": 2}
    if curve:
        row = scored(curve[-1][1], **row, train_seconds=curve[-1][0])
    return row | more


def curve(*points):
    return [[seconds, p_at_1, 0.2, 0.1] for seconds, p_at_1 in points]


def test_the_page_compares_seconds_to_the_best_peers_precision(bench, tmp_path):
    page, ours = bench("time_to_precision"), curve((1, 0.3), (2, 0.5), (9, 0.6))
    peers = {"omikuji-1": curve((3, 0.3)), "omikuji-3": curve((6, 0.5)), "dense": []}
    rows = []
    for name, labels in (("large", 40_000), ("small", 50)):
        times = {"seed": 0, "network_seconds": 4.0, "ranker_seconds": 5.0, "eval_seconds": 1.0}
        rows.append(row_of("slide", ours, labels, name, **times))
        rows += [row_of(each, points, labels, name) for each, points in peers.items()]
        rows[-1]["needs_gib"] = 99.5
    (line,) = page.against_best(page.of(rows, dataset="large"))
    assert line["best peer"] == "omikuji, 3 trees"
    assert (line["seconds to its P@1"], line["ratio"], line["target"]) == ("2.0", "0.33", "met")
    for late, ratio in ((ours[2:], "1.50"), (ours[:1], "")):
        (line,) = page.against_best([rows[0] | {"curve": late}, *rows[1:4]])
        assert (line["target"], line["ratio"]) == ("**missed**", ratio)
    text = page.page({"rows": rows})
    assert text.index("### small") < text.index("### large")
    assert text.count("no target") == 1
    assert text.count("needs 99.5 GiB") == 2
    assert "| large | **slide** | 0.33 | 0.33 |" in text
    assert "| large | **slide** | 40,000 | 4.0 | 5.0 | 1.0 | 1.50 | **missed** |" in text
    page.draw(rows, tmp_path)
    assert (tmp_path / page.PICTURE).stat().st_size > 1000


@pytest.mark.compiled_only
def test_a_row_of_trees_is_kept_and_not_measured_again(bench, tmp_path, monkeypatch):
    data, asked = job.make_data(tmp_path), []

    def answer(train, test, left_out):
        asked.append(len(test))
        ids = np.zeros((len(test), 5), np.int64) + np.arange(5)
        return bench("peers").Answers(ids, 2.5, 1.0)

    program, peer = bench("time_to_precision"), bench("peers").Peer("1", answer)
    monkeypatch.setattr(program, "opened", lambda overrides: data)
    monkeypatch.setattr(program.peers, "omikuji", lambda count: peer)
    monkeypatch.chdir(tmp_path)
    words = ["--root", str(tmp_path), "--datasets", "a", "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["x", *words, "--quick", "--methods", "omikuji-1", "pecos-1"])
    with job.global_state_put_back():
        program.main()
        program.main()
    assert asked == [40]
    (row,) = json.loads((tmp_path / "time_to_precision.json").read_text())["rows"]
    assert (row["method"], row["curve"][0][0], row["evaluated"]) == ("omikuji-1", 2.5, 40)
    assert (tmp_path / "time_to_precision.md").exists()


@pytest.mark.compiled_only
def test_predictions_of_a_small_run(bench, tmp_path, monkeypatch):
    job.main(*job.tiny(tmp_path))
    data = job.make_data(tmp_path / "same", **job.WITH_HELD)
    (tmp_path / "files/small").mkdir(parents=True)
    for name, split in (("train", data.train), ("test", data.test)):
        write_xmc(tmp_path / "files/small" / f"{name}.txt", split)
    words = ["--run", tmp_path / "run", "--root", tmp_path / "files", "--datasets", "small"]
    words += ["--singles", 10, "--methods", "slide", "--results", tmp_path / "page"]
    monkeypatch.setattr("sys.argv", ["prediction.py", *map(str, words)])
    monkeypatch.chdir(tmp_path)
    with job.global_state_put_back():
        bench("prediction").main()
    rows = json.loads((tmp_path / "page/prediction.json").read_text())["rows"]
    assert [row["search"] for row in rows] == ["exact", "index"]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    for row in rows:
        assert (row["rows"], row["labels"], row["default"]) == (40, 80, "exact")
        assert row["p_at_1"] == pytest.approx(summary["p_at_1"])
        assert row["rows_per_second"] > 0
        assert 0 < row["p50"] <= row["p99"]
    text = (tmp_path / "page/prediction.md").read_text()
    assert "| small | 80 | **slide**, **`exact`** | " in text
    assert "| small | 80 | **slide**, `index` | " in text


@pytest.fixture
def published(bench, monkeypatch, tmp_path):
    """The program of the published tables, whose runs take no time: their words and its folder."""
    program, asked = bench("published"), []

    def run_train(*words):
        asked.append(words)
        seconds = {"train_seconds": 3.0, "ranker_seconds": 1.0}
        return scored(0.25 + 0.1 * len(asked), peak_rss_mb=99.0) | seconds

    monkeypatch.setattr(program, "run_train", run_train)
    monkeypatch.setattr(program, "warm_up", lambda: None)
    for name in ("http_proxy", "https_proxy"):  # Nothing is fetched.
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    (tmp_path / "files").mkdir()

    def call(*words):
        monkeypatch.chdir(tmp_path)
        with job.global_state_put_back():
            program.main([*words, "--root", "files", "--results", "results"])

    return call, asked


@pytest.mark.compiled_only
def test_sets_with_files_are_measured_and_others_named(published, tmp_path, capsys):
    call, asked = published
    data = job.make_data(tmp_path)
    for name, set_ in (("xmc", data), ("wiki10_31k", None)):
        (tmp_path / "files" / name).mkdir()
        for part in ("train", "test"):
            file = tmp_path / "files" / name / f"{part}.txt"
            if set_ is None:
                file.write_text("1 3 2\n0 1:1\n")
            else:
                write_xmc(file, getattr(set_, part))
    (tmp_path / "results").mkdir()
    call("--datasets", "xmc", "eurlex4k", "wiki10_31k", "--seeds", "0", "1")
    call("--datasets", "xmc", "amazon3m", "--seeds", "0", "1")  # The rows of xmc are there.
    assert [words[-1] for words in asked] == ["seed=0", "seed=1"]
    assert {words[0] for words in asked} == {"dataset=xmc"}
    said = [line for line in capsys.readouterr().out.splitlines() if "was not measured" in line]
    assert said[0] == (
        f"eurlex4k was not measured: files not fetched. Put train.txt and test.txt into "
        f"{tmp_path}/files/eurlex4k; datasets/eurlex4k/README.md says where they come from."
    )
    assert re.match(r"wiki10_31k was not measured: .*train\.txt.* 14,?146", said[1])
    assert said[2].startswith("amazon3m was not measured: files not fetched. Put X.trn.npz, ")
    page = (tmp_path / "results" / "published.md").read_text()
    assert "| **ours** | 40.0 ± 5.0 | 40.0 ± 5.0 |" in page.partition("## xmc")[2]
    assert "Ours: seeds 0, 1; peak memory 99 MB." in page
    part = page.partition("## EURLex-4K")[2].partition("\n## ")[0]
    assert re.search(r"\| \*\*ours\*\* \|[ |]*not measured \|", part)
    assert "| Parabel | 82.2 | 68.7 | 57.5 |" in part
    assert "Put train.txt and test.txt into datasets/eurlex4k" in part
    assert str(tmp_path) not in page


def test_published_rows_have_a_source_and_possible_figures():
    for name, row in CLAIMS:
        assert (ROOT / "conf" / "dataset" / f"{name}.yaml").is_file()
        assert PUBLISHED["sources"][row["source"]]["where"]
        assert 1 <= len(row["p"]) <= 3
        assert row["p"][0] < 100
        assert row["p"] == sorted(row["p"], reverse=True), row
        assert row["p"][-1] > 10
        known = {"method", "source", "p", "psp", "hours", "seconds", "input", "note"}
        assert set(row) <= known
    names = [(name, row["method"], row["source"]) for name, row in CLAIMS]
    assert len(names) == len(set(names))
    assert {row["source"] for _, row in CLAIMS} == set(PUBLISHED["sources"])


PAGES = {
    "precision": "precision",
    "published": "published",
    "seeds": "seeds",
    "trust": "trust",
    "ablation": "ablation",
    "benchmarks/prediction": "prediction",
    "benchmarks/time_to_precision": "time_to_precision",
    "benchmarks/distributed": "distributed",
    "benchmarks/step": "step",
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_those_of_their_figures(bench, name):
    found = json.loads((ROOT / "results" / f"{name}.json").read_text())
    text = (ROOT / "results" / f"{name}.md").read_text()
    assert text.endswith(bench(PAGES[name]).page(found))
