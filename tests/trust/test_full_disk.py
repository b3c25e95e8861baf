"""Runs on a disk that gets full, for which a limit of the size of a file stands, without rights."""

import pytest
from helpers import job
from helpers.limits import limited

pytestmark = pytest.mark.compiled_only  # Compiled kernels are written to files, too.


@pytest.fixture
def finished(tmp_path):
    """A run of two steps, after which all kernels are there."""
    # The files of a checkpoint are larger than those of the log.
    job.main(*job.tiny(tmp_path, "network.hidden=[128]", "trainer.max_steps=2", "ranker=none"))
    return tmp_path / "run"


def test_in_the_cache(tmp_path, finished):
    words = job.tiny(tmp_path, f"run_dir={tmp_path}/other", "dataset.train_samples=40000")
    with limited(200_000):
        said = job.failure(*words)
    assert "no space left for the cache of synthetic" in said
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_in_a_checkpoint(finished):
    before = job.files_of(finished / "checkpoints")
    with limited(25_000):
        said = job.failure(f"resume={finished}", "trainer.max_steps=4", "trainer.log_every=100")
    assert said.startswith(f"error: cannot write the checkpoint {finished}/checkpoints/2-step-4: ")
    assert said.endswith(f"; {finished}/checkpoints/1-step-2 is kept")
    assert job.files_of(finished / "checkpoints") == before
    job.main(f"resume={finished}", "trainer.max_steps=4")
    assert job.checkpoint(finished)["step"] == 4
