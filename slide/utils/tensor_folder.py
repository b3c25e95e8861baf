"""Folders of tensors, models and checkpoints: files of safetensors, and a list in JSON.

The list names each file with its size and SHA-256, and has one of its own. Nothing is code.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from torch import Tensor

from slide.backend import array_view
from slide.runtime import VERSION, versions
from slide.utils.checks import shortened
from slide.utils.files import (
    alone_in,
    beside,
    json_digest,
    open_bytes,
    pieces,
    read_text,
    side_by_side,
    sync_folder,
    write_atomic,
    write_json,
)

SUFFIX = ".safetensors"
# The names and shapes of the tensors of a file are at most 1 MiB: a network has a hundred of them.
_LONGEST_HEADER = 1 << 20
# A folder of new files, which replace the old ones when all of them are complete.
NEW_FILES = "new_files"
# Marks in JSON objects: what stands for a tensor, a tuple, and a dict with keys that are no text.
_TENSOR, _TUPLE, _ITEMS = "tensor:", "tuple:", "items:"
_MARKS = (_TENSOR, _TUPLE, _ITEMS)


class FolderKind(NamedTuple):
    """What a folder holds."""

    name: str  # In messages.
    list_file: str
    format: int  # Increase it when older readers would misread a folder.
    oldest: int = 0  # The first format that is still read; 0: only `format`.


def write_folder(
    kind: FolderKind,
    folder: Path,
    content: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Tensor]],
    there: Iterable["Written"] = (),
) -> None:
    """Write tensors, by file and name, beside the files ``there`` that belong to the folder, too.

    What the folder held stays whole until all new files are on the disk; then the old list is
    removed, and the new one written last. If the process is stopped there, `read_folder` goes on.
    Two processes write one after the other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        new, former = folder / NEW_FILES, listed_files(folder / kind.list_file)
        shutil.rmtree(new, ignore_errors=True)  # Of a process that was killed.
        new.mkdir()
        try:
            written = [write_file(new, *file) for file in files.items()]
            every = [*there, *written]
            write_list(kind, new, content, every)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        (folder / kind.list_file).unlink(missing_ok=True)
        for name in set(former or ()) - {file.name for file in every}:
            (folder / name).unlink(missing_ok=True)  # Of what was here before.
        _install(kind, folder)
        shutil.rmtree(new, ignore_errors=True)


def _install(kind: FolderKind, folder: Path) -> None:
    """Move complete new files into the folder, the list last."""
    new = folder / NEW_FILES
    for name in (*(listed_files(new / kind.list_file) or ()), kind.list_file):
        if (new / name).exists():  # Else it is there already.
            (new / name).replace(folder / name)
    sync_folder(folder)


class Written(NamedTuple):
    """A file of a folder of tensors, as its list names it."""

    name: str
    bytes: int
    sha256: str


def write_file(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> Written:
    """Write one file of a folder of tensors, which is to be in its list."""
    path = folder / f"{name}{SUFFIX}"
    write_atomic(path, lambda file: _save(tensors, Path(file.name)))
    return written_file(path)


def written_file(path: Path) -> Written:
    """The entry of a file in a list."""
    return Written(path.name, path.stat().st_size, _hash_file(path))


def stream_file(
    folder: Path, name: str, shapes: Mapping[str, Sequence[int]], blocks: Iterable[Tensor]
) -> Written:
    """Write float32 tensors of these shapes from consecutive blocks of rows."""
    path, begin, header = folder / f"{name}{SUFFIX}", 0, {}
    for key, shape in shapes.items():
        end = begin + 4 * math.prod(shape)
        header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # Numbers begin at a multiple of 8 bytes.

    def write(file: IO[bytes]) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for block in blocks:
            file.write(array_view(block.contiguous()).astype("<f4", copy=False).data)

    write_atomic(path, write)
    return written_file(path)


def write_list(
    kind: FolderKind, folder: Path, content: Mapping[str, Any], files: Iterable[Written]
) -> None:
    """Write the list of a folder of tensors."""
    written = {each.name: {"bytes": each.bytes, "sha256": each.sha256} for each in files}
    body = {"format": kind.format, "versions": versions(), **content, "files": written}
    write_json(folder / kind.list_file, body | {"sha256": json_digest(body)})


def share_files(lists: Iterable[Path]) -> None:
    """Let equal files of folders with these lists be one file on the disk, if it has hard links."""
    known: dict[tuple[int, str], Path] = {}
    for path in lists:
        files = json.loads(read_text(path))["files"] if path.exists() else {}
        for name, said in files.items():
            file = path.with_name(name)
            first = known.setdefault((said["bytes"], said["sha256"]), file)
            new = beside(file)
            if first.samefile(file):  # A link in the place of another link would be left.
                continue
            try:
                new.hardlink_to(first)
                new.replace(file)
            except OSError:
                new.unlink(missing_ok=True)
                return


def listed_files(path: Path) -> list[str] | None:
    """Names of the files of tensors in a list; None if it is no such list, or there is none."""
    try:
        content = json.loads(read_text(path))
        number, files = content["format"], content["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(number, int) or not isinstance(files, dict):
        return None
    return [name for name in files if name.endswith(SUFFIX) and Path(name).name == name]


def read_folder(kind: FolderKind, folder: Path) -> dict[str, Any]:
    """Read the list of a folder, and check it and the sizes of the files."""
    path, new = folder / kind.list_file, folder / NEW_FILES
    if not path.exists() and not new.is_symlink() and (new / kind.list_file).is_file():
        with alone_in(folder):
            if not path.exists() and (new / kind.list_file).is_file():
                _install(kind, folder)  # A process was killed between two of the files.
                shutil.rmtree(new, ignore_errors=True)
    if path.is_symlink():
        raise ValueError(f"{path} must be a file of the folder itself, and no link")
    if not path.is_file():
        raise FileNotFoundError(f"there is no {kind.name} in {folder}: no {kind.list_file}")
    try:
        content = json.loads(read_text(path))
        digest = content.pop("sha256")
        number = content["format"]
        files = {name: file["bytes"] for name, file in content["files"].items()}
        if not isinstance(number, int) or not all(
            isinstance(file["bytes"], int) and isinstance(file["sha256"], str)
            for file in content["files"].values()
        ):
            raise TypeError("sizes and hashes")
        wrote = shortened(dict(content.get("versions", {})).get("slide", "?"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = shortened(repr(error))
        raise ValueError(f"{path} has changed since it was written: {said}") from error
    if number != kind.format and not 0 < kind.oldest <= number < kind.format:
        raise ValueError(
            f"{path} is of format {shortened(number)}, which slide {wrote} wrote; slide {VERSION} "
            f"reads format {kind.format}: use the former, or make the {kind.name} with the latter"
        )
    if digest != json_digest(content):
        raise ValueError(f"{path} has changed since it was written")
    for name, size in files.items():
        if Path(name).name != name or (folder / name).is_symlink():
            raise ValueError(
                f"{path} names {name!r}, which must be a file of the folder itself, and no link"
            )
        _check_size(kind, folder / name, size)
    return content


def check_files(
    kind: FolderKind, folder: Path, content: Mapping[str, Any], names: Iterable[str]
) -> None:
    """Read some files of a folder, side by side, and compare their hashes."""

    def check(name: str) -> None:
        path, said = folder / name, content["files"][name]
        _check_size(kind, path, said["bytes"])
        if _hash_file(path) != said["sha256"]:
            raise ValueError(f"{path} has changed since it was written: its SHA-256 is another one")

    side_by_side(check, {name: content["files"][name]["bytes"] for name in names})


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a file, as memory maps: changes of them stay in this process."""
    from safetensors import SafetensorError, safe_open

    path = folder / f"{name}{SUFFIX}"
    try:
        with path.open("rb") as begin:
            size = int.from_bytes(begin.read(8), "little")
        if size > _LONGEST_HEADER:
            raise SafetensorError(f"its header has {size} bytes, more than {_LONGEST_HEADER}")
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        said = shortened(error)
        raise ValueError(f"{path} has changed since it was written: {said}") from error


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError  # Imported here, so that `import slide` stays fast.
    from safetensors.torch import save_file

    mode = path.stat().st_mode
    try:
        save_file({key: each.detach().contiguous() for key, each in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    # It is another file now, which only this user may read.
    path.chmod(mode)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _check_size(kind: FolderKind, path: Path, size: int) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: copy the whole folder of the {kind.name}")
    found = path.stat().st_size
    if found != size:
        raise ValueError(
            f"{path} has {found} bytes, but {size} were written: copy the whole folder again"
        )


def _hash_file(path: Path) -> str:
    found = hashlib.sha256()
    with open_bytes(path) as file:
        for piece in pieces(file):
            found.update(piece)
    return found.hexdigest()


def split_state(state: Any, name: str = "state") -> tuple[Any, dict[str, Tensor]]:
    """JSON values of nested dicts, lists and tuples, with names for tensors, and the tensors."""
    tensors: dict[str, Tensor] = {}
    return _packed(state, name, tensors), tensors


def join_state(values: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `split_state` divided."""
    if isinstance(values, list):
        return [join_state(value, tensors) for value in values]
    if not isinstance(values, dict):
        return values
    if _TENSOR in values:
        name = values[_TENSOR]
        if not isinstance(name, str) or name not in tensors:
            raise ValueError(f"there is no array {shortened(repr(name))}")
        return tensors[name]
    if _TUPLE in values:
        return tuple(join_state(value, tensors) for value in values[_TUPLE])
    if _ITEMS in values:
        return {
            join_state(key, tensors): join_state(value, tensors) for key, value in values[_ITEMS]
        }
    return {key: join_state(value, tensors) for key, value in values.items()}


def _packed(state: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(state, Tensor):
        while name in tensors:  # {"a.b": ..., "a": {"b": ...}} has one name twice.
            name += "'"
        tensors[name] = state
        return {_TENSOR: name}
    if isinstance(state, Mapping):
        above = f"{name}." if name else ""
        pairs = [(key, _packed(value, f"{above}{key}", tensors)) for key, value in state.items()]
        if all(isinstance(key, str) and key not in _MARKS for key, _ in pairs):
            return dict(pairs)
        return {_ITEMS: [[_packed(key, name, tensors), value] for key, value in pairs]}
    if isinstance(state, list | tuple):
        found = [_packed(value, f"{name}.{i}", tensors) for i, value in enumerate(state)]
        return found if isinstance(state, list) else {_TUPLE: found}
    if state is None or isinstance(state, str | bool | int | float):
        return state
    raise TypeError(f"{name} is a {type(state).__name__}, which a checkpoint cannot hold")


def check_same_settings(state: Mapping[str, Any], own: Mapping[str, Any], kind: str) -> None:
    """Raise ValueError unless ``state["settings"]`` agrees with ``own``, the settings of a kind."""
    saved = state.get("settings", {})
    for name, value in own.items():
        if name not in saved:
            raise ValueError(f"this is no state of {kind}: its settings lack {name}")
        if saved[name] != value:
            raise ValueError(
                f"{name} was {saved[name]} where this state was saved, and is {value} here; "
                "they must agree"
            )
