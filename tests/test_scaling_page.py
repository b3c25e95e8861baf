"""Cost over size: what a size measures, what the model is fitted to, and what the page says."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import job

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """The modules of the benchmarks, which import each other by their plain names."""
    names = ("cost_model", "scaling", "scaling_page", "sized")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})


@pytest.mark.compiled_only
@pytest.mark.parametrize("case", ["uniform, shared, bfloat16", "lsh, per sample", "dense PyTorch"])
def test_a_size_is_measured(bench, monkeypatch, case):
    monkeypatch.setattr(bench.sized, "ALTERNATIONS", 1)
    monkeypatch.setattr(bench.sized, "BATCHES", 2)
    size = bench.sized.Size(case, outputs=600, features=300, hidden=8)
    with job.global_state_put_back():
        found = bench.sized.measured(size, seconds=0)
    assert set(found["spread_ms"]) == set(found["ms"]) >= {"1"}
    assert min(found["ms"].values()) > 0
    assert ("rebuild_ms" in found) == ("lsh" in case)
    assert found["bytes"] > 1e7


def test_a_size_that_does_not_fit_says_what_it_needs(bench):
    found = bench.sized.measured(bench.sized.Size(outputs=2**40))
    assert found["needs_gib"] == pytest.approx(12 * 2**40 * 64 / 2**30, rel=0.01)


def test_batches_have_distinct_features_and_labels(bench):
    batch = bench.sized.draw(bench.sized.Size(outputs=7, features=45), np.random.default_rng(0))
    for rows, width, each in ((batch.features, 45, 40), (batch.labels, 7, 5)):
        ids = np.asarray(rows.indices).reshape(256, each)
        assert (np.diff(ids, axis=1) > 0).all()
        assert ids.min() == 0
        assert ids.max() == width - 1


def test_the_model_finds_the_factors_of_times_that_it_describes(bench):
    model, factors = bench.cost_model, (2.0, 0.05, 0.002, 0.01)

    def time(row):
        pairs = zip(model.TERMS.values(), factors, strict=True)
        return sum(factor * column(row) for column, factor in pairs)

    sizes = [size._asdict() for size, check in bench.scaling.sizes() if not check]
    rows = [size for size in sizes if size["case"] == "uniform, shared"]
    fitted = model.fit(rows, time)
    assert fitted.factors == pytest.approx(factors)
    assert max(fitted.errors(rows, lambda row: 2 * time(row))) == pytest.approx(0.5)
    # Where one size varies, terms that cannot be told apart are one.
    alone = [row for row in rows if row["hidden"] == 64 and row["features"] == 10**5]
    assert model.fit(alone, time).terms == ("a", "c H log2(N / 2^14)")


def test_predictions_for_more_cores_and_memories(bench):
    model = bench.cost_model
    assert model.on_cores(10, 6, 2, 2) == 6
    assert model.on_cores(10, 6, 2, 16) == pytest.approx(2 + 8 / 16)
    assert model.on_cores(10, 11, 2, 16) == 10  # Nothing goes in parallel.
    assert model.on_cores(10, 4, 2, 64) == pytest.approx(10 / 64)
    fitted = model.Fit(("a process", "a weight of the outputs"), (1000.0, 12.0), model.BYTES)
    assert model.largest_outputs(fitted, 1000 + 12 * 64 * 50, 10**5, 64) == 50
    assert model.largest_outputs(fitted, 10, 10**5, 64) == 0


def rows_of(bench):
    stamp = {"date": "d", "code": "c", "machine": "m", "threads": 2, "commit": "c"}
    for size, check in bench.scaling.sizes():
        if size.outputs == 2**24 and size.case == "uniform, shared":
            yield size._asdict() | stamp | {"check": check, "needs_gib": 12.5}
            continue
        both = {"1": 4 + 0.1 * size.hidden, "2": 2 + 0.06 * size.hidden}
        spread = {threads: [time, time + 1] for threads, time in both.items()}
        found = {"ms": both, "spread_ms": spread, "product_ms": 20.0, "rebuild_ms": 5.0}
        found["bytes"] = 3e8 + 12 * (size.outputs + size.features) * size.hidden
        yield size._asdict() | stamp | found | {"check": check}


def test_the_page_says_what_was_measured_and_what_is_predicted(bench, tmp_path):
    rows = list(rows_of(bench))
    text = bench.scaling_page.page({"rows": rows})
    assert "| uniform, shared | 16,777,216 | 100,000 | 64 | needs 12.5 GiB |" in text
    assert "| uniform, shared | 2 | 2 + 0.06 H | 13 | 0% | 0% | 0% |" in text
    assert "16 and 64 cores: a prediction" in text
    cells = "| uniform, shared | 16,384 | 100,000 | 64 | 10.40 | 5.84 | 1.85 | 1.42 |"
    assert cells in text
    fits = (64 * 2**30 - 3e8 - 12 * 10**5 * 64) / (12 * 64) / 1e6
    assert f"| {fits:.1f} million |" in text
    bench.scaling_page.draw(rows, tmp_path)
    assert (tmp_path / "scaling.png").stat().st_size > 1000
    assert (tmp_path / "scaling_more.png").stat().st_size > 1000


def test_the_program_measures_what_is_missing(bench, monkeypatch, tmp_path):
    asked = []

    def measured(size, seconds):
        asked.append(size)
        return {"killed": 9}

    monkeypatch.setattr(bench.scaling, "in_own_process", measured)
    words = ["--results", str(tmp_path), "--largest", "20000", "--cases", "lsh, shared"]
    monkeypatch.setattr("sys.argv", ["scaling.py", *words])
    with job.global_state_put_back():
        bench.scaling.main()
        bench.scaling.main()
    assert asked == [bench.sized.Size("lsh, shared", 2**14)]
    (row,) = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    assert (row["case"], row["outputs"], row["check"]) == ("lsh, shared", 2**14, False)
    assert "killed for its memory" in (tmp_path / "scaling.md").read_text()
