"""How many threads each process of a machine takes."""

from types import SimpleNamespace

import pytest

from slide.config import processes as threads
from slide.config.processes import Ranks, share_threads
from slide.distributed.launch import Place

ALL = list(range(8))


@pytest.fixture
def taken(monkeypatch):
    """Numbers of threads that are set, on a machine with eight cores."""
    found = []
    bound = {"cores": 8}

    def take(number):
        found.append(number or bound["cores"])

    fake = SimpleNamespace(set_threads=take, num_threads=lambda: found[-1])
    monkeypatch.setattr(threads, "runtime", fake)
    monkeypatch.setattr(threads, "core_limit", lambda: None)
    found.append(bound)
    return found


def shared(taken, monkeypatch, affinities, asked=0, names=None, local_size=None):
    """The threads of the first of some processes, which are bound to these cores."""
    taken[0]["cores"] = len(affinities[0]) or 8
    monkeypatch.setattr(threads, "_cores", lambda: affinities[0])
    group = SimpleNamespace(rank=0, size=len(affinities))
    names = names or ["node"] * len(affinities)

    def gather(own):
        mine = own[0] if names[0] == "node" else names[0]
        others = zip(names[1:], affinities[1:], strict=True)
        return [[mine, own[1]], *([mine if n == "node" else n, cores] for n, cores in others)]

    group.gather = gather
    size = local_size or len(affinities)
    share_threads(Ranks(Place(0, len(affinities), 0, size), group), asked)
    return taken[-1]


@pytest.mark.parametrize(
    ("affinities", "wanted"),
    [
        ([ALL, ALL], 4),
        ([ALL] * 3, 2),
        ([ALL] * 9, 1),
        ([ALL[:4], ALL[4:]], 4),  # Bound to cores of their own.
        ([ALL[:4], ALL[:4], ALL[4:], ALL[4:]], 2),
        ([ALL[:4], ALL[3:]], 2),
        ([[], []], 4),  # The system does not tell.
        ([ALL[:4], []], 2),
    ],
)
def test_cores_are_shared_with_those_that_use_them(taken, monkeypatch, affinities, wanted):
    assert shared(taken, monkeypatch, affinities) == wanted


def test_what_is_asked_for_is_taken(taken, monkeypatch):
    assert shared(taken, monkeypatch, [ALL, ALL], asked=3) == 3


def test_processes_of_other_machines_take_no_cores(taken, monkeypatch):
    places = {"names": ["node", "node", "other", "other"], "local_size": 2}
    assert shared(taken, monkeypatch, [ALL[:4], ALL[4:]] * 2, **places) == 4
    assert shared(taken, monkeypatch, [ALL] * 4, **places) == 4


@pytest.mark.parametrize("names", [["node"] * 4, ["node", "a", "b", "c"]])
def test_names_that_tell_no_machines_apart(taken, monkeypatch, names):
    """Then the cores are those of all processes that the launcher counts."""
    found = shared(taken, monkeypatch, [ALL[:4], ALL[4:]] * 2, names=names, local_size=2)
    assert found == 2


def test_a_limit_of_time_is_shared_by_all(taken, monkeypatch):
    monkeypatch.setattr(threads, "core_limit", lambda: 4)
    assert shared(taken, monkeypatch, [ALL[:4], ALL[4:]]) == 2


def test_the_cores_of_this_process():
    assert threads._cores() == sorted(set(threads._cores()))
