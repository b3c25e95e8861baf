"""What a run says of memory before it begins."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import job

from slide.config import build, needs
from slide.config.ranks import Ranks
from slide.distributed.launch import Place
from slide.training.needs import RankerSizes, TableSizes

MIB = 1 << 20
# Weights of 7 MiB and twice as many moments.
LARGE = ("dataset.num_features=6000", "network.hidden=[300]", "trainer.max_steps=1")


@pytest.fixture
def free(monkeypatch):
    """So much memory is free, and this process holds none yet."""
    monkeypatch.setattr(needs, "resident_memory", lambda: 0)
    return lambda size: monkeypatch.setattr(needs, "free_memory", lambda: size)


def said(capsys):
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("memory")]
    return line


def test_enough(tmp_path, free, capsys):
    free(3 << 30)
    job.main(*job.tiny(tmp_path, *LARGE, "ranker=none"))
    assert re.fullmatch(r"memory    needs about 8\d MiB, 3.0 GiB are free", said(capsys))


def test_a_system_that_does_not_tell(tmp_path, free, capsys):
    free(None)
    job.main(*job.tiny(tmp_path, *LARGE, "ranker=none"))
    assert re.fullmatch(r"memory    needs about 8\d MiB", said(capsys))


def test_too_little(tmp_path, free, capsys):
    """The run begins nevertheless, after a line that says what takes the most."""
    free(20 * MIB)
    words = ["ranker=none", "trainer.checkpoint_every=1"]
    job.main(*job.tiny(tmp_path, *LARGE, *words))
    line = said(capsys)
    assert "20 MiB are free: libraries 75 MiB, copy for checkpoints 14 MiB" in line
    advice = line.partition("To need less: ")[2].split("; ")
    assert advice[0] == "trainer.checkpoint_every=0", "the largest part comes first"
    assert set(advice[1:]) == {"network.hidden=[150]", "optimizer.rowwise=true"}


def test_not_even_the_weights(tmp_path, free):
    free(5 * MIB)
    message = job.failure(*job.tiny(tmp_path, *LARGE, "ranker=none"))
    assert message == (
        "error: the weights alone take 7 MiB, and 5 MiB are free: network.hidden=[150]"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sampler=lsh"], {"tables": TableSizes(4, 8, 128), "active": 32, "shared": True}),
        (["sampler=lsh", "sampler.mode=per_sample"], {"shared": False}),
        (["sampler=faiss"], {"vectors": True, "tables": None}),
        (["sampler=full"], {"active": 80, "tables": None, "vectors": False}),
        (["sampler.active=500"], {"active": 80, "tables": None, "shared": True}),
        (["ranker=none", "trainer.epochs=2"], {"ranker": None, "copied": False}),
        (["ranker.negatives=7"], {"ranker": RankerSizes(110, 7, 60, 80), "copied": True}),
        (["dataset.holdout=0.5", "ranker=none"], {"copied": True}),
        (["trainer.evaluation=index"], {"row_index": True}),
        (["optimizer.rowwise=true"], {"rowwise": True, "last_steps": False, "first_moment": False}),
        (["optimizer.betas=[0.9,0.9]"], {"first_moment": True}),
        (["optimizer.correct_skipped=true"], {"last_steps": True}),
        (["trainer.checkpoint_every=5"], {"checkpoints": True}),
        (["network.hidden=[8,9]"], {"hidden": (8, 9), "batch": 16, "features": 60, "labels": 80}),
    ],
)
def test_sizes(tmp_path, words, expected):
    config = job.compose(*job.tiny(tmp_path, *words))
    data = build.open_dataset(config)
    build.fill_in(config, len(data.train), data.num_labels)
    sizes = needs.run_sizes(config, data)
    assert {name: getattr(sizes, name) for name in expected} == expected
    assert (sizes.rows, sizes.targets) == (150, len(data.train.labels.indices))


@pytest.mark.parametrize(
    ("kind", "weighted"), [("other", False), ("items", True), ("items", False)]
)
def test_negatives_take_no_memory_of_regressions(tmp_path, free, capsys, kind, weighted):
    free(20 * MIB)
    config = job.compose(*job.tiny(tmp_path, "ranker=ensemble", f"trainer.kind={kind}"))
    data = build.open_dataset(config)
    if weighted:
        data = replace(data, train=replace(data.train, weights=np.ones(len(data.train))))
    build.fill_in(config, len(data.train), data.num_labels)
    needs.announce_memory(config, data)
    line = said(capsys)
    assert "ranker=none" in line
    assert ("ranker.negatives" in line) == (kind == "other" or weighted)


def test_sizes_do_not_draw(tmp_path):
    config = job.compose(*job.tiny(tmp_path, "sampler=lsh"))
    data, before = build.open_dataset(config), torch.get_rng_state()
    build.fill_in(config, len(data.train), data.num_labels)
    needs.announce_memory(config, data)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_process_has_the_ranker(tmp_path, free, capsys):
    config = job.compose(*job.tiny(tmp_path, *LARGE))
    data = build.open_dataset(config)
    build.fill_in(config, len(data.train), data.num_labels)
    ranks = [Ranks(Place(r, 2, r, 2), SimpleNamespace(rank=r, size=2)) for r in range(2)]  # type: ignore[arg-type]
    first, other = (needs.run_sizes(config, data, each) for each in ranks)
    assert first.ranker is not None
    assert first._replace(ranker=None) == other
    assert first.ranker == needs.run_sizes(config, data).ranker, "it has all features and labels"
    free(3 << 30)
    needs.announce_memory(config, data, ranks[0])
    numbers = re.fullmatch(
        r"memory    each process needs about (\d+) MiB, and the first one (\d+) MiB for the "
        r"re-ranker, (.*) GiB are free for it",
        said(capsys),
    )
    assert numbers is not None
    each, leads, there = map(float, numbers.groups())
    assert each + 100 < leads < 2 * each + 100  # Its libraries take 100.
    assert there == pytest.approx(3 - each / 1024, abs=0.1)  # The other one leaves more than half.


@pytest.mark.parametrize(("width", "bins"), [(4096, 2048), (10_000, 8192)])
def test_bins_of_many_coordinates(width, bins):
    """Settings are tried, and tables predicted, for layers that are narrow but as wide as a bin."""
    words = [f"network.hidden=[{width}]", "sampler=lsh", "hash=dwta", f"hash.bin_size={bins}"]
    config = job.compose(*words, "hash.hashes_per_table=1")
    build.check_settings(config)
    found = needs._table_sizes(config.sampler.proposer, width, 100)
    assert bins in found
