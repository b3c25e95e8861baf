"""Deterministic runs have the same bits for any number of threads, with the re-ranker."""

import json

import pytest
from helpers import job
from helpers.programs import output_of
from numba.core import config as numba_config

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(numba_config.NUMBA_NUM_THREADS < 2, reason="needs two threads"),
]
# Large enough for the products to be computed by several threads.
SIZES = {
    "num_features": 2_000,
    "num_labels": 3_000,
    "train_samples": 5 * 256 + 7,  # Sums of the last, short batch differ between threads of torch.
    "test_samples": 100,
    "nonzeros": 30,
}
SHARED = [
    *("network.hidden=[256]", "sampler.mode=shared", "sampler.active=1024"),
    *("trainer.batch_size=256", "ranker=none", "trainer.max_steps=4"),
]
PER_SAMPLE = [
    *("sampler.mode=per_sample", "sampler.active=64", "network.hidden=[64]", "ranker=none"),
    "trainer.max_steps=3",
]
# All samplers; the default one with the re-ranker.
CASES = {
    "grouped": [
        *("network.hidden=[256]", "sampler.active=64", "trainer.batch_size=256"),
        *("ranker.depth=10", "ranker.voted=10", "ranker.associated=5", "ranker.negatives=10"),
    ],
    "full": ["sampler=full", "network.hidden=[64]", "ranker=none", "trainer.max_steps=3"],
    "lsh shared": ["sampler=lsh", *SHARED],
    **{
        f"{name} per sample": [f"sampler={name}", *PER_SAMPLE]
        for name in ("lsh", "sketch", "slide2020", "recent", "uniform")
    },
    "faiss": ["sampler=faiss", "sampler.proposer.factory=Flat", *PER_SAMPLE],
    "recent grouped": ["sampler=recent", *PER_SAMPLE, "sampler.mode=grouped"],
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


# Shapes at which products of torch differ between 1, 2, 3 and 4 threads.
STEPS = """
import hashlib, itertools, numpy as np, torch
from functools import partial
import slide
from slide import runtime

def digest(threads, hidden, active, batch, precision, **more):
    runtime.set_deterministic(True, seed=3)
    runtime.set_threads(threads)
    sampler = partial(slide.ActiveSampler, active=active, **more)
    network = slide.SlideNetwork(500, [hidden], 4000, sampler, precision=precision)
    optimizer = slide.RowSparseAdam(network.parameters())
    for step in range(4):
        rng = np.random.default_rng(step)
        x = torch.from_numpy(rng.random((batch, 500), np.float32))
        labels = [rng.choice(4000, 3, replace=False).tolist() for _ in range(batch)]
        loss, _ = network.output.loss(network.encode(x), labels, slide.ActiveLoss("softmax"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = hashlib.sha256()
    for parameter in network.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()

SHAPES = (256, 2048, 5), (256, 2048, 7), (100, 1001, 33), (1500, 100, 33)
for shape, precision in itertools.product(SHAPES, ("float32", "bfloat16")):
    found = {threads: digest(threads, *shape, precision) for threads in (1, 2, 3, 4)}
    assert len(set(found.values())) == 1, (shape, precision, found)
    assert runtime.num_threads() == 4
    runtime.set_deterministic(False, seed=3)
    assert torch.get_num_threads() == 4
GROUPED = {"mode": "grouped", "group_size": 4, "proposer": slide.LSHProposer}
for shape in ((256, 200, 39), (1500, 100, 133), (512, 200, 255)):
    found = {threads: digest(threads, *shape, "float32", **GROUPED) for threads in (1, 2, 3, 4)}
    assert len(set(found.values())) == 1, (shape, found)
print("equal")
"""


def test_more_threads_and_other_shapes():
    assert output_of("-c", STEPS, NUMBA_NUM_THREADS="4") == "equal\n"
