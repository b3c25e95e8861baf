"""A run of several processes: what they must agree on, their cores, and their restarts."""

import os
import re
import socket
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers import job
from helpers.torchrun import torchruns

import slide
from slide.config import build
from slide.config.ranks import ALONE, RankInfo, find_rank_info
from slide.distributed import processes
from slide.distributed.group import LostProcessError
from slide.distributed.launch import Errors, watch_connections
from slide.distributed.processes import SeveralRanks
from slide.functional.losses import find_loss
from slide.utils import run_folders

TOLD = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TOLD |= {"MASTER_ADDR": "host", "MASTER_PORT": "29400"}


def several(gather=None, size=2):
    """Processes of which only the first one is there; ``gather`` says what the others answer."""
    group = SimpleNamespace(rank=0, size=size, barrier=lambda: None, broadcast=lambda value: value)
    group.gather = gather or (lambda value: [value] * size)
    group.patient, group.is_main_process = group, True
    return SeveralRanks(RankInfo(0, size, 0, size), group)


@pytest.fixture
def told(monkeypatch):
    """The variables of torchrun are set."""
    for name, value in TOLD.items():
        monkeypatch.setenv(name, value)


def test_where_torchrun_puts_a_process(told, monkeypatch):
    assert find_rank_info() == RankInfo(1, 4, 1, 2)
    monkeypatch.setenv("MASTER_PORT", "")
    assert find_rank_info().size == 4
    monkeypatch.delenv("MASTER_PORT")
    assert find_rank_info() == RankInfo()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("RANK", "4", "do not fit each other"),
        ("LOCAL_WORLD_SIZE", "1", "do not fit each other"),
        ("WORLD_SIZE", "four", "WORLD_SIZE of the environment must be a number, not 'four'"),
    ],
)
def test_variables_that_torchrun_would_not_set(told, monkeypatch, variable, value, said):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=said):
        find_rank_info()


def test_before_they_meet_each_speaks(told):
    with pytest.raises(SystemExit, match="there is no key epoch"), processes.one_voice():
        raise SystemExit("there is no key epoch")


def counting_store():
    counts = Counter()
    return SimpleNamespace(add=lambda name, n: counts.update({name: n}) or counts[name])


def test_each_sentence_is_said_once():
    store = counting_store()
    assert Errors(store).first("wrong")
    assert not Errors(store).first("wrong")
    assert Errors(store).first("wrong, too")
    assert not Errors(store).first("rank 3 has ended", of_another=True)
    store = counting_store()  # Of a process that said nothing, one other speaks.
    assert [Errors(store).first("gone", of_another=True) for _ in range(2)] == [True, False]


def test_a_store_that_is_gone_is_not_asked():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, store = server.getsockname(), counting_store()
        assert Errors(store, address).first("wrong")
        assert not Errors(store, address).first("wrong")
    assert Errors(None, address).first("wrong")
    assert Errors(store, address).first("wrong")


@pytest.fixture
def data(tmp_path):
    return job.make_data(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("seed", "7", "seed is 0 on rank 0 and 7 on rank 1"),
        ("the number of test rows", "3", "the number of test rows is 40 on rank 0 and 3 on rank 1"),
        ("the checksum of the training rows", "x", "and x on rank 1"),
        ("runtime.threads", "5", None),
        ("the version of torch", "9", "must agree, but the version of torch is .* and 9 on rank 1"),
    ],
)
def test_they_must_have_the_same_settings_and_data(data, key, value, said):
    config = job.compose()

    def gather(own):
        return [own, {**own, key: value} if key in own else own]

    if said is None:
        several(gather).check_same(config, data)
        return
    with pytest.raises(ValueError, match=said):
        several(gather).check_same(config, data)


def test_who_reads_longer_is_waited_for(data):
    ranks = several()
    ranks.group.patient = SimpleNamespace(gather=ranks.group.gather)
    del ranks.group.gather  # Its waits have a bound.
    ranks.check_same(job.compose(), data)


@pytest.mark.parametrize(
    "name", ["the instruction set", "the number of threads", "the version of python"]
)
def test_who_may_round_otherwise_is_told(data, name, capsys):
    def gather(own):
        return [own, *[own | {name: "another"} if name in own else own] * 2]

    several(gather, size=3).check_same(job.compose(), data)
    said = capsys.readouterr()
    assert (said.out + said.err).count("warning: ") == 1
    assert f"warning: {name} is " in said.out + said.err
    assert "and another on rank 1: sums may be rounded" in said.out + said.err
    several(size=3).check_same(job.compose(), data)
    said = capsys.readouterr()
    assert "warning" not in said.out + said.err


def test_more_processes_than_labels(data):
    with pytest.raises(ValueError, match="81 processes cannot share 80 labels: start at most 80"):
        several(size=81).check_same(job.compose(), data)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["network.hidden_active=[8]"], "begin it with null: the first layer computes all"),
        (
            ["network.hidden=[8,8]", "network.hidden_active=[null,4]", "sampler=lsh"],
            r"hidden_active=\[None, 4\] needs a run of one process; on several, set sampler=unif",
        ),
    ],
)
def test_what_needs_one_process(words, said):
    with pytest.raises(ValueError, match=said):
        several().check_settings(job.compose(*words))


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
    ALONE.check_settings(config)
    # What several can do.
    several().check_settings(job.compose("network.hidden_active=[null]", "sampler=lsh"))


def lost(seen):
    raise LostProcessError


def test_a_folder_that_others_do_not_see(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folders, "SEEN_AFTER", 0.1)
    ranks = several(lambda seen: [seen, False])
    with pytest.raises(ValueError, match="rank 1 cannot see what rank 0 writes into"):
        ranks.share_folder(lambda: tmp_path)
    (tmp_path / "shared-0.tmp").touch()  # A process was killed here.
    assert several().share_folder(lambda: tmp_path) == tmp_path
    assert not list(tmp_path.iterdir())
    with pytest.raises(LostProcessError):
        several(lost).share_folder(lambda: tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_first_process_ends_all():
    told = []

    def make():
        raise ValueError("the disk is full")

    first = several()
    first.group.broadcast = lambda value: told.append(value) or value
    with pytest.raises(ValueError, match="the disk is full"):
        first.share_folder(make)
    assert told == [["", "the disk is full"]]
    other = several()
    other.group.is_main_process, other.group.broadcast = False, lambda value: told[0]
    with pytest.raises(ValueError, match="the disk is full"):
        other.share_folder(lambda: pytest.fail("only the first process makes the folder"))


ALL = list(range(8))


@pytest.fixture
def taken(monkeypatch):
    """Numbers of threads that are set, on a machine with eight cores."""
    found = []
    bound = {"cores": 8}

    def take(number):
        found.append(number or bound["cores"])

    fake = SimpleNamespace(set_threads=take, num_threads=lambda: found[-1])
    monkeypatch.setattr(processes, "runtime", fake)
    found.append(bound)
    return found


def shared(taken, monkeypatch, affinities, asked=0, names=None, local_size=None, limit=None):
    """The threads of the first of some processes, which are bound to these cores."""
    taken[0]["cores"] = len(affinities[0]) or 8
    monkeypatch.setattr(processes, "_cores", lambda: affinities[0])
    monkeypatch.setattr(processes, "core_limit", lambda: limit)
    group = SimpleNamespace(rank=0, size=len(affinities))
    names = names or ["node"] * len(affinities)

    def gather(own):
        mine = own[0] if names[0] == "node" else names[0]
        others = zip(names[1:], affinities[1:], strict=True)
        return [[mine, own[1]], *([mine if n == "node" else n, cores] for n, cores in others)]

    group.gather = gather
    size = local_size or len(affinities)
    SeveralRanks(RankInfo(0, len(affinities), 0, size), group).share_threads(asked)
    return taken[-1]


HALVES = [ALL[:4], ALL[4:]]
TWO_MACHINES = {"names": ["node", "node", "other", "other"], "local_size": 2}


@pytest.mark.parametrize(
    ("affinities", "more", "wanted"),
    [
        ([ALL, ALL], {}, 4),
        ([ALL] * 3, {}, 2),
        (HALVES, {}, 4),  # Bound to cores of their own.
        ([ALL[:4], ALL[3:]], {}, 2),
        ([[], []], {}, 4),  # The system does not tell.
        ([ALL, ALL], {"asked": 3}, 3),
        (HALVES, {"limit": 4}, 2),  # A limit of time is shared by all.
        (HALVES * 2, TWO_MACHINES, 4),
        # Names that tell no machines apart: the cores are those of all that the launcher counts.
        (HALVES * 2, {"local_size": 2}, 2),
        (HALVES * 2, {"names": ["node", "a", "b", "c"], "local_size": 2}, 2),
    ],
)
def test_cores_are_shared_with_those_that_use_them(taken, monkeypatch, affinities, more, wanted):
    assert shared(taken, monkeypatch, affinities, **more) == wanted


def note_of(folder, *words):
    return several().note(folder, words)


def test_a_folder_is_noted_for_the_words_of_its_run(tmp_path):
    note_of(tmp_path, "seed=1").write(tmp_path / "run")
    assert note_of(tmp_path, "seed=1").found() == tmp_path / "run"
    assert note_of(tmp_path, "seed=1", "dataset.root=/here").found() == tmp_path / "run"
    assert note_of(tmp_path, "seed=2").found() is None
    note_of(tmp_path, "seed=2").forget()
    note_of(tmp_path, "seed=1").forget(tmp_path / "other")
    assert note_of(tmp_path, "seed=1").found() == tmp_path / "run"
    note_of(tmp_path, "seed=1").forget(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_note_is_of_one_torchrun(tmp_path, monkeypatch):
    for name, said in (("RUN_ID", "none"), ("USE_AGENT_STORE", "True"), ("RESTART_COUNT", "0")):
        monkeypatch.setenv(f"TORCHELASTIC_{name}", said)
    monkeypatch.setenv("MASTER_PORT", "29500")
    note = note_of(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert note_of(tmp_path).path == note.path
    for name, value in (("MASTER_PORT", "1234"), ("TORCHELASTIC_RUN_ID", "7")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert note_of(tmp_path).path != note.path


def test_one_process_leaves_no_note(tmp_path):
    ALONE.note(tmp_path, []).write(tmp_path / "run")
    assert not list(tmp_path.iterdir())
    note_of(tmp_path / "missing").forget()
    (tmp_path / "file").touch()
    note_of(tmp_path / "file").forget()


RUNS = """
import glob

found, quick = {}, [*small, "trainer.checkpoint_every=2", "runtime.timeout=8"]
# Ranks that are given other words, and one that no other joins.
one = [*quick, f"run_dir={folder}/apart"]
found["apart"] = run([one, [*one, "optimizer.lr=0.5"]], 2)
begin = time.perf_counter()
(alone,) = [Rank([*small, "runtime.timeout=1"], 0, 2, free_port(), f"{folder}/said-alone")]
found["alone"] = {**alone.wait(), "seconds": time.perf_counter() - begin}

# Two runs without run_dir, one beside the other; a rank of the first is killed.
def checkpoints():
    return glob.glob(f"{folder}/results/synthetic/*/checkpoints/*-step-*")

def wait_for(there):
    end = time.time() + 60
    while not there() and time.time() < end:
        time.sleep(0.02)

# Long enough that both are there at once; each checkpoint waits for the disk, so few of them.
longer = [word for word in quick if not word.startswith("trainer.checkpoint_every")]
longer += ["trainer.epochs=30", "trainer.checkpoint_every=20"]
words = [[*longer, f"seed={seed}"] for seed in (1, 2)]
first = start(words[0], 2)
wait_for(checkpoints)
(own,) = glob.glob(f"{folder}/results/synthetic/*/")
ranks = start(words[1], 2)
wait_for(lambda: len(glob.glob(f"{folder}/results/synthetic/*/config.yaml")) > 1)
first[1].kill()
for rank in first:
    rank.wait()
found["own"] = own
found["second"] = [rank.wait() for rank in ranks]
found["first"] = run(words[0], 2, TORCHELASTIC_RESTART_COUNT=1)
found["notes"] = glob.glob(f"{folder}/**/.torchrun-*", recursive=True, include_hidden=True)
found["folders"] = len(glob.glob(f"{folder}/results/synthetic/*/"))
"""


def several_processes(test):
    forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
    return pytest.mark.compiled_only(forks(test))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return torchruns(RUNS, tmp_path_factory.mktemp("runs"))


@several_processes
def test_ranks_with_other_words_end(runs):
    assert [rank["status"] for rank in runs["apart"]] == [1, 1], runs["apart"]
    said = "".join(rank["said"] for rank in runs["apart"])
    assert re.search(r"error: .* optimizer\.lr is \S+ on rank 0 and 0\.5 on rank 1: start", said)
    assert said.count("error: ") == 1


@several_processes
def test_a_rank_that_no_other_joins_ends(runs):
    assert runs["alone"]["status"] == 1
    told = "error: fewer than 2 processes were there after 1 seconds (runtime.timeout): look at"
    assert told in runs["alone"]["said"]
    assert runs["alone"]["said"].count("error: ") == 1
    assert runs["alone"]["seconds"] < 30


@several_processes
def test_a_run_beside_another_goes_on_with_its_own_folder(runs):
    for name in ("first", "second"):
        assert [rank["status"] for rank in runs[name]] == [0, 0], runs[name]
    assert runs["own"].rstrip("/").endswith(runs["first"][0]["said"].split()[-1])
    assert runs["folders"] == 2
    assert runs["notes"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list open files")
def test_a_connection_that_nothing_answers_ends_also_where_nobody_sends():
    """Its two ends get options of the system: a network cannot be lost in a test."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        watch_connections(8)
        for each in (one, other):
            options = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT]
            assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert [each.getsockopt(socket.IPPROTO_TCP, x) for x in options] == [2, 2, 8000]
        watch_connections(10**9)  # The longest wait that a run takes.
        one.sendall(b"they stay open")
        assert other.recv(99) == b"they stay open"
