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
from helpers.commands import slide_predict

from slide import runtime

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def marked(name, language):
    """The code behind a mark."""
    (code,) = re.findall(rf"<!-- {name} -->\n+```{language}\n(.*?)```", README, re.DOTALL)
    return code


@pytest.mark.compiled_only
def test_from_matrices_to_answers(tmp_path, capsys, monkeypatch):
    """The lines as they stand: Python, then the commands."""
    data = job.make_data(tmp_path / "data", train_samples=400)
    x, y = data.train.features, data.train.labels
    X = scipy.sparse.csr_array((x.values, x.indices, x.indptr), (400, 60))
    Y = scipy.sparse.csr_array((np.ones(len(y.indices)), y.indices, y.indptr), (400, 80))
    scipy.sparse.save_npz(tmp_path / "features.npz", X)
    scipy.sparse.save_npz(tmp_path / "labels.npz", Y)
    fit, shell = marked("first", "python"), marked("predict", "bash")
    assert [len(text.split("\n\n")[-1].splitlines()) for text in (fit, shell)] == [2, 3]
    monkeypatch.chdir(tmp_path)
    names: dict = {"X": X[:100], "Y": Y[:100], "X_test": X[100:]}
    with job.global_state_put_back():
        exec(fit, names)
        exec("model.save('model')", names)
        precision = names["model"].score(X[100:], Y[100:])
    assert (names["labels"].shape, names["labels"].dtype) == ((300, 3), np.int64)
    predict, serve, ask = shell.splitlines()
    assert predict.startswith("slide-predict ")
    slide_predict(*predict.split()[1:])
    said = capsys.readouterr().err
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


def test_figures_are_the_generated_ones(bench):
    def found(name):
        return json.loads((ROOT / "results" / f"{name}.json").read_text())

    assert bench("main_job").sentences(found("main_job")) in README
    assert bench("precision").summary(found("precision")["rows"]) in README
    assert bench("step").summary(found("benchmarks/step")) in README
    assert bench("slide_cpp").summary(found("benchmarks/as_published")["rows"]) in README


def test_readme_is_short():
    assert len(README.splitlines()) <= 120
    tables = re.findall(r"(?:^\|.*\n)+", README, re.MULTILINE)
    assert len(tables) == 3
    assert all(len(table.splitlines()) <= 2 + 6 for table in tables)


def test_the_version_is_that_of_the_citation_and_of_a_change():
    version = f"version: {runtime.VERSION}\n"
    assert version in (ROOT / "CITATION.cff").read_text()
    assert f"## {runtime.VERSION}\n" in (ROOT / "CHANGELOG.md").read_text()
