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
    *("dataset.num_features=40000", "dataset.num_labels=30000", "dataset.test_samples=50"),
    *("trainer.batch_size=512", "trainer.epochs=1", "runtime.threads=1", "report=false"),
)
# In the last one the re-ranker takes the most.
RUNS = {
    "hash tables": (
        *("network.hidden=[256]", "trainer.checkpoint_every=3", "dataset.train_samples=4000"),
        *("ranker=none", "sampler=lsh", "hash.num_tables=64"),
    ),
    "re-ranker": ("network.hidden=[32]", "dataset.train_samples=25000"),
}


def held(process):
    """MiB of arrays and the like so far, at most; files that are mapped do not count.

    The system keeps the most of both, so that a moment between two calls counts, too.
    """
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0.0
    found = dict(re.findall(r"(VmHWM|RssFile|RssAnon):\s+(\d+) kB", status))
    if len(found) < 3:
        return 0.0
    return max(int(found["RssAnon"]), int(found["VmHWM"]) - int(found["RssFile"])) / 1024


@pytest.mark.parametrize("run", RUNS)
def test_the_prediction_holds(tmp_path, run):
    # Compilers take memory in a first run, which the prediction leaves out: it has as many labels.
    more = [word for word in RUNS[run] if not word.startswith("dataset.train_samples")]
    small = "dataset.train_samples=600", f"dataset.cache={tmp_path}/few", f"run_dir={tmp_path}/few"
    job.main(*WORDS, *more, *small, "trainer.checkpoint_every=1")
    folders = f"dataset.cache={tmp_path}/cache", f"run_dir={tmp_path}/run"
    most, text = measured(tmp_path, [*WORDS, *RUNS[run], *folders])
    found = re.search(r"needs about ([\d.,]+) (GiB|MiB)", text)
    assert found, text
    predicted = float(found[1].replace(",", "")) * {"GiB": 1024, "MiB": 1}[found[2]]
    assert predicted == pytest.approx(most, rel=0.2)


def measured(folder, words):
    """What a process of a run holds at most, in MiB, and what it says."""
    most = 0.0
    with (folder / "said").open("w+") as said:
        command = [sys.executable, "-W", "ignore", "train.py", *words]
        process = subprocess.Popen(command, cwd=job.ROOT, stderr=said, stdout=said)
        while process.poll() is None:
            most = max(most, held(process))
            time.sleep(0.01)
        said.seek(0)
        text = said.read()
    assert process.returncode == 0, text
    return most, text
