"""Processes that ``torchrun`` starts again: how they find the folder of their run."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from slide.config.ranks import OWN, Ranks
from slide.utils.checks import override_key
from slide.utils.files import write_json


def restarts() -> int:
    """How often ``torchrun`` has started these processes again (``--max-restarts``)."""
    said = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(said) if said.isdecimal() else 0


class FolderNote:
    """A file that says where the folder of a run is, to processes that are started again.

    Its name is that of one run: a digest of the words, of what ``torchrun`` calls the run, and of
    the place where the processes meet, as far as ``torchrun`` says it.

    Args:
        ranks: the processes of the run. A single one leaves no note.
        place: folder of the file: the folder of the run itself if a user names it; else that in
            which it is made.
        words: of the command line.
    """

    def __init__(self, ranks: Ranks, place: Path, words: Sequence[str]):
        self.ranks = ranks
        told = [word for word in words if override_key(word) not in OWN]
        of_run = json.dumps([told, *_run_names()]).encode()
        self.path = place / f".torchrun-{hashlib.sha256(of_run).hexdigest()[:16]}"

    def write(self, folder: Path) -> None:
        """Note the folder of the run; the first process does it."""
        if self.ranks.group.size > 1 and self.ranks.leads:
            write_json(self.path, {"folder": str(folder)})

    def found(self) -> Path | None:
        """The folder that was noted before these processes were started again, or None."""
        said = self.ranks.group.broadcast(self._said() if self.ranks.leads else None)
        return None if said is None else Path(said)

    def forget(self, folder: Path | None = None) -> None:
        """Remove the note, because the run has ended.

        Args:
            folder: a note of another folder stays. None: any is removed, because the run is new.
        """
        if self.ranks.group.size > 1 and self.ranks.leads:
            said = self._said()
            if said is not None and (folder is None or Path(said) == folder):
                self.path.unlink(missing_ok=True)

    def _said(self) -> str | None:
        return json.loads(self.path.read_text())["folder"] if self.path.exists() else None


def _run_names() -> tuple[str, ...]:
    """What ``torchrun`` tells the processes of one run, also when it starts them again."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    # Without --rdzv-id all runs have one name. With a store of its own, torchrun keeps the port.
    if name == "none" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return name, os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return (name,)
