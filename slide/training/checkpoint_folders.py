"""The checkpoints of a run: one folder each, numbered; the newest ones are kept."""

import re
import shutil
from pathlib import Path

from slide.utils.tensor_folder import FolderKind

# The folder of checkpoints in the folder of a run.
CHECKPOINTS = "checkpoints"
CHECKPOINT = FolderKind("checkpoint", "checkpoint.json", format=1)
# Numbers rise with each checkpoint; steps need not, if a folder is used again.
_NAME, _UNFINISHED = re.compile(r"(\d+)-step-\d+"), ".tmp"
# What slide wrote before there were folders of checkpoints.
_OLD = "checkpoint.pt"


def find_checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints in the folder of a run, the newest one last."""
    found = [path for path in (run / CHECKPOINTS).glob("*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_number)


def last_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint in the folder of a run; None: there is none."""
    found = find_checkpoints(run)
    return found[-1] if found else None


def step_of(folder: Path) -> int:
    """The number of steps after which a checkpoint was written, as its name says."""
    return int(folder.name.rpartition("-")[2])


def check_old_checkpoint(run: Path) -> None:
    """Raise ValueError if a run has only a checkpoint of an earlier format."""
    if (run / _OLD).exists() and not find_checkpoints(run):
        raise ValueError(
            f"{run / _OLD} is a checkpoint of an earlier slide, which this one does not read: go "
            "on with that one, or start a new run"
        )


def next_checkpoint(run: Path, step: int) -> Path:
    """Where the next checkpoint belongs, which is one after ``step`` steps."""
    last = last_checkpoint(run)
    return run / CHECKPOINTS / f"{_number(last) + 1 if last else 1}-step-{step}"


def unfinished(folder: Path) -> Path:
    """Where a checkpoint is written before it gets its name ``folder``."""
    return folder.with_name(folder.name + _UNFINISHED)


def clear_unfinished(run: Path) -> None:
    """Remove what killed processes have left."""
    for path in (run / CHECKPOINTS).glob(f"*{_UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)


def remove_older(run: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ``keep``."""
    for path in find_checkpoints(run)[:-keep]:
        # Under another name first: what a crash leaves is no checkpoint without its files.
        path.rename(unfinished(path))
        shutil.rmtree(unfinished(path), ignore_errors=True)


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])
