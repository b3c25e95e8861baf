"""The benchmark of predictions: it measures what it says, on a small set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import job

from slide.data import write_xmc

ROOT = Path(__file__).parents[1]


@pytest.mark.compiled_only
def test_it_measures_a_small_run(tmp_path):
    job.main(*job.tiny(tmp_path))
    data = job.make_data(tmp_path / "same", **job.WITH_HELD)
    (tmp_path / "files/small").mkdir(parents=True)
    for name, split in (("train", data.train), ("test", data.test)):
        write_xmc(tmp_path / "files/small" / f"{name}.txt", split)
    words = [tmp_path / "run", "--root", tmp_path / "files", "--dataset", "small", "--threads", 1]
    words += ["--singles", 10, "--without-omikuji", "--results", tmp_path / "page"]
    command = [sys.executable, "-W", "ignore", ROOT / "tests/benchmarks/prediction.py", *words]
    # With the variables of this process, so that it finds the same compiled kernels.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads((tmp_path / "page/prediction.json").read_text())
    assert (found["rows"], found["labels"], found["default"]) == (40, 80, "exact")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    for case in found["cases"].values():
        assert case["p_at_1"] == pytest.approx(summary["p_at_1"])
        assert case["rows_per_second"] > 0
        assert 0 < case["p50"] <= case["p99"]
    text = (tmp_path / "page/prediction.md").read_text()
    assert "| slide, index | " in text
    assert "takes `exact`" in text
