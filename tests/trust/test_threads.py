"""Deterministic runs have the same bits for any number of threads, with the re-ranker."""

import json

import pytest
from helpers import job
from numba.core import config as numba_config

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(numba_config.NUMBA_NUM_THREADS < 2, reason="needs two threads"),
]
# Large enough for the products to be computed by several threads.
SIZES = {
    "num_features": 2_000,
    "num_labels": 3_000,
    "train_samples": 1_300,
    "test_samples": 100,
    "nonzeros": 30,
}
CASES = {
    "shared": [
        *("network.hidden=[256]", "sampler.active=1024", "trainer.batch_size=256"),
        *("ranker.depth=10", "ranker.voted=10", "ranker.associated=5", "ranker.negatives=10"),
    ],
    "per sample": [
        *("sampler=lsh", "sampler.mode=per_sample", "sampler.active=64", "trainer.max_steps=4"),
        *("hash.num_tables=8", "ranker=none", "network.hidden=[64]"),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_threads(tmp_path, case):
    found = []
    for threads in (1, 2):
        run = tmp_path / f"run{threads}"
        job.main(
            *(f"dataset.{name}={value}" for name, value in SIZES.items()),
            *(f"dataset.cache={tmp_path}/cache", f"run_dir={run}", "report=false"),
            *("trainer.epochs=1", f"runtime.threads={threads}", "runtime.deterministic=true"),
            "trainer.share_cores=false",  # Beside other work, two threads would become one.
            *CASES[case],
        )
        summary = json.loads((run / "summary.json").read_text())
        scores = {name: value for name, value in summary.items() if "_at_" in name}
        assert scores
        found.append((job.checkpoint(run), scores, job.files_of(run / "model")))
    one, two = found
    job.assert_same(two[0], one[0])
    assert two[1] == one[1]
    assert two[2] == one[2]
