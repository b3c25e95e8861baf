"""What processes of a run must agree on, and what they say if they do not."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers import job

import slide
from slide.config import build
from slide.config import ranks as places
from slide.config.ranks import (
    Ranks,
    check_ranks,
    check_same,
    once_a_machine,
    share_folder,
)
from slide.distributed.launch import Errors, Place, find_place
from slide.functional.losses import find_loss
from slide.utils import run_folders

TOLD = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TOLD |= {"MASTER_ADDR": "host", "MASTER_PORT": "29400"}


def several(gather=None, size=2):
    """Processes of which only the first one is there; ``gather`` says what the others answer."""
    group = SimpleNamespace(rank=0, size=size, barrier=lambda: None, broadcast=lambda value: value)
    group.gather = gather or (lambda value: [value] * size)
    group.patient = group
    return Ranks(Place(0, size, 0, size), group)


def test_where_torchrun_puts_a_process():
    assert find_place(TOLD) == Place(1, 4, 1, 2)
    assert find_place({**TOLD, "MASTER_PORT": ""}).size == 4
    assert find_place({"RANK": "1", "WORLD_SIZE": "4"}) == Place()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("RANK", "4", "do not fit each other"),
        ("LOCAL_WORLD_SIZE", "1", "do not fit each other"),
        ("WORLD_SIZE", "four", "WORLD_SIZE of the environment must be a number, not 'four'"),
    ],
)
def test_variables_that_torchrun_would_not_set(variable, value, said):
    with pytest.raises(ValueError, match=said):
        find_place({**TOLD, variable: value})


def test_before_they_meet_each_speaks(monkeypatch):
    for name, value in TOLD.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="there is no key epoch"), places.one_voice():
        raise SystemExit("there is no key epoch")


def test_each_sentence_is_said_once():
    counts = Counter()

    def add(name, number):
        counts[name] += number
        return counts[name]

    store = SimpleNamespace(add=add)
    assert Errors(store).first("wrong")
    assert not Errors(store).first("wrong")
    assert Errors(store).first("wrong, too")
    assert not Errors(store).first("rank 3 has ended", of_another=True)


def test_of_a_process_that_said_nothing_one_other_speaks():
    counts = Counter()

    def add(name, number):
        counts[name] += number
        return counts[name]

    store = SimpleNamespace(add=add)
    assert [Errors(store).first("gone", of_another=True) for _ in range(2)] == [True, False]


@pytest.fixture
def data(tmp_path):
    return job.make_data(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seed", "7", "seed is 0 on rank 0 and 7 on rank 1"),
        ("the number of test rows", "3", "the number of test rows is 40 on rank 0 and 3 on rank 1"),
        ("the checksum of the training rows", "x", "and x on rank 1"),
        ("dataset.root", "/elsewhere", None),
        ("runtime.threads", "5", None),
    ],
)
def test_they_must_have_the_same_settings_and_data(data, key, value, said):
    config = job.compose()

    def gather(own):
        return [own, {**own, key: value} if key in own else own]

    if said is None:
        check_same(several(gather), config, data)
        return
    with pytest.raises(ValueError, match=said):
        check_same(several(gather), config, data)


def test_who_reads_longer_is_waited_for(data):
    ranks = several()
    ranks.group.patient = SimpleNamespace(gather=ranks.group.gather)
    del ranks.group.gather  # Its waits have a bound.
    check_same(ranks, job.compose(), data)


@pytest.mark.parametrize("package", ["slide", "torch", "numpy", "numba"])
def test_they_must_have_the_same_packages(data, package):
    name = f"the version of {package}"

    def gather(own):
        return [own, own | {name: "9"} if name in own else own]

    with pytest.raises(ValueError, match=f"must agree, but {name} is .* and 9 on rank 1: start"):
        check_same(several(gather), job.compose(), data)


@pytest.mark.parametrize(
    "name", ["the instruction set", "the number of threads", "the version of python"]
)
def test_who_may_round_otherwise_is_told(data, name, capsys):
    def gather(own):
        return [own, *[own | {name: "another"} if name in own else own] * 2]

    check_same(several(gather, size=3), job.compose(), data)
    said = capsys.readouterr()
    assert (said.out + said.err).count("warning: ") == 1
    assert f"warning: {name} is " in said.out + said.err
    assert "and another on rank 1: sums may be rounded" in said.out + said.err
    check_same(several(size=3), job.compose(), data)
    said = capsys.readouterr()
    assert "warning" not in said.out + said.err


def test_more_processes_than_labels(data):
    with pytest.raises(ValueError, match="81 processes cannot share 80 labels: start at most 80"):
        check_same(several(size=81), job.compose(), data)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["network.hidden_active=[8]"], "begin it with null: the first layer computes all"),
        (
            ["network.hidden=[8,8]", "network.hidden_active=[null,4]", "sampler=lsh"],
            r"hidden_active=\[None, 4\] needs a run of one process; on several, set sampler=unif",
        ),
        (["network.host_rows=true"], "network.host_rows=true needs a run of one process: set netw"),
    ],
)
def test_what_needs_one_process(words, said):
    with pytest.raises(ValueError, match=said):
        check_ranks(several(), job.compose(*words))


@pytest.mark.parametrize(
    "words",
    [
        ["ranker=ensemble", "trainer.patience=2", "trainer.epochs=5"],
        ["network.hidden=[8,8]", "network.hidden_active=[null,4]", "sampler=uniform"],
        ["network.hidden=[8,8]", "network.hidden_active=[null,null]", "sampler=lsh"],
    ],
)
def test_what_several_can_do(words):
    check_ranks(several(), job.compose(*words))


class OwnLoss:
    """A function of values and active set."""

    def __init__(self, name, hard_fraction):
        self.hard_fraction = hard_fraction


def own_record(name, hard_fraction):
    """A loss whose outputs share a target in a way that `slide.distributed` does not know."""
    return slide.ActiveLoss(replace(find_loss(name), name="mine"), hard_fraction)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (OwnLoss, "on several processes a loss must be an ActiveLoss, not OwnLoss"),
        (own_record, "the loss mine cannot be computed on several processes"),
    ],
)
def test_a_loss_that_needs_one_process_is_refused_before_data_are_read(loss, said, monkeypatch):
    config = job.compose("loss=softmax", f"loss._target_={__name__}.{loss.__name__}")
    monkeypatch.setattr(build, "open_dataset", lambda *_: pytest.fail("the data are read"))
    refused = pytest.raises((TypeError, ValueError), match=said)
    with job.global_state_put_back(), refused:
        build.build_trainer(config, ranks=several())
    check_ranks(Ranks(), config)


def test_a_folder_that_others_do_not_see(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folders, "SEEN_AFTER", 0.1)
    ranks = several(lambda seen: [seen, False])
    with pytest.raises(ValueError, match="rank 1 cannot see what rank 0 writes into"):
        share_folder(ranks, lambda: tmp_path)
    assert share_folder(several(), lambda: tmp_path) == tmp_path
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_first_process_ends_all():
    told = []

    def make():
        raise ValueError("the disk is full")

    first = several()
    first.group.broadcast = lambda value: told.append(value) or value
    with pytest.raises(ValueError, match="the disk is full"):
        share_folder(first, make)
    assert told == [["", "the disk is full"]]
    other = several()
    other.group.rank, other.group.broadcast = 1, lambda value: told[0]
    with pytest.raises(ValueError, match="the disk is full"):
        share_folder(other, lambda: pytest.fail("only the first process makes the folder"))


def test_one_process_prepares_at_once():
    assert once_a_machine(Ranks(), lambda: 3) == 3
