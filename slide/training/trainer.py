"""The training loop: steps, logs, evaluations, checkpoints, resume."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from slide import checks, files
from slide.active_set import ActiveSet
from slide.data import Batch, Batches, SparseDataset, holdout
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim.row_sparse_adam import RowSparseAdam
from slide.ranking import LinearRanker, fit_ranker
from slide.runtime import peak_memory_mb, versions
from slide.sampling import Sampler
from slide.training.evaluation import check_search, evaluate, inspect_selection, majority_precision
from slide.training.metrics import inverse_propensities
from slide.training.monitor import Monitor

CHECKPOINT = "checkpoint.pt"
SUMMARY = "summary.json"
RANKER = "ranker.pt"


class DivergenceError(RuntimeError):
    """The loss or a weight became NaN or infinite."""


@dataclass(frozen=True)
class Options:
    """How long and how to train.

    Attributes:
        batch_size: samples a step.
        epochs: passes over the training rows.
        max_steps: stop after so many steps, if that comes first; 0: no limit.
        eval_every: steps between evaluations; 0: at the end only.
        eval_samples: rows used for evaluations on the way; 0: all. The one at the end uses all.
        checkpoint_every: steps between checkpoints; 0: at the end only.
        log_every: steps between lines of the log.
        recall_every: steps between measurements of tables and selection; 0: never.
        holdout: share of the training rows set aside. If it is above 0, these rows are evaluated
            on and the test rows are not touched: for choosing settings.
        evaluation: ``"exact"`` or ``"lsh"``, see `slide.nn.network.SlideNetwork.predict`.
        seed: of the order of the rows, and of the holdout.

    Raises:
        ValueError: for a number or name out of range.
    """

    batch_size: int = 256
    epochs: int = 5
    max_steps: int = 0
    eval_every: int = 0
    eval_samples: int = 0
    checkpoint_every: int = 0
    log_every: int = 20
    recall_every: int = 100
    holdout: float = 0.0
    evaluation: str = "exact"
    seed: int = 0

    def __post_init__(self):
        for name in ("batch_size", "epochs", "log_every"):
            checks.whole(name, getattr(self, name), 1)
        for name in ("max_steps", "eval_every", "eval_samples", "checkpoint_every"):
            checks.whole(name, getattr(self, name), 0)
        checks.whole("recall_every", self.recall_every, 0)
        checks.whole("seed", self.seed, 0)
        checks.share("holdout", self.holdout)
        checks.one_of("evaluation", self.evaluation, ("exact", "index"))


class Counters(NamedTuple):
    """How far a run has come, in sums since its start."""

    step: int
    samples: int
    active_total: float
    loss_total: float
    train_seconds: float
    rebuild_seconds: float


_COUNTERS = ("step", "samples", "active_total", "loss_total", "train_seconds", "eval_seconds")


class Trainer:
    """Trains a network on a data set, writing into a run's folder.

    Args:
        network: to be trained.
        optimizer: over its parameters.
        loss: on active sets.
        data: the data set.
        options: see `Options`.
        folder: of the run; exists.
        rate: factor on the optimizer's learning rate for a share of training done, in [0, 1].
        resume: go on from the folder's checkpoint, if there is one yet.
        ranker: trained when the network is; ranks anew what the network finds in the last
            evaluation.

    Attributes:
        step: steps done.
    """

    def __init__(
        self,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        loss: ActiveLoss,
        data: SparseDataset,
        options: Options,
        folder: Path,
        rate: Callable[[float], float] = lambda progress: 1.0,
        resume: bool = False,
        ranker: LinearRanker | None = None,
    ):
        rate(0.0)  # Schedules check their numbers when they are called.
        check_search(network, options.evaluation)
        self.network = network
        self.optimizer = optimizer
        self.loss = loss
        self.data = data
        self.options = options
        self.folder = folder
        self.rate = rate
        self.ranker = ranker
        self.train_split, self.eval_split = data.train, data.test
        if options.holdout:
            self.train_split, self.eval_split = holdout(data.train, options.holdout, options.seed)
        self.batches = Batches(self.train_split, options.batch_size, options.seed)
        if not len(self.batches):
            raise ValueError("the data set has no training rows")
        if not len(self.eval_split):
            raise ValueError("the data set has no rows to evaluate on; trainer.holdout makes some")
        steps = options.epochs * len(self.batches)
        self.total_steps = min(steps, options.max_steps) if options.max_steps else steps
        self.learning_rates = [float(group["lr"]) for group in optimizer.param_groups]
        labels = self.train_split.labels
        self.weights = inverse_propensities(labels, data.num_labels, *data.propensity)
        self.step = 0
        self.samples = 0
        self.active_total = 0.0
        self.loss_total = 0.0
        self.train_seconds = 0.0
        self.eval_seconds = 0.0
        self.ranker_seconds = 0.0
        self.stop = False
        if resume and (folder / CHECKPOINT).exists():
            self.load(files.read_tensors(folder / CHECKPOINT))
        self.monitor = Monitor(folder, self.step)

    def fit(self) -> dict[str, Any]:
        """Train to the end, evaluate, and write checkpoint and summary.

        Ctrl-C ends the run after the step at hand, with a checkpoint to go on from.

        Returns:
            The summary, as in ``summary.json``.

        Raises:
            DivergenceError: where the loss, or a weight, is NaN or infinite.
            KeyboardInterrupt: after Ctrl-C.
        """
        options = self.options
        scores: dict[str, float] = {}
        bar = tqdm(total=self.total_steps, initial=self.step, unit="step", disable=None)
        with closing(self.monitor):
            with bar, self._finish_step_on_interrupt():
                since = self._counters()
                begin = time.perf_counter()
                for batch in self._remaining_batches():
                    loss, active, hidden = self.forward(batch)
                    if _due(self.step + 1, options.recall_every):
                        # Before the update: the set was chosen for the weights as they are.
                        self.train_seconds += time.perf_counter() - begin
                        scalars = inspect_selection(self.network.output, hidden, active)
                        self.monitor.write(self.step + 1, scalars)
                        begin = time.perf_counter()
                    self.update(loss)
                    self.train_seconds += time.perf_counter() - begin
                    bar.update()
                    if _due(self.step, options.log_every):
                        self.monitor.write(self.step, self._log(since))
                        bar.set_postfix(_shown(self._mean_loss(since), scores))
                        since = self._counters()
                    if _due(self.step, options.eval_every) and self.step < self.total_steps:
                        scores = self.evaluate(options.eval_samples)
                    if _due(self.step, options.checkpoint_every):
                        self.save()
                    if self.stop:
                        self.save()
                        raise KeyboardInterrupt
                    # Only now: making the next batch is part of the next step.
                    begin = time.perf_counter()
            self.save()
            summary = self._summary(self._final_scores())
        files.write_json(self.folder / SUMMARY, summary)
        return summary

    def forward(self, batch: Batch) -> tuple[torch.Tensor, ActiveSet, torch.Tensor]:
        """Loss (a scalar), the output layer's active set, and its input ``(B, H)``.

        Raises:
            DivergenceError: where the loss is NaN or infinite.
        """
        self.network.train()
        hidden = self.network.encode(batch.features)
        loss, active = self.network.output.loss(hidden, batch.labels, self.loss)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergenceError(self._divergence(f"the loss is {value} at step {self.step + 1}"))
        self.samples += len(batch.rows)
        self.active_total += active.mean_size()
        self.loss_total += value
        return loss, active, hidden

    def update(self, loss: torch.Tensor) -> None:
        """Backward, and a step of the optimizer at the learning rate of this point in training."""
        factor = self.rate(self.step / self.total_steps)
        for group, rate in zip(self.optimizer.param_groups, self.learning_rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1

    def evaluate(self, samples: int = 0, ranker: LinearRanker | None = None) -> dict[str, float]:
        """Scores on the evaluation rows, or on the first ``samples`` of them; logged as well."""
        begin = time.perf_counter()
        split = self.eval_split
        if samples:
            split = split.slice(0, min(samples, len(split)))
        scores = evaluate(self.network, split, self.weights, self.options.evaluation, ranker)
        self.eval_seconds += time.perf_counter() - begin
        group = "eval" if ranker is None else "reranked"
        self.monitor.write(self.step, {f"{group}/{name}": x for name, x in scores.items()})
        return scores

    def _final_scores(self) -> dict[str, float]:
        """Scores on all evaluation rows; with a ranker, its own, and the network's beside them."""
        scores = self.evaluate()
        if self.ranker is None:
            return scores
        begin = time.perf_counter()
        fit_ranker(self.ranker, self.network, self.train_split, self.options.evaluation)
        self.ranker_seconds = time.perf_counter() - begin
        files.write_tensors(self.folder / RANKER, self.ranker.state_dict())
        alone = {f"network_{name}": value for name, value in scores.items()}
        return (
            self.evaluate(ranker=self.ranker) | alone | {"ranker_share": self.ranker.fitted_share}
        )

    def save(self) -> None:
        """Write the checkpoint: everything that the rest of the run depends on.

        Raises:
            DivergenceError: where a weight is NaN or infinite; the last checkpoint stays.
        """
        for name, weight in self.network.named_parameters():
            if not weight.detach().sum().isfinite():
                what = f"{name} is no longer finite after step {self.step}"
                raise DivergenceError(self._divergence(what))
        state = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "step": self.step,
            "samples": self.samples,
            "active_total": self.active_total,
            "loss_total": self.loss_total,
            "train_seconds": self.train_seconds,
            "eval_seconds": self.eval_seconds,
            "rebuild_seconds": [s.rebuild_seconds for s in self._samplers()],
        }
        files.write_tensors(self.folder / CHECKPOINT, state)

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `save` wrote."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        for name in _COUNTERS:
            setattr(self, name, state[name])
        for sampler, seconds in zip(self._samplers(), state["rebuild_seconds"], strict=True):
            sampler.rebuild_seconds = seconds

    def _remaining_batches(self) -> Iterator[Batch]:
        while self.step < self.total_steps:
            epoch, start = divmod(self.step, len(self.batches))
            for batch in self.batches.epoch(epoch, start):
                yield batch
                if self.step >= self.total_steps:
                    return

    @contextmanager
    def _finish_step_on_interrupt(self):
        def note(*_: Any) -> None:
            self.stop = True
            signal.signal(signal.SIGINT, before)  # A second Ctrl-C ends it at once.

        try:
            before = signal.signal(signal.SIGINT, note)
        except ValueError:  # Not in the main thread: leave Ctrl-C alone.
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _samplers(self) -> list[Sampler]:
        return [layer.sampler for layer in self.network.layers()]

    def _rebuild_seconds(self) -> float:
        return sum(sampler.rebuild_seconds for sampler in self._samplers())

    def _counters(self) -> Counters:
        return Counters(
            self.step,
            self.samples,
            self.active_total,
            self.loss_total,
            self.train_seconds,
            self._rebuild_seconds(),
        )

    def _mean_loss(self, since: Counters) -> float:
        return (self.loss_total - since.loss_total) / (self.step - since.step)

    def _log(self, since: Counters) -> dict[str, float]:
        """Scalars of the steps since the last log."""
        steps, seconds = self.step - since.step, self.train_seconds - since.train_seconds
        return {
            "train/loss": self._mean_loss(since),
            "train/learning_rate": self.optimizer.param_groups[0]["lr"],
            "train/epoch": self.step / len(self.batches),
            "train/seconds": self.train_seconds,
            "speed/samples_per_second": (self.samples - since.samples) / seconds,
            "speed/rebuild_share": (self._rebuild_seconds() - since.rebuild_seconds) / seconds,
            "selection/active_mean": (self.active_total - since.active_total) / steps,
        }

    def _divergence(self, what: str) -> str:
        checkpoint = self.folder / CHECKPOINT
        last = (
            f"the last good checkpoint is {checkpoint}"
            if checkpoint.exists()
            else ("there is no checkpoint yet (trainer.checkpoint_every)")
        )
        return f"{what}: lower optimizer.lr; {last}"

    def _summary(self, scores: dict[str, float]) -> dict[str, Any]:
        return {
            "dataset": self.data.name,
            "samples": self.samples,
            "features": self.data.num_features,
            "labels": self.data.num_labels,
            "epochs": self.step / len(self.batches),
            "steps": self.step,
            "train_seconds": round(self.train_seconds + self.ranker_seconds, 3),
            "ranker_seconds": round(self.ranker_seconds, 3),
            "eval_seconds": round(self.eval_seconds, 3),
            "samples_per_second": round(self.samples / self.train_seconds, 1),
            **{name: round(value, 6) for name, value in scores.items()},
            "majority_p_at_1": round(majority_precision(self.train_split, self.eval_split), 6),
            "evaluated_on": "holdout" if self.options.holdout else "test",
            "active_mean": round(self.active_total / self.step, 1),
            "rebuild_seconds": round(self._rebuild_seconds(), 3),
            "peak_rss_mb": peak_memory_mb(),
            "date": time.strftime("%Y-%m-%d"),
            "versions": versions(),
        }


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _shown(loss: float, scores: dict[str, float]) -> dict[str, str]:
    shown = {"loss": f"{loss:.3f}"}
    return shown | {"P@1": f"{scores['p_at_1']:.3f}"} if scores else shown
