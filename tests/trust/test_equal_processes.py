"""Two runs on two processes have the same bits, for each sampler that layers can share out."""

import os

import pytest
from helpers.torchrun import torchruns

from slide.utils.tensor_folder import read_tensors

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]
SAMPLERS = ("uniform", "lsh", "recent")
RUNS = """
bare = [word for word in small if not word.startswith(("sampler=", "trainer.log_every"))]
bare += ["runtime.deterministic=true", "trainer.epochs=1", "trainer.max_steps=4"]
found = {}
for sampler in SAMPLERS:
    more = [] if sampler == "full" else ["sampler.active=30"]
    for turn in range(2):
        words = [*bare, f"sampler={sampler}", *more, f"run_dir={folder}/{sampler}{turn}"]
        found[f"{sampler}{turn}"] = run(words, 2)
"""


def test_two_runs_on_two_processes(tmp_path):
    ranks = torchruns(RUNS.replace("SAMPLERS", repr(SAMPLERS)), tmp_path, seconds=500)
    for sampler in SAMPLERS:
        for turn in range(2):
            ended = ranks[f"{sampler}{turn}"]
            assert [rank["status"] for rank in ended] == [0, 0], (sampler, ended)
        one, other = (read_tensors(tmp_path / f"{sampler}{turn}", "network") for turn in range(2))
        assert one.keys() == other.keys()
        for name, weight in one.items():
            assert (weight == other[name]).all(), (sampler, name)
