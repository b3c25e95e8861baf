"""Folders of runs: made, held by one process, and seen by all machines."""

import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatch
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from slide.utils.files import temporary_for

RUN_LOCK = "run.lock"
# What a new run must not find in its folder: that of a run, and last that of a saved model.
RUN_MARKS = ("config.yaml", "checkpoints", "model.json")
# What else runs and models keep in their folders.
_KEPT = (*RUN_MARKS, RUN_LOCK, "best", "new_files", "summary.json", "report.html")
_KEPT_PATTERNS = ("README.md", "metrics.*", "*.safetensors", "events.out.tfevents*")
# Where in its folder a run writes files beside those that they replace.
_PLACES = ("", "checkpoints/*/", "best/*/")
# A lock that nothing refers to is released.
_HELD: set[FileLock] = set()
# Seconds after which a file that one machine wrote is seen by all others: network file systems may
# remember for a minute that it was missing.
SEEN_AFTER = 90.0
# Most characters of the part of a folder's name about settings.
LABEL_LENGTH = 100
# Levels of a configuration: files of ``conf/`` have fewer than ten. PyYAML reads brackets within
# brackets in time that grows with the square of their number.
_DEEPEST = 50
# Characters of a configuration: runs write 10,000. PyYAML reads a million in half a minute.
_LONGEST = 10**6
# Characters of a line of a log, which has a few hundred; longer ones are no lines of it.
_LONGEST_LINE = 1 << 20


def comes_in_sight(path: Path) -> bool:
    """Wait for a file that another machine has written; returns whether it is there."""
    end = time.monotonic() + SEEN_AFTER
    while not (there := path.exists()) and time.monotonic() < end:
        time.sleep(0.2)
        for folder in path.parents[:3]:  # Some file systems read again only then.
            with suppress(OSError):
                os.listdir(folder)
    return there


def check_run_dir(run_dir: object) -> None:
    """Raise ValueError if ``run_dir`` cannot be the folder of a new run."""
    if run_dir is None:
        return
    folder = Path(str(run_dir))
    if run_dir == "" or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"run_dir must be the path of a folder, not {run_dir!r}")
    found = [mark for mark in RUN_MARKS if (folder / mark).exists()]
    if found == [RUN_MARKS[-1]]:
        raise ValueError(f"run_dir={folder} holds a model: name a new folder")
    if found:
        raise ValueError(f"run_dir={folder} holds a run: {resume_word(folder)} goes on with it")


def check_writable(folder: Path) -> None:
    """Raise OSError if nothing can be written in a folder, or in the one where it is to be made."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if there.is_dir() and not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"the run would write into {folder}, and {there} cannot be written")


def is_of_folder(path: Path, folder: Path) -> bool:
    """Whether a resolved path is, or would be, a file that a run or a model keeps in its folder."""
    if not path.is_relative_to(folder):
        return False
    first = path.relative_to(folder).parts[:1]
    return any(
        name in _KEPT or any(fnmatch(name, each) for each in _KEPT_PATTERNS) for name in first
    )


def check_links(folder: Path) -> None:
    """Raise ValueError if a folder has a link in it: a run writes into what it finds there."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(
                f"{path} is no file and no folder: a run that is resumed follows no links, so put "
                "what it stands for in its place"
            )


def check_plain_yaml(text: str) -> None:
    """Raise YAMLError for references, which may stand for very many values, tags, many levels."""
    if len(text) > _LONGEST:
        raise yaml.YAMLError(f"it has more than {_LONGEST:,} characters")
    depth = 0
    for event in yaml.parse(text):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("it refers to other values")
        if getattr(event, "tag", None) is not None:
            raise yaml.YAMLError(f"it has a tag, {event.tag}")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"it has more than {_DEEPEST} levels")


def read_log(path: Path) -> list[dict[str, float]]:
    """The lines of a log: ``step``, and scalars by name; one that is cut off, or none, is left out.

    Also of a run from elsewhere: the names and numbers are such that TensorBoard takes them.
    """
    found: list[dict[str, float]] = []
    if not path.is_file():
        return found
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in iter(partial(file.readline, _LONGEST_LINE), ""):
            if '"step"' not in line:  # To parse millions of empty lines would take a minute.
                continue
            try:
                scalars = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(scalars, dict) and type(scalars.get("step")) is int:
                found += [scalars] if all(map(_is_scalar, scalars, scalars.values())) else []
    return found


def _is_scalar(name: str, value: Any) -> bool:
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    return is_number and name.isprintable()


def resume_word(folder: Path) -> str:
    """What goes on with a run, as a word of a command line; the shell gets it quoted if need be."""
    return shlex.quote(f"resume={folder}")


def label_of(words: Sequence[str]) -> str:
    """The part of a folder's name about the settings of a run; a digest ends a long one."""
    parts = (word.partition("=") for word in words)
    short = ",".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in parts)
    label = re.sub(r"[^\w.=,+-]+", "_", short)
    if len(label) <= LABEL_LENGTH:
        return label
    digest = hashlib.sha256(short.encode()).hexdigest()[:8]
    return f"{label[: LABEL_LENGTH - len(digest) - 1]}_{digest}"


def make_run_folder(run_dir: object, parent: Path, label: str = "") -> Path:
    """Make the folder ``run_dir``; None makes a new folder in ``parent``, named by the time."""
    if run_dir is not None:
        folder = Path(str(run_dir))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"run_dir={folder} cannot be made: {error.strerror}") from error
        return folder
    stamp = parent / "_".join(filter(None, [time.strftime("%Y-%m-%d_%H-%M-%S"), label]))
    for number in count():
        folder = Path(f"{stamp}_{number}") if number else stamp
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:  # Another run started in the same second.
            continue
    raise AssertionError("count() does not end")


def hold_folder(folder: Path) -> None:
    """Keep the folder of a run for this process until it ends, or until `release_folder`.

    Temporary files of the run that killed processes have left in it are removed.
    """
    lock = _lock_of(folder)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(f"another process is running in {folder}: wait until it ends") from None
    except OSError:  # A file system without locks, or one where nothing can be written.
        return
    if lock in _HELD:
        return
    _HELD.add(lock)
    for place in _PLACES:
        for path in folder.glob(f"{place}*.tmp"):
            whole = temporary_for(path)
            if whole is not None and is_of_folder(whole, folder):
                with suppress(OSError):
                    path.unlink()


def release_folder(folder: Path) -> None:
    """Take back one `hold_folder`; nothing happens if the folder is not held."""
    lock = _lock_of(folder)
    lock.release()
    if not lock.is_locked:
        _HELD.discard(lock)


def discard_folder(folder: Path) -> None:
    """Remove the folder of a run that could not begin; what else is in it stays."""
    release_folder(folder)
    with suppress(OSError):  # An error here would hide why the run could not begin.
        (folder / RUN_LOCK).unlink(missing_ok=True)
        folder.rmdir()


def _lock_of(folder: Path) -> FileLock:
    """One for each folder and process: several runs of one process, one after the other."""
    return FileLock(folder / RUN_LOCK, is_singleton=True, fallback_to_soft=False)
