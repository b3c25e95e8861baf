"""The benchmarks: they start, measure small sizes, and their pages follow from their figures."""

import json
import mmap
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from helpers import job
from omegaconf import OmegaConf

from slide.config import read_config
from slide.data import SparseDataset, Split
from slide.sparse import CSR, Pattern

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"


def test_they_import_and_their_settings_exist(bench):
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert len(names) <= 30
    for name in names:
        assert bench(name).__doc__
    cases = [*bench("ablation").WITHOUT.values(), *bench("look_up").CASES.values()]
    cases += [bench("step").DATA, *bench("prediction").GENERATED.values()]
    cases += [case for case in bench("sized").CASES.values() if not isinstance(case, str)]
    for case in cases:
        read_config(case)
    assert len(cases) > 20
    config = read_config([])
    for name, where in bench("constants").NAMES.items():
        own = name.removeprefix(f"{where}.")
        if where.startswith("slide."):
            assert getattr(import_module(where), own) > 0
        else:
            assert own in OmegaConf.select(config, where)


@pytest.mark.compiled_only
def test_a_size_is_measured(bench, monkeypatch):
    sized = bench("sized")
    monkeypatch.setattr(sized, "ALTERNATIONS", 1)
    monkeypatch.setattr(sized, "BATCHES", 2)
    size = sized.Size("lsh, sample", outputs=600, features=300, hidden=8)
    with job.global_state_put_back():
        found = sized.measured(*size, seconds=0)
    assert set(found["spread_ms"]) == set(found["ms"]) >= {"1"}
    assert min(found["ms"].values()) > 0
    assert "rebuild_ms" in found
    assert found["bytes"] > 1e7


def graph():
    """Rows of a knowledge graph; a test row repeats a training row and asks for another label."""

    def split(rows, labels):
        pattern = Pattern.from_lists(rows)
        ones = np.ones(len(pattern.indices), np.float32)
        return Split(CSR(*pattern, ones), Pattern.from_lists(labels), 7, 4)

    train, test = split([[0, 5], [0, 6]], [[2, 3], [1]]), split([[0, 5], [1, 4]], [[0], [2]])
    return SparseDataset("a", train, test, 7, 4)


def test_seen_items_are_left_out_for_everyone(bench):
    asked, evaluation = [], bench("peers").Evaluation(graph())
    assert evaluation.left_out.tolist() == [2, 0]

    def best(features, k):
        asked.append(k)
        return np.array([[3, 2, 0, 1], [1, 2, 3, 0]])

    assert evaluation.of(best)["p_at_1"] == 0.5
    assert asked == [4]  # No more than there are labels.


PAGES = sorted(
    path.relative_to(ROOT / "results").with_suffix("").as_posix()
    for path in (ROOT / "results").rglob("*.md")
)


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_those_of_their_figures(bench, name):
    found = json.loads((ROOT / "results" / f"{name}.json").read_text())
    text = (ROOT / "results" / f"{name}.md").read_text()
    program = bench({"as_published": "slide_cpp"}.get(Path(name).name, Path(name).name))
    assert text.endswith(program.page(found))


def test_what_this_process_holds(bench):
    resident_memory = bench("harness").resident_memory
    before = resident_memory()
    if not before:
        pytest.skip("the system does not tell")
    # Not from memory that this process has freed and kept.
    held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.write(b"x" * len(held))
    assert 0.9 * len(held) < resident_memory() - before < 2 * len(held)
