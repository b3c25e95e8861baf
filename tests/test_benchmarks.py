"""Programs of speed: they start, measure small sizes, and their pages say what was measured."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from helpers import job

from slide import runtime
from slide.config import read_config

FOLDER = Path(__file__).parent / "benchmarks"
KEYS = ("dataset", "seed")
CASES = [{"dataset": "a", "seed": 0}, {"dataset": "a", "seed": 1}]
STAMP = {"date": "d", "code": "c", "machine": "m", "threads": 2, "commit": "c"}


def test_they_import_and_their_settings_exist(bench):
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert 20 < len(names) <= 30
    for name in names:
        assert bench(name).__doc__
    cases = [*bench("ablation").WITHOUT.values(), *bench("look_up").SAMPLERS.values()]
    cases += [bench("step").DATA, *bench("prediction").GENERATED.values()]
    cases += [case for case in bench("sized").CASES.values() if not isinstance(case, str)]
    for case in cases:
        read_config(case)
    assert len(cases) > 20


def store(bench, folder, again=False, minutes=0):
    options = Namespace(results=folder, again=again, minutes=minutes)
    page = lambda found: f"{len(found['rows'])} rows\n"  # noqa: E731
    return bench("report").Store("page", KEYS, page, options)


def test_only_rows_that_are_missing_are_measured(bench, tmp_path):
    store(bench, tmp_path).add([CASES[0] | {"p": 1}])
    assert list(store(bench, tmp_path).missing(CASES)) == CASES[1:]
    assert list(store(bench, tmp_path, again=True).missing(CASES)) == CASES
    assert list(store(bench, tmp_path).missing(CASES, code="another version")) == CASES
    late = store(bench, tmp_path, again=True, minutes=1e-9)
    assert list(late.missing(CASES)) == []
    assert late.left == 2


@pytest.mark.parametrize("name", ["machine", "threads", "code"])
def test_rows_of_other_conditions_are_measured_again(bench, tmp_path, name):
    store(bench, tmp_path).add([CASES[0]])
    path = tmp_path / "page.json"
    found = json.loads(path.read_text())
    found["rows"][0][name] = "another one"
    path.write_text(json.dumps(found))
    assert list(store(bench, tmp_path).missing(CASES[:1])) == CASES[:1]


def test_rows_of_two_calls_are_kept_and_a_new_row_replaces_its_old_one(bench, tmp_path):
    first, second = store(bench, tmp_path), store(bench, tmp_path)
    first.add([CASES[1] | {"p": 1}])
    second.add([CASES[0] | {"p": 2}])
    second.add([CASES[1] | {"p": 3}])
    rows = json.loads((tmp_path / "page.json").read_text())["rows"]
    assert [(row["seed"], row["p"]) for row in rows] == [(0, 2), (1, 3)]
    assert all({"date", "commit", "machine"} <= set(row) for row in rows)
    assert (tmp_path / "page.md").read_text().endswith("2 rows\n")


def test_the_networks_are_the_default_ones(bench):
    """As train.py builds them at Amazon-670K's size, and the peers have their sizes."""
    sized = bench("sized")
    config = sized.settings("default", 670_091)
    assert (config.network.hidden, config.sampler.active) == ([256], 2048)
    assert (config.trainer.batch_size, config.sampler.mode) == (512, "shared")
    assert "proposer" not in config.sampler
    looked_up = sized.settings("lsh, per sample", 670_091)
    assert (looked_up.sampler.mode, looked_up.sampler.active) == ("per_sample", 128)
    assert "LSHProposer" in looked_up.sampler.proposer._target_
    for kind, network in bench("plain_torch").NETWORKS.items():
        made = network(30, 90, sized.settings("default", 90, 8))
        assert made.first.weight.shape == (30, 8), kind


@pytest.mark.compiled_only
@pytest.mark.parametrize(
    "case", ["default", "lsh, per sample", "sampled softmax, PyTorch", "dense PyTorch"]
)
def test_a_size_is_measured(bench, monkeypatch, case):
    sized = bench("sized")
    monkeypatch.setattr(sized, "ALTERNATIONS", 1)
    monkeypatch.setattr(sized, "BATCHES", 2)
    size = sized.Size(case, outputs=600, features=300, hidden=8)
    with job.global_state_put_back():
        found = sized.measured(size, seconds=0)
    assert set(found["spread_ms"]) == set(found["ms"]) >= {"1"}
    assert min(found["ms"].values()) > 0
    assert ("rebuild_ms" in found) == ("lsh" in case)
    assert found["bytes"] > 1e7


def test_a_size_that_does_not_fit_says_what_it_needs(bench):
    found = bench("sized").measured(bench("sized").Size(outputs=2**40))
    assert found["needs_gib"] == pytest.approx(8 * 2**40 * 256 / 2**30, rel=0.01)


def test_batches_have_distinct_features_and_labels(bench):
    sized = bench("sized")
    batch = sized.draw(sized.Size(outputs=7, features=45), 256, np.random.default_rng(0))
    for rows, width, each in ((batch.features, 45, 40), (batch.labels, 7, 5)):
        ids = np.asarray(rows.indices).reshape(256, each)
        assert (np.diff(ids, axis=1) > 0).all()
        assert ids.min() == 0
        assert ids.max() == width - 1


@pytest.mark.compiled_only
def test_steps_take_turns_and_an_epoch_is_learnt(bench, monkeypatch, tmp_path):
    step = bench("step")
    sizes = [word for word in job.tiny(tmp_path, "sampler=uniform") if "run_dir" not in word]
    monkeypatch.setattr(step, "DATA", [*sizes, "ranker=none", "trainer.epochs=1"])
    chosen = {name: step.CASES[name] for name in ("lsh, shared", "sampled softmax, PyTorch")}
    monkeypatch.setattr(step, "CASES", chosen | {step.DENSE: "dense"})
    with job.global_state_put_back():
        found = step.measure_all(turns=1, repeats=2)
    found |= {"turns": 1, "repeats": 2, "machine": "m"}
    assert [row["case"] for row in found["rows"]] == [*chosen, step.DENSE]
    for row in found["rows"][:2]:
        assert 0 < row["p_at_1"] <= 1
        assert min(row["mean_ms"], row["to_dense"], row["samples_per_second"]) > 0
    parts = found["rows"][0]["parts_ms"]
    assert {"batch", "input layer", "output layer", "adam", "rest"} <= set(parts)
    assert found["rows"][0]["rebuild_ms"] > 0
    assert "60 features, 75 non-zeros a row, 8 hidden units, 80 outputs" in step.summary(found)
    assert "| ms of a step | " in step.page(found)


def rows_of(bench):
    for size in bench("scaling").sizes():
        row = size._asdict() | STAMP | {"batch": 512}
        if size.outputs == 2**24:
            yield row | {"needs_gib": 12.5}
            continue
        both = {"1": 4 + 0.1 * size.hidden, "2": 2 + 0.06 * size.hidden}
        spread = {threads: [time, time + 1] for threads, time in both.items()}
        found = {"ms": both, "spread_ms": spread, "product_ms": 20.0, "rebuild_ms": 5.0}
        yield row | found | {"bytes": 3e8 + 8 * (size.outputs + size.features) * size.hidden}


def test_the_page_over_size_says_what_was_measured(bench, tmp_path):
    rows = list(rows_of(bench))
    text = bench("scaling").page({"rows": rows})
    assert "| default | 16,777,216 | 100,000 | 256 | needs 12.5 GiB |" in text
    assert "| default | 1,024 | 106.40 (106.40 to 107.40) | 63.44 (63.44 to 64.44) | 1.68" in text
    assert "* default: batch 512, 2,048 outputs for the batch\n" in text
    assert "* lsh, per sample: batch 512, 128 outputs for each sample\n" in text
    bench("scaling").draw(rows, tmp_path)
    assert (tmp_path / "scaling.png").stat().st_size > 1000
    assert (tmp_path / "scaling_more.png").stat().st_size > 1000


def test_the_program_over_size_measures_what_is_missing(bench, monkeypatch, tmp_path):
    scaling, asked = bench("scaling"), []

    def measured(size, seconds):
        asked.append(size)
        return {"killed": 9}

    monkeypatch.setattr(scaling, "in_own_process", measured)
    words = ["--results", str(tmp_path), "--largest", "20000", "--cases", "lsh, shared"]
    monkeypatch.setattr("sys.argv", ["scaling.py", *words])
    # A row of another network is left out.
    old = {"rows": [bench("sized").Size("uniform, shared")._asdict() | STAMP]}
    (tmp_path / "scaling.json").write_text(json.dumps(old))
    with job.global_state_put_back():
        scaling.main()
        scaling.main()
    assert asked == [bench("sized").Size("lsh, shared", 2**14)]
    (row,) = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    assert (row["case"], row["outputs"], row["batch"]) == ("lsh, shared", 2**14, 512)
    assert "killed for its memory" in (tmp_path / "scaling.md").read_text()


@pytest.mark.compiled_only
def test_the_guard_adds_a_line_for_a_commit(bench, monkeypatch, tmp_path, capsys):
    guard = bench("guard")
    monkeypatch.setattr(guard, "BATCHES", 2)
    monkeypatch.setattr("sys.argv", ["guard.py", "--quick", "--results", str(tmp_path)])
    cases = [f"step, {case}" for case in guard.STEPS]
    cases += ["rebuild", *(f"prediction, {search}" for search in guard.SEARCHES)]
    with job.global_state_put_back():
        runtime.set_threads(0)
        # An older commit was faster.
        place = {"machine": guard.machine(), "threads": runtime.num_threads()}
        place["network"] = guard.NETWORK.format(**guard.QUICK_SIZES)
        rows = [line("old", "2000-01-01", 1e-6) | place | {"case": case} for case in cases]
        (tmp_path / "guard.json").write_text(json.dumps({"rows": rows}))
        guard.main()
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "guard.json").read_text())["rows"]
    new = [row for row in found if row["commit"] != "old"]
    assert len(found) == 2 * len(new) == 12
    assert sorted(row["case"] for row in new) == sorted(cases)
    assert all(0 < row["range"][0] <= row["ratio"] <= row["range"][1] for row in new)
    assert min(row["ms"] / row["product_ms"] for row in new) > 0
    assert said.count("SLOWER") == 6
    text = (tmp_path / "guard.md").read_text()
    assert "| old |" in text
    assert text.splitlines()[-1].count("**") == 12


def line(commit, committed, ratio, machine="m"):
    stamp = {"machine": machine, "threads": 2, "date": "d", "at": "t", "product_ms": 5.0}
    case = {"case": "a", "network": "n", "commit": commit, "committed": committed}
    return case | {"ratio": ratio} | stamp


def test_a_line_is_compared_with_the_median_of_those_before_it_on_its_machine(bench):
    ratios = [1.0, 5.0, 1.1, 1.19, 1.4, 1.0]
    rows = [line(f"c{i}", f"2026-01-0{i + 1}", ratio) for i, ratio in enumerate(ratios)]
    rows.append(line("c9", "2026-02-01", 9.0, machine="another"))
    text = bench("guard").page({"rows": rows[::-1]})
    lines = [row.split(" | ") for row in text.splitlines() if row.startswith("| d ")]
    assert [cells[1] for cells in lines if "**" in cells[2]] == ["c1", "c4"]
    assert text.index("| c0 |") < text.index("| c5 |")
    assert "## another, threads: 2" in text
