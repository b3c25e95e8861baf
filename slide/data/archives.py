"""Files from zip archives, and from single compressed files."""

import bz2
import errno
import gzip
import lzma
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from slide.utils.progress_bar import ProgressBar

# 64 GiB: more is no data set, but an attack or a mistake.
MAX_BYTES = 64 << 30
COPIED_BYTES = 1 << 20
SHOWN_MEMBERS = 8
COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
# Errors of the standard library for damaged archives, beside OSErrors without a number.
DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
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
            opener = next((o for magic, o in COMPRESSED.items() if start.startswith(magic)), None)
            if start.startswith(b"PK"):
                _unpack_zip(file, wanted, output)
            elif opener is None:
                raise UnpackError("it is no archive")
            else:
                _require(wanted, [Path(name or archive.name).stem])
                with opener(file) as stream:
                    output.copy(stream, *wanted.values())
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
        self.limit = self._left = limit
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
        _require(known.values(), infos)
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


def _path_of(member: str, paths: Collection[str]) -> str:
    # Servers pack an archive again at times, and folders in it then get other names.
    alike = [path for path in paths if path.rpartition("/")[2] == member.rpartition("/")[2]]
    return alike[0] if member not in paths and len(alike) == 1 else member


def _plain(member: str) -> str:
    return member.replace("\\", "/").removeprefix("./")


def _require(wanted: Iterable[str], found: Collection[str]) -> None:
    for member in wanted:
        if member not in found:
            some = ", ".join(list(found)[:SHOWN_MEMBERS]) or "nothing"
            more = f" and {len(found) - SHOWN_MEMBERS} more" if len(found) > SHOWN_MEMBERS else ""
            raise UnpackError(f"there is no {member} in it, it holds {some}{more}")
