"""The trainer: a run from the first step to the summary."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slide.backend import products
from slide.data import Batch, Batches, SparseDataset, Split, fingerprint, validation_split
from slide.data.dataset import ROW_KINDS
from slide.data.row_kinds import choose_kind
from slide.nn import ActiveLoss, SlideNetwork
from slide.nn.answers import Ranked, Reranker
from slide.nn.resizing import changing
from slide.nn.sampled_linear import SEARCHES
from slide.optim import RowSparseAdam
from slide.runtime import versions
from slide.training.checkpoint import Checkpoint
from slide.training.coordination import Coordinator, CoreShare
from slide.training.evaluation import (
    TOP,
    check_search,
    choose_samples,
    frequent_labels,
    inverse_propensities,
    learnt_nothing,
    log_lines,
    majority_precision,
    predict_split,
    scores_of,
)
from slide.training.group import Group
from slide.training.loop import TrainingLoop, is_due
from slide.training.lr_schedules import (
    AutoSchedule,
    LRSchedule,
    constant,
    evaluation_interval,
    least_steps,
    scheduler_at,
)
from slide.training.monitor import Counters, Monitor, log_scalars, write_summary
from slide.training.selection import buckets_line, selection_figures, selection_warnings
from slide.training.stopping import (
    HELD,
    HELD_SAMPLES,
    AutoValidation,
    EarlyStopping,
    HeldOutSamples,
)
from slide.utils import checks
from slide.utils.profiling import clock, compile_seconds
from slide.utils.progress_bar import ProgressBar, log
from slide.utils.resources import peak_memory_mb
from slide.utils.signals import Interrupt, noted_interrupts
from slide.utils.sizes import DEFAULTS, validation_cutoffs

# Measurements for a curve take at most this share of the multiplications of the steps, or as many
# multiplications, which take some tenths of a second.
_SHARE, _FREE = 0.05, 5e9
# Fewest held-out rows for a point; fewest and most samples for one of recall.
_FEWEST_ROWS, _INSPECTED = 128, (2, 16)
_MOST_EPOCHS = 20
# Steps between lines of the log and between measurements of recall, which compute all outputs of
# some samples; in a short run as many as give a curve this number of points.
_LOG_EVERY, _RECALL_EVERY, _FEWEST_POINTS = 20, 100, 20


@dataclass(frozen=True)
class TrainingOptions:
    """How long a `slide.training.Trainer` trains, and when it logs, evaluates and saves.

    The fields are the keys of ``trainer`` in ``conf/train.yaml``, which explains them and has their
    defaults, and ``holdout`` of ``dataset``. Where a default is open there, steps have 256 samples
    and all outputs are scored.

    Example:
        >>> from slide.training import TrainingOptions
        >>> options = TrainingOptions(batch_size=64, epochs=3)
        >>> options.most_steps(steps_per_epoch=10)
        30
        >>> TrainingOptions(epochs=0)
        Traceback (most recent call last):
        ValueError: epochs must be auto or a whole number of at least 1, not 0
    """

    batch_size: int = 256
    epochs: int | str = DEFAULTS["trainer.epochs"]
    max_epochs: int | None = DEFAULTS["trainer.max_epochs"]
    max_minutes: float = DEFAULTS["trainer.max_minutes"]
    max_steps: int = DEFAULTS["trainer.max_steps"]
    patience: int = DEFAULTS["trainer.patience"]
    eval_every: int = DEFAULTS["trainer.eval_every"]
    eval_samples: int = DEFAULTS["trainer.eval_samples"]
    checkpoint_every: int = DEFAULTS["trainer.checkpoint_every"]
    keep_checkpoints: int = DEFAULTS["trainer.keep_checkpoints"]
    log_every: int | None = DEFAULTS["trainer.log_every"]
    recall_every: int | None = DEFAULTS["trainer.recall_every"]
    holdout: float = DEFAULTS["dataset.holdout"]
    evaluation: str = "exact"
    kind: str = DEFAULTS["trainer.kind"]
    seed: int = DEFAULTS["seed"]
    share_cores: bool = DEFAULTS["trainer.share_cores"]

    def __post_init__(self):
        for name, value in vars(self).items():
            if isinstance(value, np.generic):
                object.__setattr__(self, name, value.item())
        for name in ("batch_size", "keep_checkpoints"):
            checks.whole(name, getattr(self, name), 1)
        for name, least in (("max_epochs", 1), ("log_every", 1), ("recall_every", 0)):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), least)
        if not self.auto and (type(self.epochs) is not int or self.epochs < 1):
            raise ValueError(
                f"epochs must be auto or a whole number of at least 1, not {self.epochs!r}"
            )
        for name in ("max_steps", "eval_every", "eval_samples", "checkpoint_every", "patience"):
            checks.whole(name, getattr(self, name), 0)
        checks.not_negative("max_minutes", self.max_minutes)
        for name in ("max_epochs", "max_minutes"):
            if (value := getattr(self, name)) and not self.auto:
                raise ValueError(f"{name}={value} needs epochs=auto, not {self.epochs}")
        if self.patience and self.auto:
            raise ValueError(
                f"patience={self.patience} needs a number of epochs; epochs=auto stops by itself"
            )
        checks.whole("seed", self.seed, 0)
        checks.share("holdout", self.holdout)
        checks.one_of("evaluation", self.evaluation, SEARCHES)
        checks.one_of("kind", self.kind, ROW_KINDS)
        checks.flag("share_cores", self.share_cores)

    @property
    def auto(self) -> bool:
        """Whether precision on held-out rows tells how long to train."""
        return self.epochs == "auto"

    def fewest_steps(self, steps_per_epoch: int, most_steps: int) -> int:
        """The number of steps of a run that ends as early as it may."""
        if self.auto or self.patience:  # Two evaluations on held-out rows come before the end.
            return min(2 * evaluation_interval(steps_per_epoch), most_steps)
        return most_steps

    def intervals(self, fewest_steps: int) -> tuple[int, int]:
        """Steps between lines of the log, and between measurements; 0: never."""
        short = max(1, fewest_steps // _FEWEST_POINTS)
        log = min(short, _LOG_EVERY) if self.log_every is None else self.log_every
        recall = min(short, _RECALL_EVERY) if self.recall_every is None else self.recall_every
        return log, recall

    def most_steps(self, steps_per_epoch: int, least: int = 0) -> int:
        """The largest number of steps of a run; without ``epochs="auto"``, the number of steps."""
        epochs = self.epochs if isinstance(self.epochs, int) else self.max_epochs
        default = max(_MOST_EPOCHS * steps_per_epoch, 2 * least)
        steps = default if epochs is None else epochs * steps_per_epoch
        return min(steps, self.max_steps) if self.max_steps else steps


class Trainer:
    """Trains a network on a data set, and writes log, checkpoint and summary into a folder.

    Args:
        options: see `TrainingOptions`.
        folder: folder of the run; it must exist.
        lr_schedule: called with the optimizer and the number of steps; returns a scheduler of
            PyTorch (see `slide.training.lr_schedules`). With ``epochs="auto"`` it is not used: the
            rates come from the `slide.training.lr_schedules.AutoSchedule`.
        resume: whether to continue from the checkpoint in the folder, if there is one.
        ranker: is trained after the network, and re-ranks its outputs in the last evaluation. None:
            no re-ranking. Of several processes, the first one trains it.
        group: the processes of the run, which share the rows of the network; all of them make a
            trainer with the same arguments. None: this process alone.

    Attributes:
        train_split: samples that the network learns from.
        held_split: training samples for choices: how long to train, how to re-rank. None: there is
            nothing to choose, with a number of epochs, without patience and without a ranker.
        every_split: both of them.
        eval_split: samples that the run is evaluated on.
        answers: labels and scores of the last evaluation; None: there was none yet.
        kind_choice: what the samples are taken for and why; ``""``: nothing depends on it.

    Example:
        >>> import pathlib, tempfile, slide, slide.data
        >>> from slide.training import Trainer, TrainingOptions
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> data = slide.data.synthetic(cache=folder / "cache", num_features=60, nonzeros=8,
        ...     num_labels=80, train_samples=64, test_samples=8, labels_per_row=2)
        >>> network = slide.SlideNetwork(60, [8], 80, slide.FullSampler)
        >>> optimizer, loss = slide.RowSparseAdam(network.parameters()), slide.ActiveLoss("bce")
        >>> trainer = Trainer(network, optimizer, loss, data, TrainingOptions(epochs=2), folder)
        >>> trainer.fit()["steps"]
        2
    """

    def __init__(
        self,
        network: SlideNetwork,
        optimizer: RowSparseAdam,
        loss: ActiveLoss,
        data: SparseDataset,
        options: TrainingOptions,
        folder: Path,
        lr_schedule: LRSchedule = constant,
        resume: bool = False,
        ranker: Reranker | None = None,
        group: Group | None = None,
    ):
        check_search(network.output.sampler, options.evaluation)
        self.network, self.ranker, self.data = network, ranker, data
        self.options, self.folder, self.counters = options, folder, Counters()
        self.group = group = group or Group.alone()
        self.is_main_process = group.is_main_process
        validates, kind = options.auto or options.patience > 0, options.kind
        self.kind_choice = ""
        # Nothing else asks for it. It is found out once, from all rows.
        if validates or ranker is not None or options.holdout:
            kind, self.kind_choice = choose_kind(replace(data.train, kind=kind))
            data = replace(data, train=replace(data.train, kind=kind))
        samples, self.eval_split = choose_samples(data, options.holdout, options.seed, options.kind)
        self.inverse = inverse_propensities(samples.labels, data.num_labels, *data.propensity)
        self.train_split, self.held_split, self.every_split = samples, None, samples
        if validates or ranker is not None:
            self.train_split, self.held_split = validation_split(samples, options.seed)
        self.batches = Batches(self.train_split, options.batch_size, options.seed)
        epoch = len(self.batches)
        least = least_steps(kind, epoch, options.batch_size) if options.auto else 0
        self.answers: Ranked | None = None
        self._most_steps = options.most_steps(epoch, least)
        fewest = options.fewest_steps(epoch, self._most_steps)
        self.log_every, self.recall_every = options.intervals(fewest)
        self.held_out: HeldOutSamples | None = None
        self.held_part: HeldOutSamples | None = None
        held = 0 if self.held_split is None else min(HELD_SAMPLES, len(self.held_split))
        self.held_every, rows = self._curve(held, fewest)
        if self.held_split is not None and (validates or self.held_every):
            self.held_out = HeldOutSamples(self.train_split, self.held_split, kind)
            self.held_part = self.held_out.part(rows)
        self.schedule: AutoSchedule | None = None
        if options.auto:
            self.schedule = AutoSchedule(epoch, self._most_steps, 60 * options.max_minutes, least)
            lr_schedule = self.schedule
        facts, keep = self._facts(optimizer, loss), options.keep_checkpoints
        self.checkpoint = Checkpoint(folder, network, optimizer, self.schedule, facts, keep, group)
        rates = [float(each["lr"]) for each in optimizer.param_groups]
        if resume and self.checkpoint.found():
            self.counters = self.checkpoint.read()
            if self.step > self._most_steps:
                log(f"step {self.step} is past the last, {self._most_steps}: no training is left")
            seconds = self.counters.network_seconds
            if self.schedule and (late := self.schedule.apply_lower_limits(self.step, seconds)):
                log(late)
        self.coordinator = Coordinator(group, self.step)
        self.early_stopping: EarlyStopping | None = None
        self._validation: AutoValidation | EarlyStopping | None = None
        if self.schedule is not None and self.held_out is not None:
            self._validation = AutoValidation(self.schedule, self.held_out, self.coordinator)
        elif options.patience and self.held_out is not None:
            self._validation = self.early_stopping = EarlyStopping(
                self.checkpoint, options.patience, epoch, self.held_out, self.step
            )
        scheduler = scheduler_at(lr_schedule, optimizer, rates, self._most_steps, self.step)
        last = self.checkpoint.last
        self.loop = TrainingLoop(network, optimizer, loss, self.counters, scheduler, last, group)
        if self.recall_every:
            most = self._spare(fewest) * self.recall_every // fewest
            self.loop.inspected = min(max(most, _INSPECTED[0]), _INSPECTED[1])
        self.monitor = Monitor(folder if self.is_main_process else None, self.step)
        if self.kind_choice:
            log(f"rows      {self.kind_choice}")
        self._compiled = self.counters.compile_seconds - compile_seconds()

    def _facts(self, optimizer: RowSparseAdam, loss: Any) -> dict[str, Any]:
        """What a checkpoint and the run that reads it must agree on, in words for people."""
        train, evaluated, options = self.train_split, self.eval_split, self.options
        named = loss if hasattr(loss, "__qualname__") else type(loss)
        loss_name = f"{named.__module__}.{named.__qualname__}"
        layers = list(self.network.layers())
        return {
            "data set": self.data.name,
            "trainer.kind": options.kind,
            "number of features": self.data.num_features,
            "number of labels": self.data.num_labels,
            "number of training rows": len(train),
            "number of evaluation rows": len(evaluated),
            "checksum of the training rows": fingerprint(train),
            "checksum of the evaluation rows": fingerprint(evaluated),
            "widths of layers": [layer.out_features for layer in layers],
            "samplers": [type(layer.sampler).__name__ for layer in layers],
            "modes of samplers": [getattr(layer.sampler, "mode", None) for layer in layers],
            "loss": getattr(getattr(loss, "record", None), "name", loss_name),
            "share of hard samples": getattr(loss, "hard_fraction", None),
            **{
                f"{name} of the optimizer": [  # As JSON gives it back.
                    list(group[name]) if isinstance(group[name], tuple) else group[name]
                    for group in optimizer.param_groups
                ]
                for name in ("betas", "eps", "weight_decay", "correct_skipped", "rowwise")
                if name in optimizer.defaults
            },
            "batch size": options.batch_size,
            "seed": options.seed,
            "trainer.epochs=auto": options.auto,
        }

    def _spare(self, steps: int) -> int:
        """How many samples may be scored against all outputs for the curves of ``steps``."""
        output, labels = self.network.output, self.data.num_labels
        active = min(getattr(output.sampler, "active", labels), labels)
        step = 3 * self.options.batch_size * active  # Forward, and backward to both sides.
        return int(max(_SHARE * step * steps, _FREE / output.in_features) / labels)

    def _curve(self, held: int, steps: int) -> tuple[int, int]:
        """Steps between points of held-out precision, and their rows; ``held`` are there."""
        spare = self._spare(steps)
        rows = min(max(spare // _FEWEST_POINTS, _FEWEST_ROWS), held)
        points = min(spare // rows, _FEWEST_POINTS) if rows and self.recall_every else 0
        return (max(steps // points, 1), rows) if points > 1 else (0, 0)

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self.counters.step

    @property
    def total_steps(self) -> int | None:
        """Number of steps of the run; None: it is not known yet (``epochs="auto"``)."""
        return self._most_steps if self.schedule is None else self.schedule.total or None

    @property
    def ended(self) -> bool:
        """Whether no step of training is left."""
        early = self.early_stopping is not None and self.early_stopping.ended(self.step)
        return early or (self.total_steps is not None and self.step >= self.total_steps)

    def fit(self) -> dict[str, Any]:
        """Train to the end, evaluate, write checkpoint and summary.

        It returns the summary, as in ``summary.json``. After Ctrl-C, SIGTERM or SIGHUP the run
        completes its step and writes a checkpoint; then KeyboardInterrupt is raised.

        Raises:
            RuntimeError: if it was called before, or while another thread trains the network.
            DivergenceError: if the loss or a weight is NaN or infinite.
            OSError: if a file cannot be written.
        """
        if self.checkpoint.closed:
            raise RuntimeError("this trainer has trained: make a new one with resume=True")
        # The processes of a run would take each other for strangers.
        shares = self.options.share_cores and self.group.size == 1
        bar = ProgressBar(desc="training", total=self.total_steps, initial=self.step, unit=" steps")
        with (
            changing(*self.network.layers()),
            closing(self.checkpoint),
            closing(self.monitor),
            closing(CoreShare(None if shares else 1)) as cores,
        ):
            with bar, noted_interrupts() as interrupt:
                self._train(bar, interrupt, cores)
            self.save()
            if self.early_stopping is not None:
                self.early_stopping.finish(self.network, self.counters, self.monitor)
            scores = self._final_scores(cores)
            self._note_compilation()
            summary = self._summary(scores)
            if self.is_main_process:
                write_summary(self.folder, summary)
        self.group.patient.barrier()  # A disk may be slow.
        return summary

    def _summary(self, scores: dict[str, float]) -> dict[str, Any]:
        """What ``summary.json`` holds; ``train_seconds`` is the sum of the three that follow it."""
        counters, measured = self.counters, self.monitor.scalars()
        names = ("train", "network", "validation", "ranker", "eval", "rebuild", "measuring")
        seconds = [f"{name}_seconds" for name in (*names, "compile")]
        majority = majority_precision(self.train_split, self.eval_split)
        found = {
            "dataset": self.data.name,
            "train_rows": len(self.every_split),
            "eval_rows": len(self.eval_split),
            "samples": counters.samples,
            "features": self.data.num_features,
            "labels": self.data.num_labels,
            "epochs": counters.step / len(self.batches),
            "steps": counters.step,
            **{name: round(getattr(counters, name), 3) for name in seconds},
            "samples_per_second": round(counters.samples / counters.network_seconds, 1),
            **{name: round(value, 6) for name, value in scores.items()},
            "majority_p_at_1": round(majority, 6),
            "evaluated_on": "test" if self.eval_split is self.data.test else "holdout",
            "active_mean": round(counters.active_total / counters.step, 1),
            "peak_rss_mb": peak_memory_mb(),
            "date": time.strftime("%Y-%m-%d"),
            "versions": versions(),
            "products": products(),
        }
        if self.group.size > 1:
            found["processes"] = self.group.size
            found["exchange_seconds"] = round(counters.exchange_seconds, 3)
        found |= selection_figures(measured, self.network)
        found["warnings"] = selection_warnings(measured, self.network)
        if found["p_at_1"] < found["majority_p_at_1"] or self._learnt_nothing():
            found["warnings"].append(
                "the answers are no better than always the most frequent labels (P@1 "
                f"{found['p_at_1']:.4f}, theirs {majority:.4f}), within the noise of "
                f"{len(self.eval_split):,} rows: is the learning rate too large, or training too "
                "short?"
            )
        found["kind"] = self.train_split.kind
        rows = [f"rows: {self.kind_choice}"] if self.kind_choice else []
        found["choices"] = [*rows, *getattr(self.ranker, "notes", [])]
        return found

    def _learnt_nothing(self) -> bool:
        """Whether the last answers are no better than the most frequent labels."""
        if self.answers is None:
            return False
        rows, seen = self.eval_split, getattr(self.ranker, "seen", None)
        known = None if seen is None else seen.of(rows.features)
        most = validation_cutoffs(self.data.num_labels)[-1]
        frequent = frequent_labels(self.train_split, len(rows), known, most)
        return learnt_nothing(self.answers.ids, frequent, rows.labels)

    def _train(self, bar: ProgressBar, interrupt: Interrupt, cores: CoreShare) -> None:
        options, counters, scores = self.options, self.counters, {}
        if isinstance(self._validation, AutoValidation):
            self._validation.show(bar)
        first, logged, held = self.step, replace(counters), None
        for measured in self.loop.steps(self._batches(), self.recall_every):
            if measured:
                self.monitor.write(self.step, measured)
            bar.update()
            if self.step == 1 and (buckets := buckets_line(self.network)):
                log(f"buckets   {buckets}")
            if is_due(self.step, self.log_every):
                self.loop.settle()
                scalars = log_scalars(counters, logged, self.loop.rate, len(self.batches))
                self.monitor.write(self.step, scalars)
                shown = {"loss": f"{scalars['train/loss']:.3f}"}
                bar.set_postfix(shown | {"P@1": f"{scores['p_at_1']:.3f}"} if scores else shown)
                logged = replace(counters)
            if self._validation is not None:
                held = self._validation.validate(self.network, counters, self.monitor, bar)
            self._measure_held(held)
            if is_due(self.step, options.eval_every) and not self.ended:
                scores = self.evaluate(options.eval_samples)
            self._stop_if_asked(interrupt)
            if is_due(self.step, options.checkpoint_every):
                self._note_compilation()
                self.loop.settle()
                self.checkpoint.begin(counters)
            elif options.checkpoint_every and self.step == first + 1:  # Now there are moments.
                self.checkpoint.prepare()
            self.checkpoint.check()
            cores.adjust()
        self._stop_if_asked(interrupt, at_once=True)

    def _measure_held(self, exact: float | None) -> None:
        """A point of the curve of held-out precision, if due and not ``exact`` by validation."""
        if self.held_part is None or not self.held_every:
            return
        if self.ended and self.early_stopping is not None:
            return  # Early stopping evaluates at the end itself.
        if exact is None and not self.ended and not is_due(self.step, self.held_every):
            return
        begin = clock()
        found = self.held_part.precision(self.network)
        if exact is None:
            self.monitor.write(self.step, {HELD: found + self.counters.held_offset})
        else:
            self.counters.held_offset = exact - found
        self.counters.measuring_seconds += clock() - begin

    def _batches(self) -> Iterator[Batch]:
        while not self.ended:
            yield self.batches.batch(*divmod(self.step, len(self.batches)))

    def _stop_if_asked(self, interrupt: Interrupt, at_once: bool = False) -> None:
        seconds = self.counters.network_seconds
        error = self.coordinator.interrupt(self.step, seconds, interrupt.error, at_once)
        if error is not None:
            self.save()
            raise error

    def _final_scores(self, cores: CoreShare) -> dict[str, float]:
        if self.ranker is None or self.held_split is None:
            return self.evaluate()
        scores: dict[str, float] = {}
        with self.network.on_main_process(self.group.patient) as network:
            if network is not None:
                self._train_ranker(network, self.ranker, self.held_split)
                cores.adjust()
                scores = self.evaluate(ranker=self.ranker, network=network)
        return self.group.patient.broadcast(scores)

    def _train_ranker(self, network: Any, ranker: Reranker, held: Split) -> None:
        ranker.prepare()
        train, search, begin = self.train_split, self.options.evaluation, clock()
        log(f"re-ranker: learns from {len(train):,} rows and {len(held):,} others")
        ranker.fit(network, train, held, self.inverse, search, self.every_split)
        self.counters.ranker_seconds = clock() - begin
        for note in ranker.notes:
            log(note)

    def evaluate(
        self, samples: int = 0, ranker: Reranker | None = None, network: Any = None
    ) -> dict[str, float]:
        """Scores on the evaluation samples, also written to the log until `fit` has ended.

        Args:
            samples: number of samples to use, from the first one; 0: all.
            ranker: re-ranks the outputs; None: no re-ranking.
            network: answers instead of the network; see
                `slide.SlideNetwork.on_main_process`. None: it answers.
        """
        begin, rows = clock(), len(self.eval_split)
        split = self.eval_split.slice(0, min(samples or rows, rows))
        found = predict_split(network or self.network, split, self.options.evaluation, ranker)
        scores = scores_of(found, split, self.inverse, ranker)
        self.answers = Ranked.of(TOP, *found)
        self.counters.eval_seconds += clock() - begin
        if not self.checkpoint.closed:  # Afterwards another process may go on with the run.
            for scalars in log_lines(scores, reranked=ranker is not None):
                self.monitor.write(self.step, scalars)
        return scores

    def save(self) -> None:
        """Write a checkpoint."""
        self._note_compilation()
        self.loop.settle()
        self.checkpoint.write(self.counters)

    def _note_compilation(self) -> None:
        self.counters.compile_seconds = self._compiled + compile_seconds()
