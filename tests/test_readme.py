"""The README's examples run as they stand."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import requests
import scipy.sparse
import torch
from helpers import job

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def marked(name, language):
    """The code behind a mark."""
    (code,) = re.findall(rf"<!-- {name} -->\n+```{language}\n(.*?)```", README, re.DOTALL)
    return code


@pytest.mark.compiled_only
def test_from_matrices_to_answers(tmp_path):
    """The lines as they stand, each part in a process of its own; all of them are few."""
    data = job.make_data(tmp_path / "data", train_samples=400)
    x, y = data.train.features, data.train.labels
    X = scipy.sparse.csr_array((x.values, x.indices, x.indptr), (400, 60))
    Y = scipy.sparse.csr_array((np.ones(len(y.indices)), y.indices, y.indptr), (400, 80))
    scipy.sparse.save_npz(tmp_path / "features.npz", X)
    scipy.sparse.save_npz(tmp_path / "labels.npz", Y)
    fit, opened, shell = (
        marked("fit", "python"),
        marked("open", "python"),
        marked("predict", "bash"),
    )
    assert len([line for line in (fit + opened + shell).splitlines() if line]) <= 15

    def run(*words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        more = {"env": environment, "capture_output": True, "text": True, "cwd": tmp_path}
        done = subprocess.run([sys.executable, *words], **more)
        assert done.returncode == 0, done.stderr
        return done

    precision = float(run("-c", fit).stdout)
    labels = run("-c", opened + "print(labels.shape, labels.dtype)").stdout
    assert labels == "(400, 3) int64\n"
    predict, serve, ask = shell.splitlines()
    said = run(*predict.replace("slide-predict", "-m slide.predict").split()).stderr
    assert float(re.search(r"P@1 ([\d.]+)", said)[1]) > precision > 0.1
    assert scipy.sparse.load_npz(tmp_path / "answers.npz").shape == (400, 80)
    (answer,) = over_http(serve, ask, tmp_path)["answers"]
    assert len(answer["labels"]) == 5


def over_http(serve, ask, folder):
    """What the server of a line answers to the request of another; at a port that is free."""
    name, *words = serve.partition(" &")[0].replace("8000", "0").split()
    command = [sys.executable, "-m", name.replace("-", "."), *words, "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stderr=log, env=environment, cwd=folder)
    try:
        while not (found := re.search(r"running on (http://\S+)", (folder / "log").read_text())):
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        curl, address, _, header, _, body = shlex.split(ask)
        assert curl == "curl"
        headers = dict([header.split(":")])
        address = address.replace("localhost:8000", found[1])
        answer = requests.post(address, data=body, headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()
    finally:
        server.terminate()
        assert server.wait(30) == 0


def test_library_example():
    torch.manual_seed(0)
    names: dict = {}
    exec(marked("layer", "python"), names)
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
    import main_job
    import precision_page
    import serving

    found = {
        name: json.loads((ROOT / "results" / f"{name}.json").read_text())
        for name in ("main_job", "precision", "serving")
    }
    assert main_job.sentences(found["main_job"]) in README
    assert precision_page.summary(found["precision"]["rows"]) in README
    pages = {"main_job": main_job.page, "serving": serving.page}
    pages["precision"] = precision_page.page
    for name, page in pages.items():
        assert (ROOT / "results" / f"{name}.md").read_text().endswith(page(found[name]))


def test_speed_is_the_generated_one(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests" / "benchmarks"), *sys.path])
    import step

    found = json.loads((ROOT / "results" / "benchmarks" / "step.json").read_text())
    assert step.summary(found) in README


def test_readme_is_short():
    assert len(README.splitlines()) < 180
    tables = re.findall(
        r"(?:^\|.*\n)+", README.partition("## A sampled output layer")[0], re.MULTILINE
    )
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
