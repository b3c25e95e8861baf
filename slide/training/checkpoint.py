"""The checkpoint of a run: what it holds, and how it is written and read."""

from dataclasses import asdict, fields
from pathlib import Path

import torch

from slide import files
from slide.nn import SlideNetwork
from slide.optim import RowSparseAdam
from slide.training.divergence import check_weights
from slide.training.plan import Plan
from slide.training.progress import Counters

CHECKPOINT = "checkpoint.pt"


class Checkpoint:
    """The checkpoint of a run: everything that a resumed run needs.

    It holds the network (weights, and the states of the samplers), the optimizer, the random state
    of torch, the `Plan` (if there is one) and the `Counters`. It does not hold learning rates,
    because they follow from the number of steps and the plan (`slide.training.lr_schedules`).

    Args:
        folder: folder of the run.
        network: the network; its weights, indexes and draws are kept.
        optimizer: the optimizer; its moments are kept.
        plan: decides how long the run is; None: that is known from the start.
    """

    def __init__(
        self,
        folder: Path,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        plan: Plan | None = None,
    ):
        self.path = folder / CHECKPOINT
        self.network = network
        # The parts of a checkpoint besides the counters: how to get the state of each part, and how
        # to load it.
        self._parts = {
            "network": (network.state_dict, network.load_state_dict),
            "optimizer": (optimizer.state_dict, optimizer.load_state_dict),
            "random": (torch.get_rng_state, torch.set_rng_state),
        }
        if plan is not None:
            self._parts["plan"] = (plan.state_dict, plan.load_state_dict)

    def write(self, counters: Counters) -> None:
        """Replace the file.

        Raises:
            DivergenceError: if a weight is NaN or infinite; the old file stays.
            OSError: if the file cannot be written; the old file stays.
        """
        check_weights(self.network, counters.step, self.path)
        parts = {name: get() for name, (get, _) in self._parts.items()}
        files.write_tensors(self.path, parts | asdict(counters))

    def read(self) -> Counters:
        """Load all parts of the file, and return the counters.

        Raises:
            FileNotFoundError: if there is no file.
            ValueError: if the file cannot be read.
        """
        state = files.read_tensors(self.path)
        for name, (_, load) in self._parts.items():
            load(state[name])
        known = [field.name for field in fields(Counters) if field.name in state]
        return Counters(**{name: state[name] for name in known})
