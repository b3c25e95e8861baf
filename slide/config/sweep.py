"""Runs of a sweep (``-m``), one after the other: what each one had, and what came of it."""

import hashlib
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser

from slide.report.text_tables import SELECTION_COLUMNS, figure_columns, text_table
from slide.utils.checks import override_key
from slide.utils.progress_bar import log

_FIGURES = {
    **{"P@1": "p_at_1", "P@3": "p_at_3", "P@5": "p_at_5", "seconds": "train_seconds"},
    **SELECTION_COLUMNS,
}
# Most characters of the part of a folder's name that says what was set.
LABEL_LENGTH = 100


class Interrupted(SystemExit):
    """The end of a process after Ctrl-C or SIGTERM; of a sweep, too."""


class Outcome(NamedTuple):
    """What came of a job.

    Attributes:
        words: its overrides that differ from job to job.
        summary: of its run; None: it failed.
        said: the folder of the run, or why it failed.
    """

    words: list[str]
    summary: dict[str, float] | None
    said: str


class Sweep:
    """The jobs of a sweep. One that fails does not end it.

    Args:
        words: arguments of the command line.

    Example:
        >>> from slide.config.sweep import Sweep
        >>> sweep = Sweep(["-m", "optimizer.lr=0.1,0.2", "seed=3"])
        >>> sweep.run(["optimizer.lr=0.1", "seed=3"], lambda: ({"p_at_1": 0.5}, "results/a"))
        >>> print(sweep.table())
        optimizer.lr  P@1     folder
        0.1           0.5000  results/a
    """

    def __init__(self, words: Sequence[str]):
        self.keys = swept_keys(words)
        self.outcomes: list[Outcome] = []

    def words_of(self, overrides: Sequence[str]) -> list[str]:
        """The overrides of a job that differ from job to job."""
        return [word for word in overrides if override_key(word) in self.keys]

    def run(self, overrides: Sequence[str], job: Callable[[], tuple[dict, str]]) -> None:
        """Run a job and take down what comes of it.

        Args:
            overrides: all overrides of the job.
            job: returns the summary and the folder of its run.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM.
        """
        words = self.words_of(overrides)
        log(f"job {len(self.outcomes) + 1}: {' '.join(words)}")
        try:
            summary, folder = job()
            self.outcomes.append(Outcome(words, summary, folder))
        except Interrupted:
            if self.outcomes:
                print(self.table())
            raise
        except SystemExit as end:
            self._note_failure(words, str(end))
        except Exception as error:  # A bug; the other jobs may still be worth their time.
            traceback.print_exc()
            self._note_failure(words, f"{type(error).__name__}: {error}")

    def finish(self) -> None:
        """Print the table; ends the process with a message if a job failed."""
        print(self.table())
        failed = sum(outcome.summary is None for outcome in self.outcomes)
        if failed:
            sys.exit(f"error: {failed} of {len(self.outcomes)} jobs failed")

    def table(self) -> str:
        """A line for each job: its settings, scores, what its look-ups found, and its folder."""
        given = [
            {override_key(word): word.partition("=")[2] for word in outcome.words}
            for outcome in self.outcomes
        ]
        columns = {key: [values.get(key, "") for values in given] for key in self.keys}
        columns |= figure_columns([each.summary or {} for each in self.outcomes], _FIGURES)
        columns["folder"] = [outcome.said for outcome in self.outcomes]
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        return text_table(list(columns), rows)

    def _note_failure(self, words: list[str], said: str) -> None:
        log(said)
        self.outcomes.append(Outcome(words, None, said))


def swept_keys(words: Sequence[str]) -> list[str]:
    """The keys that a command line gives several values."""
    given = [word for word in words if not word.startswith("-")]
    parsed = OverridesParser.create().parse_overrides(given)
    return [each.key_or_group for each in parsed if each.is_sweep_override()]


def label_of(words: Sequence[str]) -> str:
    """A part of a folder's name that says which settings a run has.

    One of more than `LABEL_LENGTH` characters is cut, and ends with a digest of all settings.

    Example:
        >>> from slide.config.sweep import label_of
        >>> label_of(["optimizer.lr=0.1", "network.hidden=[64,32]"])
        'lr=0.1,hidden=_64,32_'
    """
    parts = (word.partition("=") for word in words)
    short = ",".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in parts)
    label = re.sub(r"[^\w.=,+-]+", "_", short)
    if len(label) <= LABEL_LENGTH:
        return label
    digest = hashlib.sha256(short.encode()).hexdigest()[:8]
    return f"{label[: LABEL_LENGTH - len(digest) - 1]}_{digest}"
