"""Files of a data set from mirrors, which are tried in order.

pooch and gdown take one address for each file. They have no mirrors and no expected sizes, and they
do not check all files together before any of them gets its name. pooch (1.9) also begins a broken
transfer again. gdown (6.5) resumes one, but a later call does not notice that the file has changed.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from slide.data.fetching.fetch import Check, FetchError
from slide.data.fetching.transfer import discard, transfer
from slide.data.fetching.unpack import unpack
from slide.data.formats.xmc_subset import copy_numbered_rows

__all__ = ["Remote", "download", "parse_mirrors"]

DOWNLOAD_FOLDER = ".download"
HASHED_BYTES = 1 << 20
ROWS = ("member", "rows")
DIGITS = {"sha256": 64, "sha1": 40, "git-sha1": 40, "md5": 32}


@dataclass(frozen=True)
class Remote:
    """A file on a server.

    Attributes:
        url: http or https.
        saves: the files that it gives, by their names in the folder of the data set. The value is
            None for the remote file itself, or a path in the archive. For selected rows it is
            ``{member: path, rows: path}``, see `slide.data.formats.xmc_subset`.
        hash: ``kind:hexadecimal digits``, if known; kinds are those of `DIGITS`. git-sha1 is the
            hash of git's blob: of ``blob <length>``, a zero byte and the file.
        size: in bytes, if known.

    Raises:
        ValueError: an attribute is not as described.
    """

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
        root: the folder.
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
    parsed = parse_mirrors(mirrors)
    work = root / DOWNLOAD_FOLDER
    work.mkdir(exist_ok=True)
    failures = []
    for mirror in parsed:
        needed = [r for r in mirror if any(not (root / name).exists() for name in r.saves)]
        staged = work / "files"
        try:
            _fetch_remotes(needed, work)
            _stage(needed, work, root, staged)
            _check_staged(mirror, check, staged)
        except FetchError as error:
            failures.append(f"  {error}")
            continue
        _place(staged, root)
        shutil.rmtree(work)
        return
    for folder in ("files", "members"):
        shutil.rmtree(work / folder, ignore_errors=True)
    with suppress(OSError):  # It is not empty if there are parts to resume.
        work.rmdir()
    raise FetchError("\n".join(failures) or "  no address is known")


def parse_mirrors(mirrors: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[Remote]]:
    """Returns the remote files of each mirror.

    Raises:
        ValueError: an entry is malformed.
    """
    try:
        return [[Remote(**{str(k): v for k, v in r.items()}) for r in m] for m in mirrors]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"mirrors must be lists of url, saves, hash, size: {error}") from error


def _fetch_remotes(remotes: Iterable[Remote], work: Path) -> None:
    for remote in remotes:
        path = _part(remote, work)
        try:
            # A resumed file may join pieces of two versions, so it gets a second, whole transfer.
            known = {"size": remote.size, "hashed": bool(remote.hash)}
            if transfer(remote.url, path, **known) and _wrong_hash(remote, path):
                discard(path)
                transfer(remote.url, path, **known)
        except FetchError as error:
            raise FetchError(f"{remote.url}: {error}") from error
        if wrong := _wrong_hash(remote, path):
            discard(path)
            raise FetchError(f"{remote.url}: {wrong}")


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
            discard(part)
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


def _check_staged(remotes: Iterable[Remote], check: Check, staged: Path) -> None:
    """Runs the check; if it fails, the mirror has another version of the set."""
    try:
        check(staged)
    except (ValueError, FileNotFoundError) as error:
        for remote in remotes:
            discard(_part(remote, staged.parent))
        urls = " and ".join(remote.url for remote in remotes)
        said = str(error).replace(f"{staged}{os.sep}", "")
        raise FetchError(f"{urls}: not the right files: {said}") from error


def _place(staged: Path, root: Path) -> None:
    for path in sorted(staged.iterdir()):
        if not (root / path.name).exists():
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.rename(root / path.name)


def _wrong_hash(remote: Remote, path: Path) -> str:
    """Says what is wrong with the hash of a file; empty if nothing is."""
    kind, _, expected = (remote.hash or "").partition(":")
    if not kind:
        return ""
    digest = hashlib.new(kind.removeprefix("git-"), usedforsecurity=False)
    if kind == "git-sha1":
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(HASHED_BYTES), b""):
            digest.update(chunk)
    found = digest.hexdigest()
    return "" if found == expected else f"its {kind} is {found}, not {expected}"


def _part(remote: Remote, work: Path) -> Path:
    return work / f"{hashlib.sha256(remote.url.encode()).hexdigest()[:16]}.part"


def _file_name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]
