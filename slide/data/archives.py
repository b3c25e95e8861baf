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
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

from slide.utils.files import disk_error, open_bytes
from slide.utils.progress_bar import ProgressBar

# 64 GiB and a million files: more is no data set, but an attack or a mistake.
MAX_BYTES = 64 << 30
MAX_MEMBERS = 1_000_000
# Names and other texts before a member of a tar archive, which are read into memory: 4 MiB.
MAX_HEADER = 4 << 20
# The list of all members of a zip archive, which is read into memory: 4 MiB, so at most 91,000
# names, which take 46 bytes and their own length each.
MAX_LIST = 4 << 20
COPIED_BYTES = 1 << 20
SHOWN_MEMBERS = 8
COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
# Errors of the standard library for damaged archives, beside OSErrors without a number.
DAMAGES = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, ValueError, RuntimeError, OverflowError),
)


# Is told of bytes that were copied.
_Copied = Callable[[int], object]


class UnpackError(ValueError):
    """An archive is damaged or too large, or it lacks a member."""


def unpack(archive: Path, wanted: Mapping[str, Path], name: str) -> None:
    """Unpacks members to the files that ``wanted`` gives them.

    A member is a path in the archive, or ``name`` without suffix if that is one compressed file.
    """
    for target in wanted.values():
        target.parent.mkdir(parents=True, exist_ok=True)
    bar = ProgressBar(unit="B", unit_scale=True, desc=f"unpacking {name}")
    try:
        with open_bytes(archive) as file, bar:
            if _starts_with(file, b"PK"):
                _unpack_zip(file, wanted, bar.update)
                return
            with decompressed(file) as stream:
                if _is_tar(stream):
                    _unpack_tar(stream, wanted, bar.update)
                elif stream is not file:
                    (member,) = _required(wanted, [Path(name).stem])
                    _copy(stream, wanted[member], bar.update)
                else:
                    raise UnpackError("it is no archive")
    except UnpackError:
        raise
    except (*DAMAGES, OSError) as error:
        if (of_disk := disk_error(error)) is not None:
            raise of_disk from None
        raise UnpackError(f"it is damaged: {error or type(error).__name__}") from error


def decompressed(file: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """The content of a file that gzip, bzip2 or xz has compressed; of another one, the file."""
    for magic, opener in COMPRESSED.items():
        if _starts_with(file, magic):
            return opener(file)
    return nullcontext(file)


def _starts_with(file: IO[bytes], magic: bytes) -> bool:
    start = file.read(len(magic))
    file.seek(0)
    return start == magic


def ensure_space(folder: Path, size: int, what: str) -> None:
    """Raises OSError if a folder's disk has less than ``size`` bytes left for ``what``."""
    free = shutil.disk_usage(folder).free
    if size > free:
        needed = f"{what} takes {_shown(size)}, {_shown(free)} are free"
        raise OSError(errno.ENOSPC, f"not enough space: {needed}", str(folder))


def _shown(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise UnpackError(f"it unpacks to more than {MAX_BYTES} bytes")


def _copy(source: IO[bytes], target: Path, copied: _Copied) -> None:
    size = 0
    with target.open("wb") as file:
        for chunk in iter(lambda: source.read(COPIED_BYTES), b""):
            size += len(chunk)
            _check_size(size)
            file.write(chunk)
            copied(len(chunk))


class Pieces:
    """A file of which no large piece is read: `zipfile` reads the list of all members at once."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if size > MAX_LIST:
            raise UnpackError(f"its list of files has {size} bytes, more than {MAX_LIST}")
        return self._file.read(size)


def _unpack_zip(file: IO[bytes], wanted: Mapping[str, Path], copied: _Copied) -> None:
    pieces: Any = Pieces(file)  # What `zipfile` needs.
    with zipfile.ZipFile(pieces) as archive:
        infos = {_plain(info.filename): info for info in archive.infolist()}
        known = {member: _path_of(member, infos) for member in wanted}
        _required(known.values(), infos)
        chosen = {member: infos[path] for member, path in known.items()}
        for member, info in chosen.items():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.is_dir() or kind not in (0, stat.S_IFREG):
                raise UnpackError(f"{member} in it is not a plain file")
        size = sum(info.file_size for info in chosen.values())
        _check_size(size)
        ensure_space(next(iter(wanted.values())).parent, size, "the unpacked archive")
        for member, info in chosen.items():
            with archive.open(info) as source:
                _copy(source, wanted[member], copied)


class _Headers:
    """A stream that is read up to ``end``: what `tarfile` takes for a header has no bound."""

    def __init__(self, stream: IO[bytes]):
        self._stream, self._position, self.end = stream, 0, MAX_HEADER

    def read(self, size: int) -> bytes:
        if self._position > self.end:
            raise UnpackError(f"it has a header of more than {MAX_HEADER} bytes")
        found = self._stream.read(size)
        self._position += len(found)
        return found


def _unpack_tar(stream: IO[bytes], wanted: Mapping[str, Path], copied: _Copied) -> None:
    found, count, size = [], 0, 0
    headers: Any = _Headers(stream)  # `read` is all that `tarfile` needs.
    with tarfile.open(fileobj=headers, mode="r|") as archive:
        kept: Any = archive
        for info in archive:
            _check_size(info.offset_data + info.size)
            headers.end = info.offset_data + info.size + MAX_HEADER
            # It keeps the headers of all members, else; its types do not know where.
            kept.members = []
            kept.pax_headers.clear()
            member, count = _plain(info.name), count + 1
            if count > MAX_MEMBERS:
                raise UnpackError(f"it holds more than {MAX_MEMBERS} files")
            if member in wanted or len(found) < SHOWN_MEMBERS:
                found.append(member)
            if member not in wanted:
                continue
            source = archive.extractfile(info) if info.isreg() else None
            if source is None:
                raise UnpackError(f"{member} in it is not a plain file")
            size += info.size  # Of sparse files more than the archive holds.
            _check_size(size)
            ensure_space(wanted[member].parent, info.size, "the unpacked archive")
            _copy(source, wanted[member], copied)
        passed = archive.offset
    # The check sum of a compressed file is at its end.
    for chunk in iter(lambda: stream.read(COPIED_BYTES), b""):
        passed += len(chunk)
        _check_size(passed)
    _required(wanted, found, count)


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


def _required(wanted: Iterable[str], found: Collection[str], count: int | None = None) -> list[str]:
    """The members, or an error; ``found`` are those wanted and the first ones of ``count``."""
    count = len(found) if count is None else count
    for member in wanted:
        if member not in found:
            some = ", ".join(list(found)[:SHOWN_MEMBERS]) or "nothing"
            more = f" and {count - SHOWN_MEMBERS} more" if count > SHOWN_MEMBERS else ""
            raise UnpackError(f"there is no {member} in it, it holds {some}{more}")
    return list(wanted)
