"""What the processes of a group exchange."""

import json

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import run_ranks, several

from slide.distributed.group import Group, LostProcessError

EVERY = """
def work(group):
    rank, size = group.rank, group.size
    values = torch.tensor([1.0, 2.0, 4.0]) * (rank + 1)
    found = {
        "sum": group.all_reduce(values.clone()).tolist(),
        "max": group.all_reduce(values.clone(), "max").tolist(),
        "rows": [part.tolist() for part in group.all_gather(torch.full((rank, 2), rank))],
        "known": [len(part) for part in group.all_gather(torch.ones(rank), list(range(size)))],
        "none": [len(part) for part in group.all_gather(torch.ones(0, 3))],
        "gather": group.gather({"rank": rank, "text": "x" * rank}),
        "broadcast": group.broadcast({"from": rank}),
    }
    group.barrier()
    return found | {"calls": group.calls, "sent": group.bytes_sent, "seconds": group.seconds}
"""


@several
def test_operations(tmp_path):
    for rank, found in enumerate(run_ranks(EVERY, tmp_path, 3)[3]):
        assert found["sum"] == [6.0, 12.0, 24.0]
        assert found["max"] == [3.0, 6.0, 12.0]
        assert found["rows"] == [[], [[1, 1]], [[2, 2], [2, 2]]]
        assert found["known"] == [0, 1, 2]
        assert found["none"] == [0, 0, 0]
        assert found["gather"] == [{"rank": r, "text": "x" * r} for r in range(3)]
        assert found["broadcast"] == {"from": 0}
        assert found["seconds"] > 0
        # Lengths go first, but for known ones; an empty gather ends there.
        calls = {"all_reduce": 2, "all_gather": 2 + 1 + 1 + 2, "broadcast": 2, "barrier": 1}
        assert found["calls"] == calls
        texts = 2 * len(json.dumps({"rank": 2, "text": "xx"}))
        gathered = (16 + 2 * 32) + 2 * 8 + 16 + (16 + texts)
        sent = 0 if rank else 8 + len(json.dumps({"from": 0}))
        assert found["sent"] == 2 * 16 + gathered + sent


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("Connection closed by peer [127.0.0.1]:37123", True),
        ("Timed out waiting 8000ms for recv operation to complete", True),
        ("Read error [10.0.0.2]:29400: No route to host", True),
        ("Invalid scalar type", False),
    ],
)
def test_a_lost_process(monkeypatch, said, lost):
    def fail(*_, **__):
        raise RuntimeError(f"[pair.cc:547] {said}")

    group = Group.alone()
    group.size = 2
    monkeypatch.setattr(dist, "all_reduce", fail)
    kind, told = (
        (LostProcessError, "has ended, or did not answer") if lost else (RuntimeError, said)
    )
    with pytest.raises(kind, match=told) as error:
        group.all_reduce(torch.ones(1))
    assert type(error.value) is kind


def test_bad_use():
    with pytest.raises(RuntimeError, match="have not joined yet: start them with torchrun"):
        Group()
    with pytest.raises(ValueError, match="operation must be one of sum, max, not 'mean'"):
        Group.alone().all_reduce(torch.ones(1), "mean")
    with pytest.raises(TypeError, match="JSON"):
        Group.alone().broadcast({1, 2})
