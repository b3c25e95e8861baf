"""Stops a run when precision on held-out rows no longer rises, and keeps the best weights."""

import shutil
from pathlib import Path
from typing import Any

from slide.nn import SlideNetwork
from slide.training.checkpoint import Checkpoint
from slide.training.checkpoint_folders import step_of, unfinished
from slide.training.monitor import Monitor
from slide.training.plan import evaluation_interval
from slide.training.planner import HeldRows
from slide.training.progress import Counters
from slide.training.shared_checkpoint import (
    joined_parts,
    packed_rows,
    read_checked,
    state_for,
    write_parts,
)
from slide.training.shared_state import load_network_state, network_state
from slide.utils.files import sync_folder
from slide.utils.profiling import clock
from slide.utils.progress_bar import ProgressBar, log
from slide.utils.tensor_folder import FolderKind, read_folder, split_state, write_folder

BEST = "best"
_KIND = FolderKind("best network", "best.json", format=2)


class Patience:
    """Evaluates a network on held-out rows about once an epoch, and writes it if it is the best.

    The folder also says at which step that was, so a resumed run waits as long as one that was not
    interrupted. Weights that were the best up to the last checkpoint stay in a second folder while
    ``best`` holds later ones: a run that goes on from that checkpoint goes on with them.

    Args:
        checkpoint: those of the run; ``best`` is written into its folder, by its processes, all of
            which look and restore at the same steps.
        most: number of evaluations without a better one, after which the run ends.
        steps_per_epoch: steps in a pass over the training rows.
        held: the rows that judge.
        step: number of steps done. A folder of a later step, which an interrupted run wrote after
            its last checkpoint, does not count.

    Attributes:
        score: the best precision so far, in [0, 1]; -1: there is none.
        best_step: number of steps after which it was reached.

    Raises:
        ValueError: if ``best`` of a resumed run cannot be read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        most: int,
        steps_per_epoch: int,
        held: HeldRows,
        step: int,
    ):
        self.checkpoint, self.group, self.most = checkpoint, checkpoint.group, most
        self.path = checkpoint.run / BEST
        self.before, self.old = (self.path.with_name(f"{BEST}.{n}") for n in ("before", "old"))
        self.interval = evaluation_interval(steps_per_epoch)
        self.held = held
        self.score, self.best_step = -1.0, 0
        wrong = self._look_back(step) if self.group.rank == 0 else None
        found = self.group.broadcast([self.score, self.best_step, wrong])
        self.score, self.best_step, wrong = found
        if wrong is not None:
            raise ValueError(wrong)

    def _look_back(self, step: int) -> str | None:
        """Take the best precision from the folder, unless it is of a later step.

        Returns:
            A sentence if the folder cannot be read.
        """
        # A process may have been killed in `_write` or `_take_back`.
        new, kept = unfinished(self.path), (self.path / _KIND.list_file).exists()
        if not kept and (new / _KIND.list_file).exists():
            self._take_back(new)
        for path in (self.path, self.before) if step else ():
            if not path.exists():
                continue
            try:
                found = read_folder(_KIND, path)
            except (OSError, ValueError) as error:
                return str(error)
            if found["step"] <= step:
                self.score, self.best_step = found["score"], found["step"]
                if path == self.before:
                    self._take_back(path)
                break
        return None

    def _take_back(self, path: Path) -> None:
        """Put a complete folder in the place of the best weights, in steps that a kill may part."""
        if self.path.exists():
            shutil.rmtree(self.old, ignore_errors=True)
            self.path.rename(self.old)
        path.rename(self.path)
        shutil.rmtree(self.old, ignore_errors=True)

    def ended(self, step: int) -> bool:
        """Whether precision has not risen for too long after ``step`` steps."""
        return self.score >= 0 and step - self.best_step >= self.most * self.interval

    def look(
        self, network: SlideNetwork, counters: Counters, monitor: Monitor, bar: ProgressBar
    ) -> None:
        """After a step: evaluate the network if that is due, and write it if it is the best.

        Args:
            network: the network.
            counters: counters of the run; the seconds of the evaluation are added.
            monitor: the log; takes the precision as ``held/precision``.
            bar: says what was found.
        """
        step = counters.step
        if step % self.interval:
            return
        score = self._judge(network, counters, monitor)
        bar.set_description_str(f"held-out precision {score:.3f}, best {self.score:.3f}")
        if self.ended(step):
            log(f"step {step}: precision has not risen since step {self.best_step}: the run ends")

    def finish(self, network: SlideNetwork, counters: Counters, monitor: Monitor) -> None:
        """After the last step and its checkpoint: load the best weights, which may be the last.

        A run ends where its epochs do, so steps may follow the last evaluation of `look`. They are
        judged here, unless there is nothing to compare them with.

        Args:
            network: the network.
            counters: counters of the run; the seconds of the evaluation are added.
            monitor: the log; takes the precision as ``held/precision``.

        Raises:
            OSError: see `restore`.
        """
        step = counters.step
        if 0 < self.best_step < step and step % self.interval:
            self._judge(network, counters, monitor)
        self.restore(network, step)

    def _judge(self, network: SlideNetwork, counters: Counters, monitor: Monitor) -> float:
        """Evaluate the network, and write it if it is the best."""
        begin = clock()
        score = self.held.precision(network)
        if score > self.score:
            previous_step, self.score, self.best_step = self.best_step, score, counters.step
            self._write(network, previous_step)
        counters.held_seconds += clock() - begin
        monitor.write(counters.step, {"held/precision": score})
        return score

    def restore(self, network: SlideNetwork, step: int) -> None:
        """Load the best weights after the last step.

        Args:
            network: the network.
            step: number of steps done.

        Raises:
            OSError: if they cannot be read.
        """
        if 0 < self.best_step < step:
            try:
                found = read_checked(_KIND, self.path, self.group)
                states = joined_parts(self.path, found)
            except ValueError as error:
                raise OSError(f"the best weights cannot be read: {error}") from error
            load_network_state(network, state_for(states, network)["network"])
            self.group.patient.barrier()  # They read at different speeds.
            log(f"the weights of step {self.best_step} are kept")
        if self.group.rank == 0:  # The last checkpoint is later than both.
            shutil.rmtree(self.before, ignore_errors=True)

    def _write(self, network: SlideNetwork, previous_step: int) -> None:
        """Replace the best weights so far, which are of step ``previous_step``."""
        values, tensors = split_state(network_state(network), "network")
        content: dict[str, Any] = {"score": self.score, "step": self.best_step}
        state, leads = {"network": values}, self.group.rank == 0
        new, old = unfinished(self.path), self.old
        if leads:
            for path in (new, old):
                shutil.rmtree(path, ignore_errors=True)
        self.group.patient.barrier()
        try:
            if self.group.size > 1:
                rows, ids = packed_rows(network)
                write_parts(_KIND, self.group, new, content, state | rows, tensors | ids)
            else:
                write_folder(_KIND, new, {**content, "state": state}, {"network": tensors})
        except OSError as error:
            if leads:
                shutil.rmtree(new, ignore_errors=True)
            kept = "those before are kept" if self.path.exists() else "there are none before"
            raise OSError(f"cannot write the best weights {self.path}: {error}; {kept}") from error
        if leads:
            if self.path.exists() and self._is_needed(previous_step):
                if self.before.exists():
                    self.before.rename(old)
                self.path.rename(self.before)
            elif self.path.exists():
                self.path.rename(old)
            new.rename(self.path)
            sync_folder(self.path.parent)
            shutil.rmtree(old, ignore_errors=True)
        self.group.patient.barrier()

    def _is_needed(self, step: int) -> bool:
        """Whether a run that goes on from the last checkpoint needs the best of this ``step``."""
        last = self.checkpoint.last()
        return last is not None and step <= step_of(last)
