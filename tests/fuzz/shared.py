"""What targets have in common."""

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from helpers import corpus, naive_rows
from helpers.limits import more_memory

from slide.data.row_files import VARIANTS
from slide.utils.checks import error_message
from slide.utils.files import json_digest
from slide.utils.tensor_folder import FolderKind, read_folder

# What a reader may take beside what the process has.
MEMORY = 1 << 30
# A byte order mark is left out, and what begins as a compressed file is named so, without a line.
_BEGINS = (b"\xef\xbb\xbf", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")


def kept_rows(format: str) -> list[bytes]:
    """The sound file of a format of rows, and its corpus."""
    return [corpus.ROWS[format], *corpus.kept(format).values()]


def has_mark(data: bytes) -> bool:
    """Whether data begin with what plain readers do not know."""
    return data.startswith(_BEGINS)


def check_text(data: bytes, folder: Path, format: str) -> bool:
    """Compare the reader of a text format with the plain parser, in one chunk and in many."""
    if has_mark(data):
        return False
    lenient = bool(sum(data) % 2)  # The same for the same file.
    for size in (7, 1 << 20):
        with more_memory(MEMORY):
            options = {"lenient": lenient, "chunk_bytes": size}
            naive_rows.assert_agrees(folder / "rows", data, VARIANTS[format], **options)
    return True


def check_sentence(error: Exception, place: Path) -> None:
    """Fail unless an error is a sentence that names a path in ``place`` first, and not the file."""
    said = error_message(error)
    if "\n" in said or len(said) > 600 or not said.startswith(str(place)):
        raise AssertionError(f"no sentence about a file: {said!r}") from error


class Folder:
    """A folder of tensors of which an input replaces one file; hashes are made to fit.

    The first byte of an input says which: 0 is the list, without hashes and sizes.

    Args:
        kind: of the folder.
        save: writes a sound one into a folder.
        name: where it is, below the folder of the target.
    """

    def __init__(self, kind: FolderKind, save: Callable[[Path], None], name: str = "made"):
        self._kind, self._save, self._name = kind, save, name
        self._list: dict[str, Any] = {}
        self._files: dict[str, bytes] = {}

    def seeds(self, folder: Path) -> list[bytes]:
        """Inputs that replace nothing, one for each file."""
        whole = folder / self._name
        self._save(whole)
        self._list = read_folder(self._kind, whole)
        self._files = {name: (whole / name).read_bytes() for name in sorted(self._list["files"])}
        del self._list["files"]
        parts = [json.dumps(self._list).encode(), *self._files.values()]
        return [bytes([number]) + part for number, part in enumerate(parts)]

    def write(self, data: bytes, folder: Path) -> Path:
        """Write the folder with the file of an input; returns where it is."""
        place, files, content = folder / self._name, dict(self._files), self._list
        which, body = (data[0] % (len(files) + 1) if data else 0), data[1:]
        if which:
            files[list(files)[which - 1]] = body
        with suppress(ValueError, TypeError, RecursionError):  # Then it is no list.
            content = content if which else json.loads(body)
            digests = {name: sha256(each).hexdigest() for name, each in files.items()}
            sizes = {n: {"bytes": len(files[n]), "sha256": d} for n, d in digests.items()}
            listed = {**content, "files": sizes}
            body = json.dumps(listed | {"sha256": json_digest(listed)}).encode()
        for name, each in files.items():
            (place / name).write_bytes(each)
        (place / self._kind.list_file).write_bytes(body)
        return place
