"""The commands: ``train.py`` (``slide-train``) and ``python -m slide.data`` (``slide-data``)."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from slide.config.announce import announced_compilation
from slide.config.build import build_trainer, folder_parent, open_dataset
from slide.config.compose import (
    check_overrides,
    find_conf,
    memory_errors,
    read_config,
    readable,
    user_errors,
)
from slide.config.help import train_help
from slide.config.outputs import write_run_model, write_run_report
from slide.config.ranks import LostExit, join_ranks, note_slurm, one_voice, parting
from slide.config.restarts import FolderNote
from slide.config.resume import asked_for, restarted, resumed
from slide.config.sweep import Interrupted, Sweep, label_of
from slide.data import SparseDataset
from slide.data.describe import describe, folder_bytes
from slide.distributed.group import LostProcessError
from slide.distributed.launch import find_place
from slide.training import DivergenceError, Trainer
from slide.training.checkpoint_files import last_checkpoint
from slide.training.coordination import exit_status, raised_terminations
from slide.training.selection import selection_line
from slide.utils import checks
from slide.utils.progress_bar import log
from slide.utils.run_folders import resume_word

DATA_USAGE = """\
Fetches, reads and transforms a data set, as {train} does before it trains.

  {data} describe [dataset=choice] [dataset.key=value ...] [transform.key=value ...]
  {data} prepare  [dataset=choice] [dataset.key=value ...] [transform.key=value ...]

describe prints a table of the data set; prepare prints the folder of its arrays and their size.
The keys are those of {train}: {train} --help explains them.
"""

# Keys that a command line may call by the letters of the papers.
_LETTERS = {"hash.K": "hash.hashes_per_table", "hash.L": "hash.num_tables"}


@announced_compilation()
def train() -> None:
    """Trains a network; the arguments of the command line override the configuration."""
    words = [full_key(word) for word in sys.argv[1:]]
    if {"-h", "--help"} & set(words):
        print(train_help(_programs()[0]), end="")
    elif any(word.startswith("-") for word in words):
        # Hydra's own options, such as --cfg job and --multirun. It takes no keys between them.
        keys = [w for w in words if w.startswith("~") or ("=" in w and not w.startswith("-"))]
        with one_voice(), user_errors():
            check_overrides([word for word in keys if "=" in word])
            others = [word for word in words if word not in keys]
            words = [readable(word, _is_sweep(others)) for word in keys] + others
        sys.argv[1:] = words
        run_by_hydra(words)
    else:
        with one_voice(), user_errors(words):
            config = read_config(asked_for(words))
        run_job(config, words)


def full_key(word: str) -> str:
    """A word of a command line; the key of an override in full, if it is a letter of the papers.

    Example:
        >>> from slide.config.command import full_key
        >>> full_key("hash.K=8"), full_key("hash.L=16,50"), full_key("seed=1")
        ('hash.hashes_per_table=8', 'hash.num_tables=16,50', 'seed=1')
    """
    key, equals, value = word.partition("=")
    return f"{_LETTERS.get(key, key)}{equals}{value}"


def run_by_hydra(words: Sequence[str]) -> None:
    """Does what an option of Hydra asks for; with ``--multirun`` (``-m``), runs a sweep."""
    if find_place().size > 1 and _is_sweep(words):
        with one_voice():
            sys.exit("error: torchrun starts the processes of one run, and a sweep (-m) has many")
    main = hydra.main(version_base="1.3", config_path=str(find_conf()), config_name="train")
    sweep: Sweep | None = None

    def job(config: DictConfig) -> None:
        nonlocal sweep
        note_slurm()
        now = HydraConfig.get()
        if now.mode != RunMode.MULTIRUN:
            run_job(config, now.overrides.task)
            return
        overrides, sweep = list(now.overrides.task), sweep or Sweep(words)
        sweep.run(overrides, partial(run_job, config, overrides, sweep.words_of(overrides)))

    main(job)()
    if sweep is not None:
        sweep.finish()


def _is_sweep(words: Sequence[str]) -> bool:
    """Whether a command line asks for a sweep."""
    return bool({"-m", "--multirun"} & set(words))


def run_job(
    composed: DictConfig, overrides: Sequence[str], swept: Sequence[str] | None = None
) -> tuple[dict[str, Any], str]:
    """Trains to the end and prints the scores; ends the process with a message after an error.

    The exit status is 130 after Ctrl-C, 143 after SIGTERM, and 1 after an error.

    Args:
        composed: the configuration of ``overrides``.
        overrides: each is ``group=choice`` or ``key=value``.
        swept: of a sweep, the overrides that differ from job to job; they are in the name of the
            folder, and stand before the scores.

    Returns:
        The summary and the folder of the run.
    """
    own = [word for word in swept or () if word.startswith("run_dir=")]
    if swept is not None and composed.run_dir is not None and not own:
        composed.run_dir = str(Path(composed.run_dir) / label_of(swept))
    with parting():
        try:
            with one_voice(), raised_terminations():
                return _run(composed, overrides, swept or ())
        except KeyboardInterrupt as error:  # Where nothing is lost.
            _stop("interrupted", error)


def _run(
    composed: DictConfig, overrides: Sequence[str], swept: Sequence[str]
) -> tuple[dict[str, Any], str]:
    try:
        with user_errors(overrides):
            ranks = join_ranks(composed)
            named = Path(str(composed.run_dir)) if composed.run_dir else None
            note = FolderNote(ranks, named or folder_parent(composed), overrides)
            composed, overrides = restarted(ranks, composed, overrides, note)
            given = {checks.override_key(word) for word in overrides}
            config = resumed(composed, overrides)
            trainer = build_trainer(config, given, label_of(swept), ranks, note.write)
    except KeyboardInterrupt as error:
        _stop("interrupted before the first step", error)
    except LostProcessError as error:
        raise LostExit(f"error: {error}") from error
    try:
        with memory_errors(partial(_advice, trainer)):
            summary = trainer.fit()
            write_run_model(trainer)
            if config.report and ranks.leads:
                write_run_report(trainer)
        ranks.group.patient.barrier()  # Nobody leaves while the first one writes.
    except (DivergenceError, OSError) as error:
        sys.exit(f"error: {checks.error_message(error)}")
    except LostProcessError as error:
        raise LostExit(f"error: {error}; {_advice(trainer)}") from error
    except KeyboardInterrupt as error:
        _stop(f"interrupted after step {trainer.step}; {_advice(trainer)}", error)
    note.forget(trainer.folder)
    if ranks.leads:
        log(f"sets      {selection_line(summary)}")
        for sentence in summary["warnings"]:
            log(f"warning   {sentence}")
        scores = "  ".join(f"P@{k} {summary[f'p_at_{k}']:.4f}" for k in (1, 3, 5))
        print(*swept, f"{scores}  {trainer.folder}", sep="  ")
    return summary, str(trainer.folder)


def _advice(trainer: Trainer) -> str:
    """How a run that has not ended goes on."""
    there = last_checkpoint(trainer.folder) is not None
    goes_on = "goes on from the last checkpoint" if there else "begins again"
    return f"{_programs()[0]} {resume_word(trainer.folder)} {goes_on}"


@announced_compilation()
def data() -> None:
    """The data command: describes or prepares a data set; errors end the process."""
    words = sys.argv[1:]
    if not words or {"-h", "--help"} & set(words):
        print(data_usage(), end="")
        return
    command, *overrides = words
    if command not in DATA_COMMANDS:
        sys.exit(f"error: the command must be {' or '.join(DATA_COMMANDS)}, not {command!r}")
    others = [word for word in overrides if not word.lstrip("+~").startswith(DATA_KEYS)]
    if others:
        sys.exit(
            f"error: {others[0]}: {command} takes keys of dataset and transform, recipe and seed"
        )
    try:
        with user_errors(overrides):
            print(DATA_COMMANDS[command](open_dataset(read_config(overrides))), end="")
    except KeyboardInterrupt as error:
        _stop("interrupted", error)


def data_usage() -> str:
    """The usage text of the data command."""
    train, data = _programs()
    return DATA_USAGE.format(train=train, data=data)


def show_place(data: SparseDataset) -> str:
    """Where the arrays of a data set are, and how large they are."""
    assert data.folder is not None
    return f"{data.folder}  {folder_bytes(data.folder) / 1e6:,.1f} MB\n"


DATA_COMMANDS: dict[str, Callable[[SparseDataset], str]] = {
    "describe": describe,
    "prepare": show_place,
}
DATA_KEYS = ("dataset", "transform", "recipe=", "seed=")


def _stop(said: str, error: KeyboardInterrupt) -> NoReturn:
    log(said)
    raise Interrupted(exit_status(error))


def _programs() -> tuple[str, str]:
    """The names of the two commands; an installed package has other names than a checkout."""
    if Path(sys.argv[0]).stem in ("slide-train", "slide-data"):
        return "slide-train", "slide-data"
    return "python train.py", "python -m slide.data"
