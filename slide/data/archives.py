"""Files from zip and tar archives, and from single compressed files."""

import bz2
import errno
import gzip
import lzma
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from slide.utils.progress_bar import ProgressBar

# 64 GiB and a million files: more is no data set, but an attack or a mistake.
MAX_BYTES = 64 << 30
MAX_MEMBERS = 1_000_000
COPIED_BYTES = 1 << 20
SHOWN_MEMBERS = 8
COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
# Errors of the standard library for damaged archives, beside OSErrors without a number.
DAMAGES = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, ValueError, RuntimeError, OverflowError),
)


class UnpackError(ValueError):
    """An archive is damaged or too large, or it lacks a member."""


def unpack(
    archive: Path,
    members: Mapping[str, str],
    folder: Path,
    *,
    name: str | None = None,
    limit: int = MAX_BYTES,
) -> None:
    """Unpacks ``members``, paths in an archive or the name of a compressed file, by target name."""
    wanted = {member: folder / target for target, member in members.items()}
    if len(wanted) < len(members):
        raise ValueError(f"one member cannot become two files: {dict(members)}")
    for target in wanted.values():
        target.parent.mkdir(parents=True, exist_ok=True)
    bar = ProgressBar(unit="B", unit_scale=True, desc=f"unpacking {name or archive.name}")
    try:
        with archive.open("rb") as file, bar:
            output = _Output(limit, bar)
            start = file.read(max(map(len, COMPRESSED)))
            file.seek(0)
            if start.startswith(b"PK"):
                _unpack_zip(file, wanted, output)
                return
            opener = next((o for magic, o in COMPRESSED.items() if start.startswith(magic)), None)
            with opener(file) if opener else nullcontext(file) as stream:
                if _is_tar(stream):
                    _unpack_tar(stream, wanted, output)
                elif opener:
                    (member,) = _required(wanted, [Path(name or archive.name).stem])
                    output.copy(stream, wanted[member])
                else:
                    raise UnpackError("it is no archive")
    except UnpackError:
        raise
    except DAMAGES as error:
        raise UnpackError(f"it is damaged: {error or type(error).__name__}") from error
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):
            raise
        raise UnpackError(f"it is damaged: {error}") from error


def ensure_space(folder: Path, size: int, what: str) -> None:
    """Raises OSError if a folder's disk has less than ``size`` bytes left for ``what``."""
    free = shutil.disk_usage(folder).free
    if size > free:
        needed = f"{what} takes {size / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free"
        raise OSError(errno.ENOSPC, f"not enough space: {needed}", str(folder))


class _Output:
    """Writes files, up to a total number of bytes."""

    def __init__(self, limit: int, bar: Any) -> None:
        self.limit = limit
        self._left = limit
        self._bar = bar

    def check(self, size: int) -> None:
        """Raises UnpackError if an archive holds more than the limit."""
        if size > self.limit:
            raise UnpackError(f"it unpacks to more than {self.limit} bytes")

    def copy(self, source: IO[bytes], target: Path) -> None:
        with target.open("wb") as file:
            for chunk in iter(lambda: source.read(COPIED_BYTES), b""):
                self._left -= len(chunk)
                self.check(self.limit - self._left)
                file.write(chunk)
                self._bar.update(len(chunk))


def _unpack_zip(file: IO[bytes], wanted: Mapping[str, Path], output: _Output) -> None:
    with zipfile.ZipFile(file) as archive:
        infos = {_plain(info.filename): info for info in archive.infolist()}
        known = {member: _path_of(member, infos) for member in wanted}
        _required(known.values(), infos)
        chosen = {member: infos[path] for member, path in known.items()}
        for member, info in chosen.items():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.is_dir() or kind not in (0, stat.S_IFREG):
                raise UnpackError(f"{member} in it is not a plain file")
        size = sum(info.file_size for info in chosen.values())
        output.check(size)
        ensure_space(next(iter(wanted.values())).parent, size, "the unpacked archive")
        for member, info in chosen.items():
            with archive.open(info) as source:
                output.copy(source, wanted[member])


def _unpack_tar(stream: IO[bytes], wanted: Mapping[str, Path], output: _Output) -> None:
    found = []
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for info in archive:
            output.check(info.offset_data + info.size)
            member = _plain(info.name)
            found.append(member)
            if len(found) > MAX_MEMBERS:
                raise UnpackError(f"it holds more than {MAX_MEMBERS} files")
            if member not in wanted:
                continue
            source = archive.extractfile(info) if info.isreg() else None
            if source is None:
                raise UnpackError(f"{member} in it is not a plain file")
            ensure_space(wanted[member].parent, info.size, "the unpacked archive")
            output.copy(source, wanted[member])
        passed = archive.offset
    # The check sum of a compressed file is at its end.
    for chunk in iter(lambda: stream.read(COPIED_BYTES), b""):
        passed += len(chunk)
        output.check(passed)
    _required(wanted, found)


def _is_tar(stream: IO[bytes]) -> bool:
    block = stream.read(tarfile.BLOCKSIZE)
    stream.seek(0)
    try:
        tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:  # type: ignore[attr-defined]
        return False
    return True


def _path_of(member: str, paths: Collection[str]) -> str:
    # Servers pack an archive again at times, and folders in it then get other names.
    alike = [path for path in paths if path.rpartition("/")[2] == member.rpartition("/")[2]]
    return alike[0] if member not in paths and len(alike) == 1 else member


def _plain(member: str) -> str:
    return member.replace("\\", "/").removeprefix("./")


def _required(wanted: Iterable[str], found: Collection[str]) -> list[str]:
    for member in wanted:
        if member not in found:
            some = ", ".join(list(found)[:SHOWN_MEMBERS]) or "nothing"
            more = f" and {len(found) - SHOWN_MEMBERS} more" if len(found) > SHOWN_MEMBERS else ""
            raise UnpackError(f"there is no {member} in it, it holds {some}{more}")
    return list(wanted)
