"""The memory that a run says it needs, against what its process then holds at most."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import job

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc"),
]
WORDS = (
    *("dataset.num_features=40000", "dataset.num_labels=30000", "dataset.train_samples=4000"),
    *("dataset.test_samples=50", "network.hidden=[256]", "trainer.batch_size=512", "ranker=none"),
    *("trainer.epochs=1", "trainer.checkpoint_every=3", "runtime.threads=1", "report=false"),
)


def held(process):
    """MiB of arrays and the like, without files that are mapped."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def test_the_prediction_holds(tmp_path):
    places = [f"dataset.cache={tmp_path}/cache", f"run_dir={tmp_path}/run"]
    words = [sys.executable, "-W", "ignore", "train.py", *WORDS, *places]
    most = 0.0
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(words, cwd=job.ROOT, stderr=said, stdout=said)
        while process.poll() is None:
            most = max(most, held(process))
            time.sleep(0.01)
        said.seek(0)
        text = said.read()
    assert process.returncode == 0, text
    found = re.search(r"needs about ([\d.,]+) (GiB|MiB)", text)
    assert found, text
    predicted = float(found[1].replace(",", "")) * {"GiB": 1024, "MiB": 1}[found[2]]
    assert predicted == pytest.approx(most, rel=0.25)
