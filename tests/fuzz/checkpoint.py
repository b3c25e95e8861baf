"""Checkpoints with a file of other bytes, and hashes that fit: they are read, or an error."""

from functools import partial
from pathlib import Path

import torch
from helpers.limits import more_memory
from helpers.samplers import lsh_sampler

from fuzz.shared import MEMORY, Folder, check_sentence
from slide import ActiveLoss, Pattern, RowSparseAdam, SlideNetwork
from slide.sparse import as_csr
from slide.training.checkpoint import CHECKPOINT, Checkpoint, find_checkpoints
from slide.training.monitor import Counters


def _checkpoint(run: Path) -> Checkpoint:
    torch.manual_seed(0)
    network = SlideNetwork(4, [3], 40, partial(lsh_sampler, active=8))
    optimizer = RowSparseAdam(network.parameters(), lr=0.01)
    return Checkpoint(run, network, optimizer, facts={"seed": 0})


def _save(folder: Path) -> None:
    run = folder.parents[1]
    made = _checkpoint(run)
    rows, labels = as_csr(torch.eye(4)), Pattern.from_lists([[0], [1, 2], [39], []])
    loss, *_ = made.network.output.loss(made.network.encode(rows), labels, ActiveLoss("softmax"))
    loss.backward()
    made.optimizer.step()
    made.write(Counters(step=1))
    made.close()
    (found,) = find_checkpoints(run)
    found.rename(folder)


_FOLDER = Folder(CHECKPOINT, _save, "checkpoints/1-step-1")


def seeds(folder: Path) -> list[bytes]:
    """See `fuzz`."""
    return _FOLDER.seeds(folder)


def check(data: bytes, folder: Path) -> bool:
    """See `fuzz`."""
    made = _FOLDER.write(data, folder)
    checkpoint = _checkpoint(made.parents[1])
    try:
        with more_memory(MEMORY):
            counters = checkpoint.read()
    except ValueError as error:
        check_sentence(error, made)
        return False
    finally:
        checkpoint.close()
    assert counters.step == 1
    for name, weight in checkpoint.network.named_parameters():
        assert weight.isfinite().all(), name
    return True
