"""Validation steps: precision on held-out training samples decides how long a run trains."""

import copy
from pathlib import Path

import numpy as np

from slide.backend import on_host
from slide.data import Batches, Split, find_seen
from slide.data.dataset import take_labels
from slide.nn import SlideNetwork
from slide.nn.answers import best_unknown
from slide.sparse import Pattern, hits
from slide.training.checkpoint import (
    FAULTS,
    Checkpoint,
    find_folders,
    install,
    joined_parts,
    load_network_state,
    network_files,
    newest_of_first,
    read_checked,
    remove,
    state_for,
    step_of,
)
from slide.training.coordination import Coordinator
from slide.training.evaluation import frequent_labels
from slide.training.lr_schedules import AutoSchedule, evaluation_interval
from slide.training.monitor import Counters, Monitor
from slide.utils.array_checks import Stored
from slide.utils.checks import error_message, shortened
from slide.utils.profiling import clock
from slide.utils.progress_bar import ProgressBar, log
from slide.utils.sizes import mean_name, validation_cutoffs
from slide.utils.tensor_folder import FolderKind, read_folder

# The name in the log of precision on held-out samples.
HELD = "held/precision"
BEST = "best"
BEST_NETWORK = FolderKind("best network", "best.json", format=3)
# Held-out samples that are used at most: 2,000 give precision with a standard error of 1 %.
HELD_SAMPLES = 2000
_BATCH = 512


class HeldOutSamples:
    """At most 2,000 held-out samples of a ``kind``, and what training samples tell of them."""

    def __init__(self, train: Split, held: Split, kind: str):
        # Files may be sorted, so the samples come from all of them.
        rows = np.linspace(0, len(held) - 1, min(HELD_SAMPLES, len(held))).astype(np.int64)
        self.split = held.take(rows)
        self.known: Pattern | None = None
        if kind in ("graph", "items"):
            self.known = find_seen(train, kind).of(self.split.features)
        self.cutoffs = validation_cutoffs(train.num_labels)
        self.measure = mean_name(self.cutoffs)
        most = len(self.split), self.known, self.cutoffs[-1]
        self.baseline = self._mean_precision(frequent_labels(train, *most))

    def part(self, count: int) -> "HeldOutSamples":
        """Some of these samples."""
        rows = np.linspace(0, len(self.split) - 1, min(count, len(self.split))).astype(np.int64)
        found = copy.copy(self)
        found.split = self.split.take(rows)
        found.known = None if self.known is None else take_labels(self.known, rows)
        return found

    def precision(self, network: SlideNetwork) -> float:
        """The mean of P@1, P@3 and P@5, or fewer, by exact search without seen items."""
        found, count = [], self.cutoffs[-1]
        for batch in Batches(self.split, _BATCH, seed=0, shuffle=False).epoch(0):
            if self.known is None:
                found.append(on_host(network.predict(batch.features, count)[1]))
            else:
                known = self.known.slice(batch.rows[0], batch.rows[-1] + 1)
                hidden = network.embed(batch.features)
                found.append(best_unknown(network.output, hidden, known, count))
        return self._mean_precision(np.concatenate(found))

    def validate(self, network: SlideNetwork, counters: Counters, monitor: Monitor) -> float:
        """`precision`, with its seconds and a line of the log."""
        begin = clock()
        score = self.precision(network)
        counters.validation_seconds += clock() - begin
        monitor.write(counters.step, {HELD: score})
        return score

    def _mean_precision(self, ids: np.ndarray) -> float:
        found = hits(ids, self.split.labels)
        return float(np.mean([found[:, :k].sum(1).mean() / k for k in self.cutoffs]))


class AutoValidation:
    """Evaluates a network for its `AutoSchedule`, and tells what the run is waiting for."""

    def __init__(
        self, schedule: AutoSchedule, held: HeldOutSamples, coordinator: Coordinator | None = None
    ):
        self.schedule, self.coordinator = schedule, coordinator or Coordinator()
        self.held = None if schedule.decay_from else held

    def validate(
        self, network: SlideNetwork, counters: Counters, monitor: Monitor, bar: ProgressBar
    ) -> float | None:
        """After a step: evaluate the network if that is due, and decide whether the rate falls."""
        schedule, step, score = self.schedule, counters.step, None
        if self.held is None or schedule.decay_from:
            return None
        if schedule.is_validation_step(step):
            score = self.held.validate(network, counters, monitor)
            schedule.add_score(step, score, self.held.baseline)
            self.show(bar)
        schedule.check_limits(step, self.coordinator.seconds(counters.network_seconds))
        if schedule.decay_from:
            self.show(bar)
            log(f"step {step}: {schedule.falling(self.held.measure)}")
        return score

    def show(self, bar: ProgressBar) -> None:
        """Let a bar show how long the run goes on, as far as that is known."""
        bar.total, bar.bar_format = self.schedule.total or None, None
        if not bar.total:
            assert self.held is not None, "the rate falls"
            bar.bar_format = self.schedule.waiting(self.held.measure) + "{postfix}"
        else:
            bar.set_description_str("the rate falls")


class EarlyStopping:
    """Ends a run when precision no longer rises, and keeps the best weights in ``best``.

    Weights that were the best up to the last checkpoint stay beside them: a run that goes on from
    there goes on with them. All processes validate at the same steps.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        patience: int,
        steps_per_epoch: int,
        held: HeldOutSamples,
        step: int,
    ):
        self.checkpoint, self.group, self.patience = checkpoint, checkpoint.group, patience
        self.path = checkpoint.run / BEST
        self.interval, self.held = evaluation_interval(steps_per_epoch), held
        self.score, self.best_step = -1.0, 0
        wrong = self._read_best(step) if self.group.is_main_process else None
        told = self.group.broadcast([self.score, self.best_step, wrong])
        self.score, self.best_step, wrong = told
        if wrong is not None:
            raise ValueError(wrong)

    def _read_best(self, step: int) -> str | None:
        """Take the best precision up to a step, and remove what came later; returns an error."""
        try:
            for path in find_folders(self.path)[::-1]:
                if step_of(path) <= step:
                    found = read_folder(BEST_NETWORK, path)
                    stored = Stored(found, {}, str(path / BEST_NETWORK.list_file))
                    self.score, self.best_step = stored.number("score", 0, 1), step_of(path)
                    break
                remove(path)
        except (OSError, ValueError) as error:  # All processes end with it.
            return str(error)
        return None

    def ended(self, step: int) -> bool:
        """Whether precision has not risen for too long after ``step`` steps."""
        return self.score >= 0 and step - self.best_step >= self.patience * self.interval

    def validate(
        self, network: SlideNetwork, counters: Counters, monitor: Monitor, bar: ProgressBar
    ) -> float | None:
        """After a step: evaluate the network if that is due, and write it if it is the best."""
        step = counters.step
        if step % self.interval:
            return None
        score = self._evaluate(network, counters, monitor)
        measure = self.held.measure
        bar.set_description_str(f"{measure} {score:.3f}, best {self.score:.3f}")
        if self.ended(step):
            log(f"step {step}: {measure} has not risen since step {self.best_step}: the run ends")
        return score

    def _evaluate(self, network: SlideNetwork, counters: Counters, monitor: Monitor) -> float:
        score = self.held.validate(network, counters, monitor)
        if score > self.score:
            begin = clock()
            self.score, self.best_step = score, counters.step
            values, files = network_files(network)
            install(
                BEST_NETWORK,
                self.group,
                self.path,
                step=counters.step,
                content={"score": score},
                values=values,
                files=files,
                outdated=self._outdated,
            )
            counters.validation_seconds += clock() - begin
        return score

    def finish(self, network: SlideNetwork, counters: Counters, monitor: Monitor) -> None:
        """After the last checkpoint: evaluate steps since validation, and load the best weights."""
        step = counters.step
        if 0 < self.best_step < step and step % self.interval:
            self._evaluate(network, counters, monitor)
        if 0 < self.best_step < step:
            folder = newest_of_first(BEST_NETWORK, self.path, self.group)
            if folder is None:
                raise OSError(f"the best weights cannot be read: {self.path} has none any more")
            try:
                states = joined_parts(folder, read_checked(BEST_NETWORK, folder, self.group))
                load_network_state(network, state_for(states, network)["network"])
            except FAULTS as error:
                said = f"{folder}: {shortened(error_message(error))}"
                raise OSError(f"the best weights cannot be read: {said}") from error
            self.group.patient.barrier()  # They read at different speeds.
            log(f"the weights of step {self.best_step} are kept")
        if self.group.is_main_process:  # The last checkpoint is later than all of them.
            for path in find_folders(self.path)[:-1]:
                remove(path)

    def _outdated(self, found: list[Path]) -> list[Path]:
        """All but the best, and what was the best for a run that goes on from the checkpoint."""
        last = self.checkpoint.last()
        before = [path for path in found if last is not None and step_of(path) <= step_of(last)]
        return [path for path in found[:-1] if path not in before[-1:]]
