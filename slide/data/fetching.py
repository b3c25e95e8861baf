"""Files of a data set: present files are used, missing ones are fetched from mirrors."""

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout
from requests import exceptions

from slide.data.archives import MAX_BYTES, ensure_space, unpack
from slide.data.row_files import copy_numbered_rows
from slide.runtime import VERSION
from slide.utils import checks
from slide.utils.files import pieces
from slide.utils.progress_bar import ProgressBar, log

LOCK = ".fetch.lock"

# Raises ValueError (DataError) unless the files in a folder are the expected ones.
Check = Callable[[Path], None]
# Puts the missing files into a folder, complete and checked; existing files stay as they are. It
# raises FetchError if it cannot, and other OSErrors for a full disk and the like.
Fetch = Callable[[Path, Check], None]

# A transfer ends after 4 connections in a row that bring nothing.
TRIES = 4
# Seconds before the next connection, for each failure.
PAUSE = 1.0
# Statuses of servers that may answer after some seconds.
BUSY = (500, 502, 503, 504)
# Seconds to wait for a connection, and for the next bytes.
TIMEOUTS = 10.0, 60.0
# How a page begins that a server sends in place of a file, and how much of it is read.
PAGE_STARTS = (b"<!doctype html", b"<html")
PAGE_BYTES = 1 << 20
# What gdown says of a server that does not send a part, and of a connection that was cut, and
# requests of one that brings nothing more.
_NO_PARTS, _CUT, _STALLED = "honor the requested byte range", "is incomplete", "Read timed out"

DOWNLOAD_FOLDER = ".download"
# Where selected rows come from: a file of all rows, and a file of row numbers.
ROWS = ("member", "rows")
DIGITS = {"sha256": 64, "sha1": 40, "git-sha1": 40, "md5": 32}


class FetchError(OSError):
    """Files could not be fetched; the message says what was tried and why it failed."""


def ensure_files(
    root: Path, names: Sequence[str], fetch: Fetch | None, check: Check, hint: str
) -> None:
    """Fetches missing files into ``root``, under a lock; FileNotFoundError says what was tried."""

    def missing() -> Path | None:
        return next((root / name for name in names if not (root / name).is_file()), None)

    if missing() is None:
        return
    tried = ""
    if fetch is not None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with locked(root / LOCK, f"the files in {root}"):
                if missing() is not None:  # Another process may have fetched them.
                    fetch(root, check)
        except FetchError as error:
            tried = f"\n{error}\n"
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            tried = f"\n  the folder cannot be written: {error.strerror}\n"
    if (lacking := missing()) is None:
        return
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    place = root if root.name else root.absolute()  # The folder "." would end in two periods.
    said = f"{lacking} is missing" + (f", and could not be fetched:{tried}" if tried else ". ")
    raise FileNotFoundError(
        said + " ".join(filter(None, [hint, f"Put {listed} into the folder {place}."]))
    )


def check_folders(**folders: object) -> None:
    """Raises ValueError for an argument that is no path."""
    for argument, value in folders.items():
        if not isinstance(value, str | Path):
            raise ValueError(f"{argument} must be the path of a folder, not {value!r}")
        checks.encodable(argument, value)


@contextmanager
def locked(path: Path, what: str) -> Iterator[bool]:
    """Waits for the lock of a file, which the system releases if its process is killed."""
    path.open("ab").close()  # Errors of the folder are raised here, and errors of its locks below.
    # A soft lock is a file that stays after a crash: no lock at all is better.
    lock, held = FileLock(path, fallback_to_soft=False), True
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            log(f"waiting for another process that prepares {what}")
            lock.acquire()
    except OSError:
        held = False
    try:
        yield held
    finally:
        if held:
            lock.release()


def transfer(url: str, path: Path, *, size: int | None = None) -> bool:
    """Fetch a file, or go on with a part of it, while connections bring more.

    Parts stay beside ``path`` until the file is whole. Returns whether it went on with one.
    """
    import gdown  # Imported here: it takes long.

    # A malformed address is a ValueError, and a header that gdown misses a KeyError.
    failed = exceptions.RequestException, gdown.exceptions.DownloadError, ValueError, KeyError
    most, failures, resumed, whole = _length(path), 0, bool(_parts(path)), False
    bar = ProgressBar(unit="B", unit_scale=True, desc=_file_name(url), initial=most)

    def check(received: int, total: int | None) -> None:
        found = max(received, total or 0)
        if found > MAX_BYTES:
            raise FetchError(f"has {found} bytes, more than {MAX_BYTES}")
        if size is not None and (found > size or total not in (None, size)):
            raise FetchError(f"has {found} bytes, not {size}")
        if bar.total is None and total is not None:
            ensure_space(path.parent, total - received, "the file")
        bar.total = total
        bar.update(received - bar.n)

    with bar:
        while not path.exists():
            try:
                gdown.download(
                    url,
                    str(path),
                    quiet=True,
                    use_cookies=False,
                    user_agent=f"slide/{VERSION}",
                    resume=True,
                    timeout=TIMEOUTS,
                    progress=check,
                )
            except FetchError:
                _forget(path)
                raise
            except failed as error:
                found, resumed = _length(path), True
                if _NO_PARTS in str(error):  # The server sends files as a whole.
                    whole = True
                else:
                    failures = 0 if found > most else failures + 1
                    if failures == TRIES or not _may_pass(error, found > 0):
                        raise FetchError(_reason(error)) from error
                most = max(most, found)
                if whole:
                    _forget(path)
                time.sleep(PAUSE * failures)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
                    kept = _length(path)
                    said = f"no space left after {kept} bytes, which the next call goes on with"
                    raise OSError(error.errno, said, str(path)) from error
                raise
    _check_content(path, size)
    return resumed


def _may_pass(error: Exception, begun: bool) -> bool:
    """Whether the next connection may bring more."""
    response = getattr(error, "response", None)
    if response is not None:
        return response.status_code in BUSY
    if isinstance(error, exceptions.SSLError | exceptions.ProxyError):
        return False
    if isinstance(error, exceptions.ConnectionError | exceptions.Timeout):
        # In the body of an answer, requests calls it a ConnectionError that no bytes come.
        stalled = not isinstance(error, exceptions.ReadTimeout) and _STALLED in str(error)
        return begun or stalled
    return _CUT in str(error)


def _check_content(path: Path, size: int | None) -> None:
    found = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(PAGE_BYTES)
    if begin.lstrip()[:16].lower().startswith(PAGE_STARTS):
        page = begin.decode("utf-8", "replace")
        title = re.search(r"<title[^>]*>(.*?)</title>", page, re.DOTALL | re.IGNORECASE)
        named = f" ('{' '.join(title[1].split())[:80]}')" if title else ""
        wrong = f"answers a web page{named} instead of the file"
    elif size not in (None, found):
        wrong = f"has {found} bytes, not {size}"
    else:
        return
    _forget(path)
    raise FetchError(wrong)


def _reason(error: BaseException) -> str:
    if (response := getattr(error, "response", None)) is not None:
        return f"answers {response.status_code} {response.reason}"
    if isinstance(error, exceptions.ConnectTimeout):
        return f"no connection within {TIMEOUTS[0]:g} s"
    if isinstance(error, exceptions.ReadTimeout) or _STALLED in str(error):
        return f"no answer for {TIMEOUTS[1]:g} s"
    if isinstance(error, exceptions.RequestException):
        inner = error.args[0] if error.args else error
        inner = getattr(inner, "reason", inner)  # In urllib3's MaxRetryError.
        return re.sub(r"^(<[^>]*>|\w+\(host=[^)]*\)): ", "", str(inner))  # No object's name.
    if _CUT in str(error):
        return "the connection was cut"
    return _reason(error.__cause__) if error.__cause__ else checks.shortened(error)


def _parts(path: Path) -> list[Path]:
    """What there is of a file: all of it, or what gdown has begun."""
    found = path, *path.parent.glob(f"{path.name}????????.part")
    return [each for each in found if each.exists()]


def _length(path: Path) -> int:
    return sum(part.stat().st_size for part in _parts(path))


def _forget(path: Path) -> None:
    for part in _parts(path):
        part.unlink()


@dataclass(frozen=True)
class Remote:
    """A file on a server; `download` explains the fields. git-sha1 is the hash of a blob of git."""

    url: str
    saves: Mapping[str, str | Mapping[str, str] | None]
    hash: str | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if not re.match(r"https?://[^/\s]+/\S*$", str(self.url)):
            raise ValueError(f"url must be an address that begins with https://, not {self.url!r}")
        if not isinstance(self.saves, Mapping) or not self.saves:
            raise ValueError(f"saves of {self.url} must name files, not {self.saves!r}")
        for name in self.saves:
            if PurePosixPath(name).name != name or name.startswith("."):
                raise ValueError(f"saves of {self.url} must be plain names, not {name!r}")
        if None in self.saves.values() and len(self.saves) > 1:
            raise ValueError(f"{self.url} cannot be one of its files itself and an archive too")
        for source in self.saves.values():
            if isinstance(source, Mapping) and set(source) != set(ROWS):
                raise ValueError(f"rows in {self.url} must be given by {ROWS}, not {dict(source)}")
        kind, _, digits = (self.hash or "md5:" + 32 * "0").partition(":")
        if not re.fullmatch(f"[0-9a-f]{{{DIGITS.get(kind, 0)}}}", digits) or kind not in DIGITS:
            kinds = ", ".join(DIGITS)
            raise ValueError(f"hash of {self.url} must be kind:digits, {kinds}, not {self.hash!r}")
        if self.size is not None and (not isinstance(self.size, int) or self.size < 1):
            raise ValueError(f"size of {self.url} must be at least 1, not {self.size!r}")


def download(root: Path, check: Check, *, mirrors: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Fetches the missing files of a folder from the first mirror that has the right ones.

    Files get their names when all of them are complete, unpacked and checked. Until then they are
    in ``root/.download``, and a later call resumes them there. Existing files stay as they are.
    Readers such as `slide.data.xmc` call this as their ``fetch``, under a lock.

    Args:
        check: raises ValueError unless a folder with all files has the right ones.
        mirrors: each mirror is a list of remote files with these keys: ``url``; ``saves``, the
            names of the files that it gives, each with its path in the archive, or None for the
            remote file itself; ``hash``, such as ``md5:...``, and ``size`` in bytes, if known.

    Raises:
        FetchError: all mirrors failed; the message has a line for each.
        OSError: the disk is full, or the like; what has been fetched is kept.
        ValueError: ``mirrors`` is malformed.

    Example:
        This example needs a server, so it is not run.

        ```python
        import functools
        from slide.data import download, xmc

        saves = {"train.txt": "Set/train.txt", "test.txt": "Set/test.txt"}
        mirrors = [[{"url": "http://localhost:8000/set.zip", "saves": saves}]]
        fetch = functools.partial(download, mirrors=mirrors)
        data = xmc(name="mine", root="files", cache="cache", fetch=fetch)
        ```
    """
    work, failures = root / DOWNLOAD_FOLDER, []
    staged = work / "files"
    parsed = parse_mirrors(mirrors)
    work.mkdir(exist_ok=True)
    for mirror in parsed:
        needed = [r for r in mirror if any(not (root / name).exists() for name in r.saves)]
        try:
            for remote in needed:
                _fetch(remote, _part(remote, work))
            _stage(needed, work, root, staged)
            try:
                check(staged)
            except (ValueError, FileNotFoundError) as error:
                for remote in mirror:
                    _forget(_part(remote, work))
                urls = " and ".join(remote.url for remote in mirror)
                said = str(error).replace(f"{staged}{os.sep}", "")
                raise FetchError(f"{urls}: not the right files: {said}") from error
        except FetchError as error:
            failures.append(f"  {error}")
            continue
        for path in sorted(staged.iterdir()):
            if not (root / path.name).exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                path.rename(root / path.name)
        shutil.rmtree(work)
        return
    for folder in ("files", "members"):
        shutil.rmtree(work / folder, ignore_errors=True)
    with suppress(OSError):  # It is not empty if there are parts to resume.
        work.rmdir()
    raise FetchError("\n".join(failures) or "  no address is known")


def parse_mirrors(mirrors: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[Remote]]:
    """Returns the remote files of each mirror."""
    try:
        return [[Remote(**{str(k): v for k, v in r.items()}) for r in m] for m in mirrors]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"mirrors must be lists of url, saves, hash, size: {error}") from error


def _fetch(remote: Remote, path: Path) -> None:
    """Fetch one remote file and compare its hash; archives have checksums of their own."""
    if not remote.hash and None in remote.saves.values():
        _forget(path)  # Nothing would tell that parts are of two versions.
    try:
        # A resumed file may join pieces of two versions, so it gets a second, whole transfer.
        if transfer(remote.url, path, size=remote.size) and _wrong_hash(remote, path):
            _forget(path)
            transfer(remote.url, path, size=remote.size)
        if wrong := _wrong_hash(remote, path):
            _forget(path)
            raise FetchError(wrong)
    except FetchError as error:
        raise FetchError(f"{remote.url}: {error}") from error


def _stage(remotes: Iterable[Remote], work: Path, root: Path, staged: Path) -> None:
    """Fills the folder ``staged`` with all files that ``root`` will have."""
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    for remote in remotes:
        part = _part(remote, work)
        try:
            if None in remote.saves.values():
                _same(os.link, part, staged / next(iter(remote.saves)))
            else:
                _unpack(remote, part, staged)
        except ValueError as error:
            _forget(part)
            raise FetchError(f"{remote.url}: {error}") from error
    for path in root.iterdir():
        if path.is_file() and not path.name.startswith("."):
            (staged / path.name).unlink(missing_ok=True)
            _same(os.symlink, path.resolve(), staged / path.name)


def _unpack(remote: Remote, archive: Path, staged: Path) -> None:
    inside = staged.with_name("members")
    shutil.rmtree(inside, ignore_errors=True)
    sources = [s for s in remote.saves.values() if s is not None]
    members = {m for s in sources for m in ([s] if isinstance(s, str) else s.values())}
    names = {m: f"{i}-{PurePosixPath(m).name}" for i, m in enumerate(sorted(members))}
    inside.mkdir()
    unpack(archive, {name: m for m, name in names.items()}, inside, name=_file_name(remote.url))
    for name, source in remote.saves.items():
        if isinstance(source, Mapping):
            whole, rows = (inside / names[source[key]] for key in ROWS)
            copy_numbered_rows(whole, rows, staged / name)
        elif source is not None:
            _same(os.link, inside / names[source], staged / name)
    shutil.rmtree(inside)


def _same(link: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    try:
        link(source, target)
    except OSError:  # The system has no such links.
        shutil.copyfile(source, target)


def _wrong_hash(remote: Remote, path: Path) -> str:
    """Says what is wrong with the hash of a file; empty if nothing is."""
    kind, _, expected = (remote.hash or "").partition(":")
    if not kind:
        return ""
    digest = hashlib.new(kind.removeprefix("git-"), usedforsecurity=False)
    if kind == "git-sha1":
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb", buffering=0) as file:
        for piece in pieces(file):
            digest.update(piece)
    found = digest.hexdigest()
    return "" if found == expected else f"its {kind} is {found}, not {expected}"


def _part(remote: Remote, work: Path) -> Path:
    return work / hashlib.sha256(remote.url.encode()).hexdigest()[:16]


def _file_name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]
