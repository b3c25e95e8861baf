"""The checkpoint of a run: what it holds, and how it is written and read."""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from slide.distributed import Group
from slide.nn import SlideNetwork
from slide.optim import RowSparseAdam
from slide.training.checkpoint_files import (
    CHECKPOINT,
    FAULTS,
    clear_unfinished,
    last_checkpoint,
    load_network_state,
    network_files,
    network_state,
    newest_of_first,
    next_checkpoint,
    read_states,
    remove_older,
    state_for,
    step_of,
    unfinished,
    write_state,
)
from slide.training.loop import check_weights
from slide.training.lr_schedules import AutoSchedule
from slide.training.monitor import Counters
from slide.utils.array_checks import Expected, Stored, check_arrays
from slide.utils.checks import DivergenceError, error_message
from slide.utils.files import sync_folder
from slide.utils.run_folders import hold_folder, release_folder
from slide.utils.tensor_folder import split_state

# Counters as checkpoints of the version before this one call them.
_OLD_COUNTERS = {"train_seconds": "network_seconds", "held_seconds": "validation_seconds"}
# Tensors by their file and name.
Files = dict[str, dict[str, Tensor]]


class Checkpoint:
    """The checkpoints of a run: each holds everything that a resumed run needs.

    That is the network (weights, and the states of the samplers), the optimizer, the random state
    of torch, the `AutoSchedule` (if there is one) and the `Counters`; not the learning rates,
    because they follow from the number of steps and the schedule. A checkpoint is a folder of
    tensors (`slide.utils.tensor_folder`), which gets its name when it is complete.

    A checkpoint must agree on the ``facts`` with the run that reads it. The ``keep`` newest ones
    stay. After `close`, other processes may have the folder.
    """

    def __init__(
        self,
        run: Path,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        schedule: AutoSchedule | None = None,
        facts: Mapping[str, Any] | None = None,
        keep: int = 1,
        group: Group | None = None,
    ):
        self.run, self.network, self.facts, self.keep = run, network, dict(facts or {}), keep
        self.optimizer = optimizer
        self.group, self.closed = group or Group.alone(), False
        self._release: Callable[[], object] = bool  # Does nothing.
        if self.group.is_main_process:
            hold_folder(run)
            # Also where nobody closes this.
            self._release = weakref.finalize(self, release_folder, run)
        # The parts of a checkpoint besides network and counters: how to get the state of each part,
        # and how to load it.
        self._parts = {
            "optimizer": (optimizer.state_dict, self._load_optimizer),
            "random": (torch.get_rng_state, torch.set_rng_state),
        }
        if schedule is not None:  # Checkpoints call it the plan.
            self._parts["plan"] = (schedule.state_dict, schedule.load_state_dict)
        self._writer: Thread | None = None
        self._error: BaseException | None = None
        self._written: Counters | None = None
        # Memory for copies, by the names of tensors. It is kept, because getting it from the system
        # may take longer than writing the files.
        self._room: dict[str, Tensor] = {}

    def found(self) -> bool:
        """Whether there is a checkpoint to read; all processes call this."""
        return newest_of_first(self.run, self.group) is not None

    def last(self) -> Path | None:
        """The newest checkpoint; one that is being written is waited for. None: there is none."""
        if self._writer is not None:
            self._writer.join()
        return last_checkpoint(self.run)

    def write(self, counters: Counters) -> None:
        """Write a checkpoint, and remove too old ones."""
        if self._is_new(counters):
            self._room.clear()  # This comes last in a run.
            self._install(*self._packed(counters))
            self._written = replace(counters)

    def prepare(self) -> None:
        """Get the memory for the copies of `begin` in the background."""
        if self.group.size > 1:
            return
        self.wait()
        _, files = self._packed(Counters())

        def fill() -> None:
            for tensors in files.values():
                for name, tensor in tensors.items():
                    # Zeros would be promised by the system, and made when they are used.
                    self._room[name] = torch.empty_like(tensor, device="cpu").fill_(1)

        self._start(fill)

    def begin(self, counters: Counters) -> None:
        """Copy everything, and write the copy in the background, as `write` does.

        The copy takes as much memory as the checkpoint, until the run ends. If the checkpoint
        before is still being written, that is waited for. Several processes write at once, each its
        own part.
        """
        if not self._is_new(counters):
            return
        values, files = self._packed(counters)
        if self.group.size > 1:  # What the processes tell each other belongs to their main thread.
            self._install(values, files)
        else:
            copies = {
                part: {name: self._copied(name, tensor) for name, tensor in tensors.items()}
                for part, tensors in files.items()
            }
            self._start(lambda: self._install(values, copies))
        self._written = replace(counters)

    def _copied(self, name: str, tensor: Tensor) -> Tensor:
        room = self._room.get(name)
        if room is None or (room.shape, room.dtype) != (tensor.shape, tensor.dtype):
            room = self._room[name] = torch.empty_like(tensor, device="cpu")
        return room.copy_(tensor)

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        # A daemon: a process that ends does not wait, and what is not complete is no checkpoint.
        self._writer = Thread(target=run, name="checkpoint", daemon=True)
        self._writer.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        if error is not None:
            self._written = None
            raise error

    def check(self) -> None:
        """Raise the error of a checkpoint that `begin` could not write; it does not wait."""
        if self._error is not None:
            self.wait()

    def close(self) -> None:
        """As `wait`; other processes may have the folder then."""
        self.closed = True
        try:
            self.wait()
        finally:
            self._release()

    def read(self) -> Counters:
        """Load all parts of the newest checkpoint; returns the counters. All processes call it."""
        if self._writer is not None:
            self._writer.join()
        folder = newest_of_first(self.run, self.group)
        assert folder is not None
        states = read_states(folder, self.facts, self.group)
        try:
            state = state_for(states, self.network, self.optimizer)
            check_arrays("its network", state["network"], _tensors_of(self.network))
            load_network_state(self.network, state["network"])
            for name, (_, load) in self._parts.items():
                load(state[name])
        except FAULTS as error:
            said = " ".join(error_message(error).split())
            raise ValueError(f"{folder} does not fit this run: {said}") from error
        found = {_OLD_COUNTERS.get(name, name): value for name, value in states[0].items()}
        stored = Stored(found, {}, str(folder / CHECKPOINT.list_file))
        stored.exactly("step", step_of(folder))
        known = [field for field in fields(Counters) if field.name in found]
        taken = {int: stored.count, float: stored.number}
        return Counters(**{each.name: taken[type(each.default)](each.name) for each in known})

    def _load_optimizer(self, state: Mapping[str, Any]) -> None:
        """Load moments and steps; options come from the configuration."""
        own = self.optimizer.state_dict()["param_groups"]
        if [each["params"] for each in own] != [each["params"] for each in state["param_groups"]]:
            raise ValueError("its optimizer has other parameters")
        if not set(state["state"]) <= {each for group in own for each in group["params"]}:
            raise ValueError("its optimizer has a state of no parameter")
        self.optimizer.load_state_dict({**state, "param_groups": own})

    def _is_new(self, counters: Counters) -> bool:
        """Whether there is anything to write that was not written."""
        self.wait()
        said = None
        try:
            check_weights(self.network, counters.step, self.last)
        except DivergenceError as error:
            said = str(error)
        found = self.group.gather([said, self._written != counters])
        for wrong, _ in found:
            if wrong is not None:
                raise DivergenceError(wrong)
        return found[0][1]  # Of the first process: the seconds of the others may differ.

    def _packed(self, counters: Counters) -> tuple[dict[str, Any], Files]:
        values, files = network_files(self.network)
        for part, (get, _) in self._parts.items():
            values[part], tensors = split_state(get(), part)
            if tensors:
                files[part] = tensors
        return values | asdict(counters), files

    def _install(
        self, values: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        # The first process may remove old files for long, and one may write longer than another.
        group = self.group.patient
        if group.is_main_process:  # Before the others know the name: else it removes their files.
            clear_unfinished(self.run)
        folder = Path(group.broadcast(str(next_checkpoint(self.run, values["step"]))))
        try:
            write_state(CHECKPOINT, group, unfinished(folder), {"run": self.facts}, values, files)
            if group.is_main_process:
                unfinished(folder).rename(folder)
                sync_folder(folder.parent)
                remove_older(self.run, self.keep)
        except OSError as error:
            last = last_checkpoint(self.run)
            kept = f"{last} is kept" if last else "there is no checkpoint before it"
            raise OSError(f"cannot write the checkpoint {folder}: {error}; {kept}") from error
        finally:
            if group.is_main_process:
                clear_unfinished(self.run)
        group.barrier()


def _tensors_of(network: SlideNetwork) -> dict[str, Expected]:
    return {
        name: Expected(tuple(each.shape), str(each.dtype).removeprefix("torch."))
        for name, each in network_state(network).items()
        if isinstance(each, Tensor)
    }


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """The state in a checkpoint that one process wrote; see `read_states`."""
    (state,) = read_states(folder)
    return state
