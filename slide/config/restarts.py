"""Processes that ``torchrun`` starts again: how they find the folder of their run."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from slide.config.ranks import Ranks
from slide.files import write_json


def restarts() -> int:
    """How often ``torchrun`` has started these processes again (``--max-restarts``)."""
    said = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(said) if said.isdecimal() else 0


def note_folder(ranks: Ranks, parent: Path, folder: Path, words: Sequence[str]) -> None:
    """Note the folder of a run, where processes that ``torchrun`` starts again look for it."""
    if ranks.group.size > 1 and ranks.leads:
        write_json(_note(parent), {"folder": str(folder), "words": list(words)})


def noted_folder(ranks: Ranks, parent: Path, words: Sequence[str]) -> Path | None:
    """The folder that `note_folder` noted before these processes were started again; or None.

    That of a run with other words is not this one's.
    """
    path = _note(parent)
    found = json.loads(path.read_text()) if ranks.leads and path.exists() else {}
    said = ranks.group.broadcast(found.get("folder") if found.get("words") == list(words) else None)
    return None if said is None else Path(said)


def forget_folder(ranks: Ranks, parent: Path) -> None:
    """Remove what `note_folder` wrote: the run has ended, or is a new one."""
    if ranks.group.size > 1 and ranks.leads:
        _note(parent).unlink(missing_ok=True)


def _note(parent: Path) -> Path:
    return parent / f".torchrun-{os.environ.get('TORCHELASTIC_RUN_ID', 'none')}"
