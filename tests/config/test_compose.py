"""What is said of overrides before anything runs."""

import pytest
from helpers import job

from slide.config.compose import combinations, read_config, read_value, readable

DATASETS = list(job.CONF.glob("dataset/*.yaml"))


@pytest.mark.parametrize(
    ("glob", "count"), [("dataset=glob(*)", len(DATASETS)), ("dataset=glob([m*,d*])", 6)]
)
def test_globs_are_choices_of_a_group(glob, count):
    assert len(combinations([glob, "seed=1,2"])) == 2 * count
    with pytest.raises(ValueError, match="there is no key seeed"):
        combinations([glob, "seeed=1"])
    with pytest.raises(ValueError, match="optimizer.lr=glob.* finds no file"):
        combinations(["optimizer.lr=glob(*)"])


def test_a_glob_without_a_sweep_is_refused():
    with pytest.raises(ValueError, match="Sweep parameters"):
        read_config(["dataset=glob(*)"])


def test_keys_of_the_same_last_part_are_near():
    with pytest.raises(ValueError, match=r"did you mean trainer\.batch_size\?$"):
        combinations(["sampler.x.batch_size=3"])


def test_a_key_of_several_groups_brings_all_of_them():
    message = r"did you mean sampler\.proposer\.probes or hash\.probes\?$"
    with pytest.raises(ValueError, match=message):
        read_config(["probes=3"])


@pytest.mark.parametrize(
    "path",
    ["a_lr=0.1,hidden=_64_", "/home/jürgen/x", "a,b", "it's (new)", "back\\", "7", "[x]", "~/x"],
)
def test_paths_are_read_as_they_are(path):
    assert read_value(f"resume={path}") == path
    assert read_config([f"run_dir={path}", f"+dataset.root={path}"]).run_dir == path
    combinations([f"dataset.cache={path}"], sweeps=False)
    files = "train_file", "test_file", "train_labels_file", "test_labels_file", "file"
    for name in files:
        assert read_value(f"dataset.{name}={path}") == path


def test_what_hydra_reads_as_text_stays():
    for word in (
        "resume=null",
        "run_dir='a=b'",
        "run_dir=a\\,b",
        "dataset.root=${run_dir}/x",
        "resume",
    ):
        assert readable(word) == word
    assert readable("dataset.root=a,b", sweeps=True) == "dataset.root=a,b"
    assert readable("seed=1,2") == "seed=1,2"


def test_unclear_paths_of_a_sweep_are_to_be_quoted():
    with pytest.raises(ValueError, match=r"resume=a_lr=0\.1,b_lr=0\.2 .* quote each path"):
        readable("resume=a_lr=0.1,b_lr=0.2", sweeps=True)
    quoted = "resume='a_lr=0.1','b_lr=0.2'"
    assert readable(quoted, sweeps=True) == quoted
    assert readable("resume=a_lr=0.1", sweeps=True) == "resume='a_lr=0.1'"
