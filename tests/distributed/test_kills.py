"""Ranks that are killed at random moments: the others end, and the run goes on to the same end.

``SLIDE_RANK_KILLS=50`` kills more often.
"""

import os

import pytest
from helpers.torchrun import torchruns

from slide.tensor_folder import read_tensors

KILLS = int(os.environ.get("SLIDE_RANK_KILLS", "2"))
# Ranks are killed in turn, at a random moment between the first step and about the last one.
CODE = """
import random, time
words = [*small, "trainer.checkpoint_every=3", "trainer.epochs=4", "runtime.timeout=8"]
begin = time.perf_counter()
found = {"whole": run([*words, f"run_dir={folder}/whole"], 2), "killed": []}
length, draw, kills = time.perf_counter() - begin, random.Random(0), KILLS
for chain in range(kills):
    words = [*words[:len(small) + 3], f"run_dir={folder}/{chain}"]
    for attempt in range(kills - len(found["killed"])):
        ranks = start(words, 2, TORCHELASTIC_RESTART_COUNT=attempt)
        time.sleep(draw.uniform(0, length))
        struck = draw.randrange(2)
        ranks[struck].kill()
        begin = time.perf_counter()
        ended = [rank.wait() for rank in ranks]
        seconds = time.perf_counter() - begin
        if ended[struck]["status"] == 0:
            break
        found["killed"].append({**ended[1 - struck], "seconds": seconds})
        if attempt == 2:
            break
    found[str(chain)] = run(words, 2, TORCHELASTIC_RESTART_COUNT=1)
    if len(found["killed"]) >= kills:
        break
"""


@pytest.mark.compiled_only
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_killed_ranks(tmp_path):
    found = torchruns(CODE.replace("KILLS", str(KILLS)), tmp_path, seconds=170 + 20 * KILLS)
    killed = found.pop("killed")
    assert killed
    for survivor in killed:
        assert survivor["seconds"] < 8 + 20
        if survivor["status"] == 0:  # The other one was killed when all was done.
            continue
        sentences = [line for line in survivor["said"].splitlines() if line.startswith("error: ")]
        assert len(sentences) == 1, survivor["said"]
        # Or it was killed before they met.
        told = "another process of the run has ended", "2 processes were there after 8 seconds"
        assert any(words in sentences[0] for words in told)
        assert "Traceback" not in survivor["said"]
    whole = read_tensors(tmp_path / "whole", "network")
    for name, ranks in found.items():
        assert [rank["status"] for rank in ranks] == [0, 0], ranks
        weights = read_tensors(tmp_path / name, "network")
        for key, weight in whole.items():
            assert (weight - weights[key]).abs().max() == 0, (name, key)
