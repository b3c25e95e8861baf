"""The commands: ``train.py`` (``slide-train``) and ``python -m slide.data`` (``slide-data``)."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import hydra
import numpy as np
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from slide.config import ranks as alone
from slide.config.build import build_trainer, folder_parent
from slide.config.compose import (
    CONFIG,
    asked_for,
    combinations,
    memory_errors,
    read_config,
    readable,
    resumed,
    sweep_values,
    user_errors,
)
from slide.config.help import help_on, train_help
from slide.config.ranks import TORCHRUN, LostExit, find_rank_info
from slide.config.recipe import open_dataset
from slide.data import SparseDataset
from slide.data.describe import describe, folder_bytes
from slide.data.row_transform import old_label_ids
from slide.model.run import write_run_model
from slide.training import DivergenceError, Trainer
from slide.training.checkpoint import last_checkpoint
from slide.training.group import LostProcessError
from slide.training.selection import selection_line
from slide.utils.checks import counted, error_message, typed_key
from slide.utils.commands import VERSION_LINE
from slide.utils.figures import (
    KIND_METRICS,
    SELECTION_COLUMNS,
    figure,
    figure_columns,
    terminal_width,
    text_table,
    with_seeds,
)
from slide.utils.profiling import tell_first
from slide.utils.progress_bar import fail, log, open_streams, show
from slide.utils.resources import reset_peak_memory
from slide.utils.run_folders import label_of, resume_word
from slide.utils.signals import exit_status, raised_terminations
from slide.utils.sizes import find_conf

DATA_USAGE = """\
Fetches, reads and transforms a data set, as {train} does before it trains.

  {data} describe [dataset=choice] [dataset.key=value ...] [transform.key=value ...]
  {data} prepare  [dataset=choice] [dataset.key=value ...] [transform.key=value ...]

describe prints a table of the data set; prepare prints the folder of its arrays and their size.
The keys are the ones that {train} has: {train} --help explains them.
"""
DATA_KEYS = ("dataset", "transform", "recipe=", "seed=")
# Scores of rows of all kinds, as a run prints them.
_PRECISION = {"P@1": "p_at_1", "P@3": "p_at_3", "P@5": "p_at_5"}
_MODES = (("--run", "-r"), ("--multirun", "-m"), ("--shell-completion", "-sc"))
# Options of Hydra that choose other configurations.
_WITHOUT_EFFECT = (("--config-dir", "-cd"), ("--config-path", "-cp"), ("--config-name", "-cn"))
_WITHOUT_EFFECT += (("--experimental-rerun",),)
# Columns of the table of a sweep.
_FIGURES = {**_PRECISION, "seconds": "train_seconds", **SELECTION_COLUMNS}


@contextmanager
def _announced_compilation() -> Iterator[None]:
    """Inside of it, the first kernel that compiles is announced."""
    tell_first(lambda: log("compiling kernels, as a first run does"))
    try:
        yield
    finally:
        tell_first(None)


@_announced_compilation()
def train() -> None:
    """Trains a network; the arguments of the command line override the configuration."""
    open_streams()
    words = sys.argv[1:]
    if "--version" in words:
        show(VERSION_LINE)
        return
    if flag := next((word for word in words if word in ("-h", "--help")), None):
        asked = words[words.index(flag) + 1 :]
        with user_errors():
            show("\n".join(map(help_on, asked)) or train_help(_programs()[0]), end="")
        return
    # Values of Hydra's own options, such as job in --cfg job, are no keys.
    keys = [w for w in words if w.startswith("~") or ("=" in w and not w.startswith("-"))]
    others = [word for word in words if word not in keys]
    with _launch().one_voice():
        options = _options(others)
        shown = options.cfg or options.info or options.hydra_help or options.shell_completion
        keys = [*options.overrides, *keys]
        own = [word for word in keys if _of_hydra(word)]
        given = [word for word in keys if word not in own]
        if own and not shown:
            _check_hydra_keys(own, options.multirun)
        if options.multirun and find_rank_info().size > 1:
            fail("torchrun starts the processes of one run, and a sweep (-m) has many")
    if options.multirun:
        with user_errors():
            sweep = Sweep(given)
        if own:
            sweep.launch(own)
        else:
            sweep.run()
        sweep.finish()
    elif shown:
        if not options.shell_completion:
            with user_errors():
                combinations(given, sweeps=False)
                words = [*([] if options.hydra_help else map(readable, keys)), *others]
        sys.argv[1:] = words
        # It only shows something.
        hydra.main(version_base="1.3", config_path=str(find_conf()), config_name="train")(bool)()
    else:
        _compose_and_run(keys)


def _options(words: Sequence[str]) -> argparse.Namespace:
    """The options among words; one that would have no effect on a run ends the process."""
    usage = f"{_programs()[0]} [-m] [--cfg job] [group=choice ...] [key=value ...]"
    parser = argparse.ArgumentParser(usage=usage, add_help=False)
    parser.add_argument("overrides", nargs="*")
    for flags in (*_MODES, ("--hydra-help",), ("--resolve",)):
        parser.add_argument(*flags, action="store_true")
    for flags in (("--cfg", "-c"), ("--package", "-p"), *_WITHOUT_EFFECT):
        parser.add_argument(*flags)
    parser.add_argument("--info", "-i", nargs="?", const="all")
    try:
        options = parser.parse_args(words)
    except SystemExit:  # The parser has said which option it does not know.
        log(f"settings have no dashes: {_programs()[0]} sampler=lsh optimizer.lr=0.001")
        raise
    for name, *_ in _WITHOUT_EFFECT:
        if getattr(options, name[2:].replace("-", "_")) is not None:
            fail(
                f"{name} has no effect: settings are keys and choices, such as optimizer.lr=0.001 "
                "dataset=eurlex4k, and resume=<folder> takes those of a run"
            )
    if options.cfg is None and (options.package is not None or options.resolve):
        fail(f"--{'resolve' if options.resolve else 'package'} goes with --cfg job")
    modes = "run", "multirun", "cfg", "info", "shell_completion"
    given = [f"--{name.replace('_', '-')}" for name in modes if getattr(options, name)]
    if len(given) > 1:
        fail(f"{' and '.join(given)} do not go together")
    return options


def _check_hydra_keys(own: Sequence[str], sweeps: bool) -> None:
    """End the process if keys of Hydra would have no effect on a run, or on a sweep."""
    launched = sweeps and any("launcher" in word for word in own)
    for word in own:
        key, _, value = word.lstrip("+~").partition("=")
        if key == "hydra.run.dir" or (key.startswith("hydra.sweep.") and not launched):
            fail(f"{word} has no effect: the folder of a run is run_dir={value or '<folder>'}")
        if not sweeps:
            fail(
                f"{word} has no effect: keys of Hydra belong to sweeps, such as -m "
                "hydra/launcher=joblib seed=1,2"
            )


def _launch(of_slurm: bool = False) -> Any:
    """How a run begins and ends: `slide.config.ranks`, and of several processes what they need.

    With ``of_slurm``, processes that Hydra's launcher submitit has started are told their ranks.
    """
    slurm = of_slurm and "SUBMITIT_EXECUTOR" in os.environ
    if not slurm and any(name not in os.environ for name in TORCHRUN):
        return alone
    from slide.distributed import processes  # Here: one process needs nothing of it.

    if slurm:
        processes.note_slurm()
    return processes


def _of_hydra(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra/", "hydra."))


def _compose_and_run(
    overrides: Sequence[str], swept: Sequence[str] | None = None
) -> tuple[dict[str, Any], str]:
    """Trains to the end and prints the scores; returns the summary and the folder of the run."""
    with _launch().one_voice(), user_errors(overrides):
        composed = read_config(asked_for(overrides))
    reset_peak_memory()  # That of the runs of a sweep before.
    own = [word for word in swept or () if word.startswith("run_dir=")]
    if swept is not None and composed.run_dir is not None and not own:
        composed.run_dir = str(Path(composed.run_dir) / label_of(swept))
    launch = _launch()
    with launch.parting():
        try:
            with launch.one_voice(), raised_terminations():
                return _run(composed, overrides, swept or ())
        except KeyboardInterrupt as error:  # Where nothing is lost.
            _stop("interrupted", error)


def _run(
    composed: DictConfig, overrides: Sequence[str], swept: Sequence[str]
) -> tuple[dict[str, Any], str]:
    try:
        with user_errors(overrides):
            ranks = _launch().join_ranks(composed)
            named = Path(str(composed.run_dir)) if composed.run_dir else None
            note = ranks.note(named or folder_parent(composed), overrides)
            composed, overrides = ranks.restarted(composed, overrides, note)
            config = resumed(composed, overrides)
            trainer = build_trainer(config, overrides, swept, ranks)
            main = trainer.is_main_process
    except KeyboardInterrupt as error:
        _stop("interrupted before the first step", error)
    except LostProcessError as error:
        raise LostExit(f"error: {error_message(error)}") from error
    try:
        with memory_errors(partial(_advice, trainer)):
            summary = trainer.fit()
            noted = OmegaConf.load(trainer.folder / CONFIG) if main else {}
            write_run_model(trainer, noted and OmegaConf.to_container(noted), summary)
            if config.report and main:
                write_run_report(trainer)
        ranks.group.patient.barrier()  # Nobody leaves while the first one writes.
    except (DivergenceError, OSError) as error:
        fail(error_message(error))
    except LostProcessError as error:
        raise LostExit(f"error: {error_message(error)}; {_advice(trainer)}") from error
    except KeyboardInterrupt as error:
        _stop(f"interrupted after step {trainer.step}; {_advice(trainer)}", error)
    note.forget(trainer.folder)
    if main:
        log(f"sets      {selection_line(summary)}")
        for sentence in summary["warnings"]:
            log(f"warning   {sentence}")
        shown = (_PRECISION | KIND_METRICS).items()
        scores = "  ".join(f"{name} {summary[x]:.4f}" for name, x in shown if x in summary)
        show("  ".join([*swept, scores, str(trainer.folder)]))
    return summary, str(trainer.folder)


def write_run_report(trainer: Trainer) -> None:
    """Write ``report.html`` from the answers of the last evaluation."""
    from slide.report import Answers, write_report  # Here: a run needs it at its end.

    answers, evaluated, data = trainer.answers, trainer.eval_split, trainer.data
    assert answers is not None, "the run has not ended"
    names: dict[str, Callable[[int], str]] = {}
    labels, old = data.label_names, old_label_ids(data.steps)
    if labels is not None:
        names["label_name"] = lambda label: str(labels[label if old is None else old[label]])
    features = data.feature_names
    others = any(step.hashed_features or step.makes_bins for step in data.steps)
    if features is not None and not others:
        if any(step.standardizes for step in data.steps):
            features = features.extended(["(constant)"])
        names["feature_name"] = features.__getitem__
    if data.test_row_names is not None and evaluated is data.test:
        names["row_name"] = data.test_row_names.__getitem__
    counts = np.bincount(trainer.every_split.labels.indices, minlength=data.num_labels)
    sure = trainer.ranker is not None and trainer.ranker.objective == "p"
    rows = evaluated.labels, evaluated.features, counts
    write_report(trainer.folder, Answers(answers.ids, answers.scores, *rows, sure, **names))


def _advice(trainer: Trainer) -> str:
    there = last_checkpoint(trainer.folder) is not None
    goes_on = "goes on from the last checkpoint" if there else "begins again"
    return f"{_programs()[0]} {resume_word(trainer.folder)} {goes_on}"


def _stop(said: str, error: KeyboardInterrupt) -> NoReturn:
    log(said)
    raise Interrupted(exit_status(error))


def _programs() -> tuple[str, str]:
    """The names of the two commands; an installed package has other names than a checkout."""
    if Path(sys.argv[0]).stem in ("slide-train", "slide-data"):
        return "slide-train", "slide-data"
    return "python train.py", "python -m slide.data"


class Interrupted(SystemExit):
    """The end of a process after Ctrl-C, SIGTERM or SIGHUP; of a sweep, too."""


class Outcome(NamedTuple):
    """What came of a job; without a summary it failed, and ``said`` is why, not its folder."""

    words: list[str]
    summary: dict[str, float] | None
    said: str


class Sweep:
    """The jobs of a sweep (``-m``), each given by its overrides. One that fails does not end it."""

    def __init__(self, words: Sequence[str]):
        several = (values for values in sweep_values(words).values() if len(values) > 1)
        self.keys = [typed_key(values[0]) for values in several]
        self.jobs, self.outcomes = combinations(words), list[Outcome]()

    def _outcome(self, number: int) -> Outcome:
        """Run a job; its errors are logged."""
        overrides = self.jobs[number]
        words = [word for word in overrides if typed_key(word) in self.keys]
        log(f"job {number + 1}: {' '.join(words)}")
        try:
            return Outcome(words, *_compose_and_run(overrides, words))
        except Interrupted:
            raise
        except SystemExit as end:
            said = str(end)
        except Exception as error:  # A bug; the other jobs may still be worth their time.
            log(traceback.format_exc())
            said = f"{type(error).__name__}: {error}"
        log(said)
        return Outcome(words, None, said)

    def run(self) -> None:
        """Run the jobs one after the other."""
        try:
            with raised_terminations():  # Also between two jobs.
                for number in range(len(self.jobs)):
                    self.outcomes.append(self._outcome(number))
        except (Interrupted, KeyboardInterrupt) as error:
            if self.outcomes:
                show(self.table())
            if isinstance(error, KeyboardInterrupt):
                _stop("interrupted", error)
            raise

    def launch(self, own: Sequence[str]) -> None:
        """Let a launcher of Hydra, with keys of its ``own``, run the jobs."""
        if chosen := [word for word in own if "sweeper" in word.partition("=")[0]]:
            fail(f"{chosen[0]}: a sweep makes all combinations; hydra/launcher is taken")
        # By number: the launcher would refuse all jobs because of one that cannot be composed.
        numbers = f"+job={','.join(map(str, range(len(self.jobs))))}"
        with initialize_config_dir(str(find_conf()), version_base="1.3", job_name="train"):
            composing = GlobalHydra.instance().hydra
            assert composing is not None
            try:
                (jobs,) = composing.multirun("train", self._launched, [*own, numbers])
            except HydraException as error:
                fail(" ".join(str(error).split()))
        self.outcomes = [job.return_value for job in jobs]

    def _launched(self, config: DictConfig) -> Outcome:
        """Run a job where a launcher has it run, such as another process or machine."""
        _launch(of_slurm=True)
        return self._outcome(config.job)

    def finish(self) -> None:
        """Print the table; ends the process with a message if a job failed."""
        show(self.table())
        failed = sum(outcome.summary is None for outcome in self.outcomes)
        if failed:
            fail(f"{failed} of {counted(len(self.outcomes), 'job')} failed")

    def _by_seeds(self) -> list[list[Outcome]]:
        """Finished jobs that differ in ``seed`` alone, together; each other job alone."""
        found: dict[Any, list[Outcome]] = {}
        for number, outcome in enumerate(self.outcomes):
            others = [word for word in outcome.words if typed_key(word) != "seed"]
            joined = outcome.summary is not None and "seed" in self.keys
            found.setdefault(tuple(others) if joined else number, []).append(outcome)
        return list(found.values())

    def table(self) -> str:
        """A line for each job, or those of several seeds: settings, scores, look-ups, folder."""
        groups, columns = self._by_seeds(), dict[str, list[str]]()
        for key in self.keys:
            told = ([word for each in group for word in each.words] for group in groups)
            given = ([w.partition("=")[2] for w in words if typed_key(w) == key] for words in told)
            columns[key] = [", ".join(dict.fromkeys(values)) for values in given]
        summaries = [[each.summary or {} for each in group] for group in groups]
        for head, column in figure_columns(summaries, _FIGURES).items():
            columns[head] = [figure(values, _FIGURES[head]) for values in column]
        columns["folder"] = [with_seeds(group[0].said, len(group)) for group in groups]
        cells = [[head, *rest] for head, rest in columns.items()]
        return text_table(cells, terminal_width(), len(self.keys))


@_announced_compilation()
def data() -> None:
    """The data command: describes or prepares a data set; errors end the process."""
    open_streams()
    words = sys.argv[1:]
    if "--version" in words:
        show(VERSION_LINE)
        return
    if not words or {"-h", "--help"} & set(words):
        train, own = _programs()
        show(DATA_USAGE.format(train=train, data=own), end="")
        return
    command, *overrides = words
    if command not in DATA_COMMANDS:
        fail(f"the command must be {' or '.join(DATA_COMMANDS)}, not {command!r}")
    others = [word for word in overrides if not word.lstrip("+~").startswith(DATA_KEYS)]
    if others:
        fail(
            f"{others[0]}: {command} takes keys of dataset and transform, recipe and seed, "
            "such as dataset=table dataset.path=reviews.csv"
        )
    try:
        with raised_terminations(), user_errors(overrides):
            show(DATA_COMMANDS[command](open_dataset(read_config(overrides))), end="")
    except KeyboardInterrupt as error:
        _stop("interrupted", error)


DATA_COMMANDS: dict[str, Callable[[SparseDataset], str]] = {
    "describe": describe,
    "prepare": lambda data: f"{data.folder}  {folder_bytes(data.folder) / 1e6:,.1f} MB\n",
}
