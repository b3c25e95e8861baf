"""``train.py`` on several processes: scores, folders and weights as on any other number."""

import json
import os
import re

import numpy as np
import pytest
from helpers.programs import run_program
from helpers.torchrun import SMALL, torchruns

import slide
from slide.training.checkpoint import assembled, last_checkpoint, read_states
from slide.utils.tensor_folder import read_tensors

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]
# ``SLIDE_RANK_KILLS=50`` kills more often.
KILLS = int(os.environ.get("SLIDE_RANK_KILLS", "1"))
RUNS = """
import os, random, shutil, time

# Ranks inherit the libraries and kernels of the re-ranker.
bare = [word for word in small if word not in ("ranker=none", "trainer.epochs=2")]
sys.argv = ["train.py", *bare, "trainer.epochs=1", f"run_dir={folder}/ranker"]
command.train()

# A run that nothing disturbs, and one that goes on with other numbers of processes.
# Its optimizer keeps both moments.
words = [*small, "optimizer.betas=[0.9,0.99]", "trainer.checkpoint_every=5", "runtime.timeout=8"]
begin = time.perf_counter()
found = {"whole": run([*words, f"run_dir={folder}/whole"], 2)}
length, parts = time.perf_counter() - begin, [*words, f"run_dir={folder}/parts"]
for size, steps in ((2, 5), (1, 9), (3, 14), (1, 20)):
    found[f"{size} {steps}"] = run([*parts, f"trainer.max_steps={steps}"], size)
    parts = [f"resume={folder}/parts"]
found["again"] = run([f"resume={folder}/whole"], 1)

# Sets that are looked up, on the same number of processes.
looked_up = [word for word in words if word != "sampler=full"]
looked_up += ["sampler=lsh", "sampler.active=20", "trainer.max_steps=12"]
found["lsh"] = run([*looked_up, f"run_dir={folder}/lsh"], 2)
found["lsh 7"] = run([*looked_up, f"run_dir={folder}/lsh parts", "trainer.max_steps=7"], 2)
found["lsh 12"] = run([f"resume={folder}/lsh parts", "trainer.max_steps=12"], 2)

# Ranks that are killed at a random moment, and started again as torchrun does it.
draw, killed = random.Random(4), []
while len(killed) < KILLS:
    chain = f"chain {len(killed)}"
    for attempt in range(draw.randint(1, 3)):
        ranks = start([*words, f"run_dir={folder}/{chain}"], 2, TORCHELASTIC_RESTART_COUNT=attempt)
        time.sleep(draw.uniform(0.2, 0.9) * length)
        struck = draw.randrange(2)
        ranks[struck].kill()
        begin = time.perf_counter()
        ended = [rank.wait() for rank in ranks]
        killed.append({**ended[1 - struck], "seconds": time.perf_counter() - begin})
        done = os.path.exists(f"{folder}/{chain}/summary.json")
        if done or len(killed) == KILLS:
            break
    # A run that had ended is no run to start again.
    again = f"resume={folder}/{chain}" if done else f"run_dir={folder}/{chain}"
    more = [] if done else words
    found[chain] = run([*more, again], 2, TORCHELASTIC_RESTART_COUNT=0 if done else 1)

# A rank that is killed while the first one trains the re-ranker; then one process evaluates anew.
others = [*bare, "trainer.checkpoint_every=5", "runtime.timeout=30"]
ranked = [*others, "trainer.epochs=40", "trainer.patience=1", "runtime.deterministic=true"]
ranks = start([*ranked, f"run_dir={folder}/ranked"], 2)
begin = time.perf_counter()
while "re-ranker: learns" not in open(ranks[0].said).read() and time.perf_counter() < begin + 90:
    time.sleep(0.01)
ranks[KILLS % 2].kill()
struck = [rank.wait() for rank in ranks]
found["ranked"] = run([*ranked, f"run_dir={folder}/ranked"], 2, TORCHELASTIC_RESTART_COUNT=1)
shutil.copytree(f"{folder}/ranked", f"{folder}/ranked alone")
found["ranked alone"] = run([f"resume={folder}/ranked alone"], 1)

auto = [word for word in others if word != "lr_schedule=constant"]
auto += ["ranker=none", "trainer.epochs=auto", "trainer.max_epochs=3"]
found["auto"] = run([*auto, f"run_dir={folder}/auto"], 2)

# A network that one process cannot hold: the limit stands for the memory of a machine.
large = [word for word in small if not word.startswith(("sampler=", "network.hidden="))]
large += ["dataset.num_labels=400000", "network.hidden=[96]", "sampler.active=64"]
large += ["sampler=uniform", "trainer.max_steps=1"]
limited = {
    size: run([*large, f"run_dir={folder}/large{size}"], size, LIMIT_MB=280) for size in (1, 2)
}
found = {"ended": found, "killed": killed, "limited": limited, "struck": struck}
""".replace("KILLS", str(KILLS))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the ranks of all runs said, and the folder of the runs."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_ARENA_MAX", "1")  # Threads of gloo would get arenas of their own.
        return torchruns(RUNS, folder, 260 + 30 * KILLS), folder


def lines(folder, name):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in found if name in line]


def test_they_end_well_and_one_process_speaks(runs):
    for name, ranks in runs[0]["ended"].items():
        assert [rank["status"] for rank in ranks] == [0] * len(ranks), f"{name}: {ranks}"
        assert "P@1" in ranks[0]["said"]
        assert all(not rank["said"] for rank in ranks[1:])


def test_resumed_on_other_numbers_of_processes_they_end_as_one_that_nothing_disturbed(runs):
    whole, parts = (read_tensors(runs[1] / name, "network") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, weight in whole.items():
        assert (weight - parts[name]).abs().max() < 1e-5, name
    losses = [lines(runs[1] / name, "train/loss") for name in ("whole", "parts")]
    assert len(losses[0]) == len(losses[1]) == 20
    for one, other in zip(*losses, strict=True):
        assert other == pytest.approx(one, rel=1e-5)


def test_active_sets_go_on_as_in_a_run_that_nothing_disturbed(runs):
    whole, parts = (read_tensors(runs[1] / name, "network") for name in ("lsh", "lsh parts"))
    assert whole.keys() == parts.keys()
    for name, weight in whole.items():
        assert (weight == parts[name]).all(), name


def test_moments_come_along_exactly(runs):
    """Put together from the parts of two processes, they are those of one that has all rows."""
    whole, parts = (read_states(last_checkpoint(runs[1] / name)) for name in ("chain 0", "parts"))
    assert (len(whole), len(parts)) == (2, 1)
    sizes, names = {"first": 90, "output": 60}, ["output.weight", "output.bias", "first.weight"]
    names.append("first.bias")
    _, found = assembled(whole, None, sizes, names)
    for number, state in parts[0]["optimizer"]["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            assert (found["state"][number][name] - state[name]).abs().max() < 1e-6
        assert found["state"][number]["step"] == state["step"] == 20


def test_the_others_end_when_a_process_is_killed(runs):
    for survivor in runs[0]["killed"]:
        assert survivor["seconds"] < 8 + 20
        if survivor["status"] == 0:  # The other one was killed when all was done.
            continue
        sentences = [line for line in survivor["said"].splitlines() if line.startswith("error: ")]
        assert len(sentences) == 1, survivor["said"]
        # Or it was killed before they met.
        told = "another process of the run has ended", "2 processes were there after 8 seconds"
        assert any(words in sentences[0] for words in told)
        assert "Traceback" not in survivor["said"]


def test_killed_runs_end_as_others_do(runs):
    chains = [name for name in runs[0]["ended"] if name.startswith("chain")]
    assert chains
    whole = read_tensors(runs[1] / "whole", "network")
    for chain in chains:
        for name, weight in read_tensors(runs[1] / chain, "network").items():
            assert (weight == whole[name]).all(), (chain, name)


def test_two_processes_hold_what_one_cannot(runs):
    (alone,), pair = runs[0]["limited"].values()
    assert alone["status"] == 1
    assert "error: there is not enough memory" in alone["said"]
    assert [rank["status"] for rank in pair] == [0, 0], pair
    assert " for 2 processes: weights " in pair[0]["said"]


def test_the_scores_are_those_of_one_process(runs):
    """One process that goes on with the last checkpoint has nothing to do but to evaluate."""
    said, again = (
        runs[0]["ended"][name][0]["said"].splitlines()[-1] for name in ("whole", "again")
    )
    assert said.startswith("P@1 0.")
    assert again == said


def test_the_re_ranker_is_that_of_one_process(runs):
    """Resumed after the last step, one process trains it anew, for the same network."""
    shared, alone = (
        json.loads((runs[1] / name / "summary.json").read_text())
        for name in ("ranked", "ranked alone")
    )
    assert shared["processes"] == 2
    scores = [name for name in alone if "_at_" in name or name == "calibration_error"]
    assert any(name.startswith("network_") for name in scores)
    for name in scores:
        assert shared[name] == pytest.approx(alone[name], abs=1e-5), name
    rng = np.random.default_rng(0)
    features = rng.integers(0, 90, 80).astype(np.int32)
    rows = slide.CSR(np.arange(0, 81, 4), features, np.ones(80, np.float32))
    one, other = (slide.load(runs[1] / n).predict(rows, k=5) for n in ("ranked", "ranked alone"))
    np.testing.assert_allclose(one[1], other[1], atol=1e-5)
    assert (one[0] == other[0]).mean() > 0.95
    assert slide.load(runs[1] / "ranked").ranker is not None


def test_a_kill_while_the_re_ranker_learns(runs):
    codes = [rank["status"] for rank in runs[0]["struck"]]
    assert sorted(codes) == [-9, 1], runs[0]["struck"]
    said = runs[0]["struck"][codes.index(1)]["said"]
    assert said.count("error: another process of the run has ended") == 1, said
    for name in ("ranked", "ranked alone"):
        again = runs[0]["ended"][name][0]["said"]
        assert re.search(r"the weights of step \d+ are kept\nre-ranker: learns", again)
    assert lines(runs[1] / "ranked", "reranked/p_at_1") != []


def test_they_find_the_number_of_epochs(runs):
    assert "the rate falls until step" in runs[0]["ended"]["auto"][0]["said"]


def test_one_folder_with_a_log_of_one_process(runs):
    for name in ("whole", "chain 0"):
        folder = runs[1] / name
        assert lines(folder, "train/loss") != []
        assert len(list((folder / "checkpoints").iterdir())) == 2
        assert not list(folder.glob("*.tmp"))


# The end of a process, with threads of gloo, aborts it at random; so this looks for them, too.
PROGRAM = """
import torch.distributed as dist
from slide.config.command import train

train()
assert not dist.is_initialized(), "the processes have not parted"
"""


def test_torchrun_itself_starts_processes_that_part_at_the_end(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    start = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    start += ["--rdzv-endpoint=localhost:0", "program.py", *SMALL]
    words = [*start, f"dataset.cache={tmp_path}/cache", f"run_dir={tmp_path}/run"]
    done = run_program(*words, cwd=tmp_path, timeout=150, GLOO_SOCKET_IFNAME="lo")
    assert not done.returncode, done.stderr
    assert done.stdout.count("P@1") == 1
