"""The training loop."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from slide.data import Batches, SparseDataset, Split, kind_of, validation_split
from slide.distributed import Group
from slide.distributed.asking import asked_by_first
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim import RowSparseAdam
from slide.ranking import EnsembleRanker, Ranked
from slide.training.checkpoint import Checkpoint
from slide.training.evaluation import (
    check_search,
    choose_rows,
    log_lines,
    predict_split,
    scores_of,
)
from slide.training.facts import run_facts
from slide.training.interrupt import Interrupt, noted_interrupts
from slide.training.learner import Learner
from slide.training.lr_schedules import LRSchedule, constant, scheduler_at
from slide.training.metrics import inverse_propensities
from slide.training.monitor import Monitor, SilentMonitor
from slide.training.options import TrainingOptions
from slide.training.patience import Patience
from slide.training.plan import Plan, least_steps
from slide.training.planner import HeldRows, Planner
from slide.training.progress import Counters, bar_values, log_scalars, progress_bar
from slide.training.sharing import CoreShare
from slide.training.summary import add_selection, summary_of, write_summary
from slide.training.together import Together
from slide.utils.profiling import clock, compile_seconds
from slide.utils.progress_bar import ProgressBar, log


class Trainer:
    """Trains a network on a data set, and writes log, checkpoint and summary into a folder.

    Args:
        network: the network to train.
        optimizer: the optimizer of its parameters.
        loss: the loss of the output layer; see `slide.SampledLinear.loss`.
        data: the data set.
        options: see `TrainingOptions`.
        folder: folder of the run; it must exist.
        lr_schedule: called with the optimizer and the number of steps; returns a scheduler of
            PyTorch (see `slide.training.lr_schedules`). With ``epochs="auto"`` it is not used: the
            rates are those of the `slide.training.plan.Plan`.
        resume: whether to continue from the checkpoint in the folder, if there is one.
        ranker: is trained after the network, and re-ranks its outputs in the last evaluation. None:
            no re-ranking. Of several processes, the first one trains it.
        group: the processes of the run, which share the rows of the network; all of them make a
            trainer with the same arguments. None: this process alone.

    Attributes:
        train_split: rows that the network learns from.
        held_split: training rows that it does not learn from, for choices: how long to train, how
            to re-rank (`slide.data.validation_split`). None: there is nothing to choose, with a
            number of epochs, without patience and without a ranker.
        every_split: both of them.
        eval_split: rows that the run is evaluated on.
        plan: how long to train, with ``epochs="auto"``; else None.
        patience: ends the run early, with ``options.patience``; else None.
        answers: labels and scores of the last evaluation; None: there was none yet.

    Raises:
        ValueError: if there are no rows to train or evaluate on, for
            ``evaluation="sampler"`` with a sampler that has no index, or if the checkpoint cannot
            be read.

    Example:
        >>> import pathlib, tempfile, slide, slide.data
        >>> from slide.training import Trainer, TrainingOptions
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> data = slide.data.synthetic(cache=folder / "cache", num_features=60, nonzeros=8,
        ...     num_labels=80, train_samples=64, test_samples=8, labels_per_row=2)
        >>> network = slide.SlideNetwork(60, [8], 80, slide.FullSampler)
        >>> parts = network, slide.RowSparseAdam(network.parameters()), slide.ActiveLoss("bce")
        >>> Trainer(*parts, data, TrainingOptions(epochs=2), folder).fit()["steps"]
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
        ranker: EnsembleRanker | None = None,
        group: Group | None = None,
    ):
        check_search(network.output.sampler, options.evaluation)
        group = group or Group.alone()
        self.network, self.ranker, self.data = network, ranker, data
        self.options, self.folder, self.counters = options, folder, Counters()
        rows, self.eval_split = choose_rows(data, options.holdout, options.seed, options.kind)
        self.train_split, self.held_split, self.every_split = rows, None, rows
        self.held_rows: HeldRows | None = None
        if options.auto or options.patience or ranker is not None:
            self.train_split, self.held_split = validation_split(rows, options.seed)
        self.batches = Batches(self.train_split, options.batch_size, options.seed)
        least = 0
        if self.held_split is not None and (options.auto or options.patience):
            kind = kind_of(rows)
            self.held_rows = HeldRows(self.train_split, self.held_split, kind)
            if options.auto:
                least = least_steps(kind, len(self.batches), options.batch_size)
        self.inverse = inverse_propensities(rows.labels, data.num_labels, *data.propensity)
        self.answers: Ranked | None = None
        self.plan, self._most_steps = None, options.most_steps(len(self.batches), least)
        self.log_every, self.recall_every = options.intervals(len(self.batches), self._most_steps)
        if options.auto:
            self.plan = Plan(len(self.batches), self._most_steps, 60 * options.max_minutes, least)
            lr_schedule = self.plan.schedule
        splits = self.train_split, self.eval_split
        facts = run_facts(network, optimizer, loss, data, splits, options)
        kept = self.plan, facts, options.keep_checkpoints
        self.checkpoint = Checkpoint(folder, network, optimizer, *kept, group)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if resume and self.checkpoint.found():
            self.counters = self.checkpoint.read()
            if self.step > self._most_steps:
                log(f"step {self.step} is past the last, {self._most_steps}: no training is left")
            spent = self.step, self.counters.train_seconds
            if late := self.plan and self.plan.apply_lower_limits(*spent):
                log(late)
        self.patience: Patience | None = None
        if options.patience and self.held_rows is not None:
            most = options.patience, len(self.batches)
            self.patience = Patience(self.checkpoint, *most, self.held_rows, self.step)
        scheduler = scheduler_at(lr_schedule, optimizer, rates, self._most_steps, self.step)
        parts = network, optimizer, loss, scheduler
        self.learner = Learner(*parts, self.counters, self.checkpoint.last, group)
        self.together = Together(group, self.step)
        self.monitor = Monitor(folder, self.step) if self.together.leads else SilentMonitor()
        self._compiled = self.counters.compile_seconds - compile_seconds()

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self.counters.step

    @property
    def total_steps(self) -> int | None:
        """Number of steps of the run; None: it is not known yet (``epochs="auto"``)."""
        return self._most_steps if self.plan is None else self.plan.total or None

    def fit(self) -> dict[str, Any]:
        """Train to the end, evaluate, write checkpoint and summary.

        Returns:
            The summary, as in ``summary.json``.

        Raises:
            RuntimeError: if it was called before.
            DivergenceError: if the loss or a weight is NaN or infinite.
            KeyboardInterrupt: after Ctrl-C or SIGTERM; the run first completes its step and writes
                a checkpoint.
            OSError: if a file cannot be written.
        """
        if self.checkpoint.closed:
            raise RuntimeError("this trainer has trained: make a new one with resume=True")
        # The processes of a run would take each other for strangers.
        shares = self.options.share_cores and self.together.group.size == 1
        watched = closing(CoreShare(None if shares else 1))
        with closing(self.checkpoint), closing(self.monitor), watched as cores:
            bars = progress_bar(self.total_steps, self.step)
            with bars as bar, noted_interrupts() as interrupt:
                self._train(bar, interrupt, cores)
            self.save()
            if self.patience is not None:
                self.patience.finish(self.network, self.counters, self.monitor)
            scores = self._final_scores(cores)
            self._note_compilation()
            run = self.data, (self.train_split, self.eval_split), self.counters
            summary = summary_of(*run, len(self.batches), scores, self.together.group)
            add_selection(summary, self.monitor.scalars(), self.network)
            summary["choices"] = list(getattr(self.ranker, "notes", []))
            if self.together.leads:
                write_summary(self.folder, summary)
        return summary

    def _train(self, bar: ProgressBar, interrupt: Interrupt, cores: CoreShare) -> None:
        options, counters, learner, scores = self.options, self.counters, self.learner, {}
        planner = self.patience
        if self.plan is not None and self.held_rows is not None:
            planner = Planner(self.plan, self.held_rows, self.together)
        first, logged, begin = self.step, replace(counters), clock()
        while not self.ended:
            step = self.step
            batch = self.batches.batch(*divmod(step, len(self.batches)))
            loss, active, hidden = learner.forward(batch)
            if _due(step + 1, self.recall_every):
                # Before the update, because the set was chosen for the present weights.
                counters.train_seconds += clock() - begin
                self.monitor.write(step + 1, learner.inspect(hidden, active))
                begin = clock()
            learner.update(loss)
            counters.train_seconds += clock() - begin
            bar.update()
            if _due(self.step, self.log_every):
                learner.settle()
                scalars = log_scalars(counters, logged, learner.rate, len(self.batches))
                self.monitor.write(self.step, scalars)
                bar.set_postfix(bar_values(scalars, scores))
                logged = replace(counters)
            if planner is not None:
                planner.look(self.network, counters, self.monitor, bar)
            if _due(self.step, options.eval_every) and not self.ended:
                scores = self.evaluate(options.eval_samples)
            end = self.together.look(self.step, counters.train_seconds, interrupt.error)
            if end is not None:
                self.save()
                raise end
            if _due(self.step, options.checkpoint_every):
                self._note_compilation()
                learner.settle()
                self.checkpoint.begin(counters)
            elif options.checkpoint_every and step == first:  # Now there are moments.
                self.checkpoint.prepare()
            self.checkpoint.check()
            cores.look()
            begin = clock()  # The time of a step includes making its batch.
        end = self.together.look(self.step, counters.train_seconds, interrupt.error, at_once=True)
        if end is not None:
            self.save()
            raise end

    @property
    def ended(self) -> bool:
        """Whether no step of training is left."""
        early = self.patience is not None and self.patience.ended(self.step)
        return early or (self.total_steps is not None and self.step >= self.total_steps)

    def _final_scores(self, cores: CoreShare) -> dict[str, float]:
        """Train the ranker, if there is one, and evaluate."""
        if self.ranker is None or self.held_split is None:
            return self.evaluate()
        scores: dict[str, float] = {}
        patient = self.together.group.patient
        with asked_by_first(self.network, patient) as network:
            if network is not None:
                self._train_ranker(network, self.ranker, self.held_split)
                cores.look()
                scores = self.evaluate(ranker=self.ranker, network=network)
        return patient.broadcast(scores)

    def _train_ranker(self, network: Any, ranker: EnsembleRanker, held: Split) -> None:
        ranker.prepare()
        train, begin = self.train_split, clock()
        log(f"re-ranker: learns from {len(train):,} rows and {len(held):,} others")
        search = self.options.evaluation
        ranker.fit(network, train, held, self.inverse, search, self.every_split)
        self.counters.ranker_seconds = clock() - begin
        for note in ranker.notes:
            log(note)

    def evaluate(
        self, samples: int = 0, ranker: EnsembleRanker | None = None, network: Any = None
    ) -> dict[str, float]:
        """Scores on the evaluation rows, also written to the log until `fit` has ended.

        Args:
            samples: number of rows to use, from the first one; 0: all.
            ranker: re-ranks the outputs; None: no re-ranking.
            network: answers in the place of the network; see `asked_by_first`. None: it answers.
        """
        begin, rows = clock(), len(self.eval_split)
        split = self.eval_split.slice(0, min(samples or rows, rows))
        network = self.network if network is None else network
        self.answers = predict_split(network, split, self.options.evaluation, ranker)
        scores = scores_of(self.answers, split, self.inverse, ranker)
        self.counters.eval_seconds += clock() - begin
        if not self.checkpoint.closed:  # Afterwards another process may go on with the run.
            for scalars in log_lines(scores, reranked=ranker is not None):
                self.monitor.write(self.step, scalars)
        return scores

    def save(self) -> None:
        """Write a checkpoint."""
        self._note_compilation()
        self.learner.settle()
        self.checkpoint.write(self.counters)

    def _note_compilation(self) -> None:
        self.counters.compile_seconds = self._compiled + compile_seconds()


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
