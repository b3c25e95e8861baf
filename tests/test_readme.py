"""The README's examples run as they stand."""

import json
import re
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_library_example():
    torch.manual_seed(0)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["ids"].shape == (2, 5)
    assert all(label in names["scores"].active.ids for label in (17, 99_123, 5))
    # The step moved the scores of the labels towards their targets.
    output, x = names["output"], names["encoder"](names["x"])
    after = output(x, names["labels"])
    assert names["loss"](after.values, after.active) < names["loss"](*names["scores"][:2])


def test_commands_name_existing_files():
    for command in ("main", "tests"):
        (block,) = re.findall(rf"<!-- {command} -->\n```bash\n(.*?)```", README, re.DOTALL)
        assert "-c constraints.txt" in block


def test_figures_are_the_generated_ones(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests" / "benchmarks"), *sys.path])
    import accuracy
    import main_job
    import precision_page

    found = {
        name: json.loads((ROOT / "results" / f"{name}.json").read_text())
        for name in ("accuracy", "main_job", "precision")
    }
    assert main_job.sentences(found["main_job"]) in README
    assert precision_page.summary(found["precision"]["rows"]) in README
    pages = {"accuracy": accuracy.page, "main_job": main_job.page, "precision": precision_page.page}
    for name, page in pages.items():
        assert (ROOT / "results" / f"{name}.md").read_text().endswith(page(found[name]))


def test_speed_is_the_generated_one(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests" / "benchmarks"), *sys.path])
    import step

    found = json.loads((ROOT / "results" / "benchmarks" / "step.json").read_text())
    assert step.summary(found) in README


def test_readme_is_short():
    assert len(README.splitlines()) < 150
    tables = re.findall(r"(?:^\|.*\n)+", README.partition("## As a library")[0], re.MULTILINE)
    assert len(tables) == 2
    assert all(len(table.splitlines()) <= 2 + 6 for table in tables)


def test_pages_of_seeds_are_the_generated_ones(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests" / "benchmarks"), *sys.path])
    import seeds

    found = json.loads((ROOT / "results" / "seeds.json").read_text())
    assert (ROOT / "results" / "seeds.md").read_text().endswith(seeds.page(found))


def test_seeds_say_what_they_leave_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests" / "benchmarks"), *sys.path])
    import seeds

    monkeypatch.setattr(seeds, "RESULTS", tmp_path)
    assert seeds.stored() == {}
    here = {"machine": seeds.machine(), "versions": seeds.runtime.versions()}
    for change, kept in (({}, True), ({"machine": "another"}, False)):
        found = here | change | {"seeds": {"csr": {}, "conv": {}}}
        (tmp_path / "seeds.json").write_text(json.dumps(found))
        assert bool(seeds.stored()) == kept
    assert capsys.readouterr().out.strip().endswith("of other machine: csr, conv")


def test_benchmarks_describe_themselves():
    for path in (ROOT / "tests" / "benchmarks").glob("seed_*.py"):
        about = path.read_text().partition('"""')[2].partition('"""')[0].partition(".py")[2]
        assert len(about.partition("\n\n")[2].split()) > 10, path.name
