"""Files that a data set needs: present files are used, missing ones are fetched."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from slide.data.fetching.lock import locked

__all__ = ["Check", "Fetch", "FetchError", "check_folders", "ensure_files"]

LOCK = ".fetch.lock"

Check = Callable[[Path], None]
"""Raises ValueError (DataError) unless the files in a folder are the expected ones."""

Fetch = Callable[[Path, Check], None]
"""Puts the missing files into a folder, complete and checked; existing files stay as they are.

It raises FetchError if it cannot, and other OSErrors for a full disk and the like.
"""


class FetchError(OSError):
    """Files could not be fetched; the message says what was tried and why it failed."""


def ensure_files(
    root: Path, names: Sequence[str], fetch: Fetch | None, check: Check, hint: str
) -> None:
    """Makes sure that files are there.

    If all files are there, nothing is written, so the folder may be read-only. Missing files are
    fetched under a lock: of two processes, one waits.

    Args:
        root: folder of the files; it is made if there is something to fetch.
        names: paths of the files in ``root``.
        fetch: puts missing files there; None: the user has to do that.
        check: raises ValueError unless a folder with all files holds the right ones.
        hint: what the user can do, in sentences.

    Raises:
        FileNotFoundError: a file is missing and could not be fetched. The message says why, and
            where to put it.
        OSError: the folder cannot be written, or the disk is full.
    """
    if _missing(root, names) is None:
        return
    tried = ""
    if fetch is not None:
        try:
            _fetch_missing(root, names, fetch, check)
        except FetchError as error:
            tried = f"\n{error}\n"
    missing = _missing(root, names)
    if missing is None:
        return
    place = f"Put {_listed(names)} into the folder {root}."
    said = f"{missing} is missing" + (f", and could not be fetched:{tried}" if tried else ". ")
    raise FileNotFoundError(said + " ".join(filter(None, [hint, place])))


def check_folders(**folders: object) -> None:
    """Raises ValueError for an argument that is no path."""
    for argument, value in folders.items():
        if not isinstance(value, str | Path):
            raise ValueError(f"{argument} must be the path of a folder, not {value!r}")


def _fetch_missing(root: Path, names: Sequence[str], fetch: Fetch, check: Check) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / LOCK, f"the files in {root}"):
            if _missing(root, names) is not None:  # Another process may have fetched them.
                fetch(root, check)
    except FetchError:
        raise
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise FetchError(f"  the folder cannot be written: {error.strerror}") from error
        raise


def _missing(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if not (root / name).is_file()), None)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
