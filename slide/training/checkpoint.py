"""What a run must keep to go on later, and the file that holds it."""

from dataclasses import asdict, fields
from pathlib import Path

import torch

from slide import files
from slide.nn import SlideNetwork
from slide.optim import RowSparseAdam
from slide.training.divergence import check_weights
from slide.training.progress import Counters

CHECKPOINT = "checkpoint.pt"


class Checkpoint:
    """The checkpoint of a run: all that the rest of the run depends on.

    Learning rates are not in it: they follow from the step (`slide.training.lr_schedules`).

    Args:
        folder: of the run.
        network: whose weights, indexes and draws are kept.
        optimizer: whose moments are kept.
    """

    def __init__(self, folder: Path, network: SlideNetwork, optimizer: RowSparseAdam):
        self.path = folder / CHECKPOINT
        self.network = network
        # The parts of a checkpoint, beside the counters: how each is taken and put back.
        self._parts = {
            "network": (network.state_dict, network.load_state_dict),
            "optimizer": (optimizer.state_dict, optimizer.load_state_dict),
            "random": (torch.get_rng_state, torch.set_rng_state),
        }

    def write(self, counters: Counters) -> None:
        """Replace the file.

        Raises:
            DivergenceError: where a weight is NaN or infinite; the old file stays.
            OSError: where the file cannot be written; the old file stays.
        """
        check_weights(self.network, counters.step, self.path)
        parts = {name: take() for name, (take, _) in self._parts.items()}
        files.write_tensors(self.path, parts | asdict(counters))

    def read(self) -> Counters:
        """Put all parts back; the counters of the run.

        Raises:
            FileNotFoundError: if there is no file; ValueError: if it cannot be read.
        """
        state = files.read_tensors(self.path)
        for name, (_, put_back) in self._parts.items():
            put_back(state[name])
        return Counters(**{field.name: state[field.name] for field in fields(Counters)})
