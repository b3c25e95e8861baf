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
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urljoin

import requests
from filelock import FileLock, Timeout
from requests import exceptions

from slide.data.archives import MAX_BYTES, ensure_space, unpack
from slide.data.row_files import copy_numbered_rows
from slide.runtime import VERSION
from slide.utils import checks
from slide.utils.files import open_bytes, pieces
from slide.utils.progress_bar import ProgressBar, log

LOCK = ".fetch.lock"

# Raises ValueError (DataError) unless the files in a folder are the expected ones.
Check = Callable[[Path], object]
# Puts the missing files into a folder, complete and checked; existing files stay as they are. It
# raises FetchError if it cannot, and other OSErrors for a full disk and the like.
Fetch = Callable[[Path, Check], None]

# 64 KiB are received at a time: a cut connection loses fewer bytes.
RECEIVED_BYTES = 1 << 16
# A transfer ends after 4 connections in a row that bring less than that.
TRIES = 4
# Seconds before the next connection, for each failure.
PAUSE = 1.0
# Seconds to wait for a connection, and for the next bytes.
TIMEOUTS = 10.0, 60.0
# Pages before the file, at most: Google Drive asks whether to download without a virus scan.
MAX_PAGES = 3
PAGE_BYTES = 1 << 20
PAGE_STARTS = (b"<!doctype html", b"<html")
# Statuses of servers that may answer after some seconds.
BUSY = (500, 502, 503, 504)

DOWNLOAD_FOLDER = ".download"
# Where selected rows come from: a file of all rows, and a file of row numbers.
ROWS = ("member", "rows")
DIGITS = {"sha256": 64, "sha1": 40, "git-sha1": 40, "md5": 32}


class FetchError(OSError):
    """Files could not be fetched; the message says what was tried and why it failed."""


def ensure_parts(
    root: Path,
    train: Sequence[str],
    test: Sequence[str] | None,
    hint: str,
    fetch: Fetch | None = None,
    check: Check = bool,
) -> None:
    """`ensure_files` of training rows and of test rows; None: test rows are drawn from them."""
    if test is None:
        log("no test file: a tenth of the rows, drawn, is set aside as test rows")
    elif fetch is None and all((root / name).is_file() for name in train):
        hint = f"{hint} dataset.test_file=null sets a tenth of the training rows aside.".lstrip()
    ensure_files(root, list(dict.fromkeys([*train, *(test or ())])), hint, fetch, check)


def ensure_files(
    root: Path, names: Sequence[str], hint: str, fetch: Fetch | None = None, check: Check = bool
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
    what = "a file, not a folder" if root.is_file() else "missing"
    said = f"{root if root.is_file() else lacking} is {what}"
    said += f", and could not be fetched:{tried}" if tried else ". "
    put = f"Put {listed} into the folder {place}, or name theirs by dataset.root."
    raise FileNotFoundError(said + " ".join(filter(None, [hint, put])))


def check_folders(**folders: object) -> None:
    """Raises ValueError for an argument that is no path."""
    for argument, value in folders.items():
        if not isinstance(value, str | Path):
            raise ValueError(f"{argument} must be the path of a folder, not {value!r}")
        checks.encodable(argument, value)


@contextmanager
def locked(path: Path, what: str) -> Iterator[bool]:
    """Waits for the lock of a file, which the system releases if its process is killed."""
    if path.is_symlink() or (path.exists() and not path.is_file()):  # A pipe would be waited for.
        raise ValueError(f"{path} must be a file, and no link: remove it")
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


class _InterruptedTransferError(Exception):
    """The connection failed, and the next one may bring more."""


class _UnreachableServerError(_InterruptedTransferError):
    """There is no connection. It may come back if there was one before."""


def transfer(url: str, path: Path, *, size: int | None = None) -> bool:
    """Fetches a file, or goes on with a part of it, while connections bring more.

    Returns whether it went on.
    """
    most = _length(path)
    resumed, failures = most > 0, 0
    with requests.Session() as session:
        session.headers.update({"User-Agent": f"slide/{VERSION}", "Accept-Encoding": "identity"})
        for attempt in count():
            try:
                _receive(session, url, path, size)
                return resumed
            except _InterruptedTransferError as error:
                length = _length(path)
                failures = 0 if length >= most + RECEIVED_BYTES else failures + 1
                most = max(most, length)
                never_there = attempt == 0 and isinstance(error, _UnreachableServerError)
                if failures == TRIES or never_there:
                    raise FetchError(str(error)) from error
            resumed = True
            time.sleep(PAUSE * failures)
    raise AssertionError("count() does not end")


def _receive(session: requests.Session, url: str, path: Path, size: int | None) -> None:
    """Append what is left of a file, or write all of it where the server sends no parts."""
    start, response = _length(path), _open_file(session, url)
    if start:  # The address is known only now: a page may come before it.
        response.close()
        response = _get(session, response.url, {"Range": f"bytes={start}-"})
    if response.status_code == requests.codes.requested_range_not_satisfiable:
        response.close()
        if size in (None, start):
            return  # Nothing is left.
        response = _open_file(session, url)
    with response:
        # The length of an encoded answer is not the length of the file.
        encoded = response.headers.get("Content-Encoding", "identity") != "identity"
        length, total = response.headers.get("Content-Length", ""), None
        if response.status_code == requests.codes.partial:
            part = re.match(rf"bytes {start}-\d+/(\d+)$", response.headers.get("Content-Range", ""))
            if part is None or encoded:
                path.unlink()
                raise _InterruptedTransferError("sends another part than it was asked for")
            total = int(part[1])
        else:
            start = 0
            total = int(length) if length.isdigit() and not encoded else None
        if size is not None and total not in (None, size):
            raise FetchError(f"has {total} bytes, not {size}")
        found = _write_body(response, path, start, total)
    if size not in (None, found):
        path.unlink()
        raise FetchError(f"has {found} bytes, not {size}")


def _open_file(session: requests.Session, url: str) -> requests.Response:
    for _ in range(MAX_PAGES):
        response = _get(session, url, {})
        attached = "attachment" in response.headers.get("Content-Disposition", "")
        if attached or not response.headers.get("Content-Type", "").startswith("text/html"):
            return response
        with response:
            url = urljoin(response.url, _next_url(next(_body_chunks(response, PAGE_BYTES), b"")))
    raise FetchError("answers one page after the other instead of the file")


def _get(session: requests.Session, url: str, headers: dict[str, str]) -> requests.Response:
    try:
        response = session.get(url, headers=headers, stream=True, timeout=TIMEOUTS)
    except (exceptions.SSLError, exceptions.ProxyError) as error:
        raise FetchError(_reason(error)) from error
    except (exceptions.ConnectionError, exceptions.Timeout) as error:
        raise _UnreachableServerError(_reason(error)) from error
    except (exceptions.RequestException, ValueError) as error:  # ValueError: a malformed address.
        raise FetchError(_reason(error)) from error
    none_left = response.status_code == requests.codes.requested_range_not_satisfiable
    if not response.ok and not (none_left and headers):
        response.close()
        said = f"answers {response.status_code} {response.reason}"
        if response.status_code in BUSY:
            raise _InterruptedTransferError(said)
        raise FetchError(said)
    return response


def _next_url(page: bytes) -> str:
    # Imported here: it takes long, and few addresses need it.
    from gdown.download import get_url_from_gdrive_confirmation
    from gdown.exceptions import FileURLRetrievalError

    try:
        return get_url_from_gdrive_confirmation(page.decode("utf-8", "replace"))
    except FileURLRetrievalError as error:
        raise FetchError(_page_instead(page)) from error


def _page_instead(page: bytes) -> str:
    text = page.decode("utf-8", "replace")
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.DOTALL | re.IGNORECASE)
    named = f" ('{' '.join(title[1].split())[:80]}')" if title else ""
    return f"answers a web page{named} instead of the file"


def _write_body(response: requests.Response, path: Path, start: int, total: int | None) -> int:
    """Appends an answer to the first ``start`` bytes; returns the length of the file."""
    if total is not None:
        if total > MAX_BYTES:
            raise FetchError(f"has {total} bytes, more than {MAX_BYTES}")
        ensure_space(path.parent, total - start, "the file")
    length, name = start, _file_name(response.url)
    try:
        with (
            ProgressBar(total=total, initial=start, unit="B", unit_scale=True, desc=name) as bar,
            path.open("ab") as file,
        ):
            file.truncate(start)
            for chunk in _body_chunks(response, RECEIVED_BYTES):
                if length == 0 and chunk.lstrip()[:16].lower().startswith(PAGE_STARTS):
                    raise FetchError(_page_instead(chunk))
                length += len(chunk)
                if length > MAX_BYTES:
                    raise FetchError(f"has more than {MAX_BYTES} bytes")
                file.write(chunk)
                bar.update(len(chunk))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"no space left after {length} bytes, which the next call goes on with"
            raise OSError(error.errno, message, str(path)) from error
        raise
    if total not in (None, length):
        raise _InterruptedTransferError(f"sends {length} of {total} bytes")
    return length


def _body_chunks(response: requests.Response, size: int) -> Iterator[bytes]:
    try:
        yield from response.iter_content(size)
    except exceptions.RequestException as error:
        raise _InterruptedTransferError(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, exceptions.ConnectTimeout):
        return f"no connection within {TIMEOUTS[0]:g} s"
    if isinstance(error, exceptions.ReadTimeout) or "Read timed out" in str(error):
        return f"no answer for {TIMEOUTS[1]:g} s"
    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the connection was cut"
    inner = error.args[0] if error.args else error
    inner = getattr(inner, "reason", inner)  # In urllib3's MaxRetryError.
    return re.sub(r"^(<[^>]*>|\w+\(host=[^)]*\)): ", "", str(inner))  # Without the object's name.


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


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
        hashes = "|".join(f"{kind}:[0-9a-f]{{{digits}}}" for kind, digits in DIGITS.items())
        if self.hash and not re.fullmatch(hashes, self.hash):
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
                    _part(remote, work).unlink(missing_ok=True)
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
        path.unlink(missing_ok=True)  # Nothing would tell that parts are of two versions.
    try:
        if remote.hash and path.exists() and not _wrong_hash(remote, path):
            return
        # A resumed file may join pieces of two versions, so it gets a second, whole transfer.
        if transfer(remote.url, path, size=remote.size) and _wrong_hash(remote, path):
            path.unlink()
            transfer(remote.url, path, size=remote.size)
        if wrong := _wrong_hash(remote, path):
            path.unlink()
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
            part.unlink(missing_ok=True)
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
    paths = {m: inside / f"{i}-{PurePosixPath(m).name}" for i, m in enumerate(sorted(members))}
    unpack(archive, paths, _file_name(remote.url))
    for name, source in remote.saves.items():
        if isinstance(source, Mapping):
            whole, rows = (paths[source[key]] for key in ROWS)
            copy_numbered_rows(whole, rows, staged / name)
        elif source is not None:
            _same(os.link, paths[source], staged / name)
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
    with open_bytes(path) as file:
        for piece in pieces(file):
            digest.update(piece)
    found = digest.hexdigest()
    return "" if found == expected else f"its {kind} is {found}, not {expected}"


def _part(remote: Remote, work: Path) -> Path:
    return work / f"{hashlib.sha256(remote.url.encode()).hexdigest()[:16]}.part"


def _file_name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]
