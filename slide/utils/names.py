"""Names of labels or features: any number of them, decoded only where they are asked for."""

import codecs
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.utils.array_checks import Expected, Stored

# A mebibyte is decoded at a time.
_PIECE = 1 << 20
KINDS = ("text", "number", "float", "flag")
_TYPES = {"text": str, "number": int, "float": float, "flag": bool}
# How a name of each kind is written.
_WORDS = {
    "number": b"-?[0-9]{1,4000}",
    "float": b"-?[0-9]+([.][0-9]+)?(e[-+]?[0-9]+)?",
    "flag": b"True|False",
}


class Names(Sequence):
    """A list of texts, or of numbers, whose characters lie in one array.

    Args:
        text: ``(bytes,)`` uint8, all names in UTF-8, one after the other.
        ends: ``(n,)`` int64, where each name ends.
        kind: ``"text"``, ``"number"`` (whole ones), ``"float"`` or ``"flag"`` (True and False).

    Example:
        >>> from slide.model import Names
        >>> names = Names.of(["fruit", "tree", "tool"])
        >>> names[1], names.number("tool"), len(names)
        ('tree', 2, 3)
    """

    def __init__(self, text: np.ndarray, ends: np.ndarray, kind: str = "text"):
        if kind not in _TYPES:
            raise ValueError(f"names must be one of {', '.join(_TYPES)}, not {kind!r}")
        last = ends[-1] if len(ends) else 0
        if last != len(text):
            raise ValueError(f"names end at byte {last}, not at {len(text)}")
        if len(ends) and (ends[0] < 0 or (ends[1:] < ends[:-1]).any()):
            raise ValueError("a name ends before it begins")
        self.text, self.ends, self.kind = text, ends, kind

    @classmethod
    def of(cls, names: Iterable[Any], what: str = "names") -> "Names":
        """The names of a list of texts or numbers; messages call them ``what``."""
        if isinstance(names, Names):
            return names
        names = [name.item() if isinstance(name, np.generic) else name for name in names]
        types = {type(name) for name in names}
        kind = next((kind for kind, type in _TYPES.items() if types == {type}), "text")
        return cls(*_packed(names, kind, what), kind)

    def extended(self, names: Iterable[Any], what: str = "names") -> "Names":
        """The names, and further ones of the same kind."""
        names = [name.item() if isinstance(name, np.generic) else name for name in names]
        for name in names:
            if self.number(name) is not None:
                raise ValueError(f"{what} must differ; there is {name!r:.60} already")
        text, ends = _packed(names, self.kind, what)
        text = np.concatenate([self.text, text])
        return Names(text, np.concatenate([self.ends, len(self.text) + ends]), self.kind)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: Any) -> Any:
        """The name of a number in [0, n)."""
        if not 0 <= number < len(self.ends):
            raise IndexError(f"name {number} is not in [0, {len(self.ends)})")
        begin = self.ends[number - 1] if number else 0
        return self.parsed(self.text[begin : self.ends[number]].tobytes().decode())

    def parsed(self, word: str) -> Any:
        """A name as it is written, as a name of this kind."""
        return word == "True" if self.kind == "flag" else _TYPES[self.kind](word)

    def first(self, count: int) -> "Names":
        """The first names."""
        end = self.ends[count - 1] if count else 0
        return Names(self.text[:end], self.ends[:count], self.kind)

    def take(self, ids: np.ndarray) -> np.ndarray:
        """The names of ids, an array of objects of the same shape; None for ids below 0."""
        found = np.full(ids.shape, None, object)
        distinct, positions = np.unique(ids, return_inverse=True)
        words = np.array([None if each < 0 else self[each] for each in distinct], object)
        if len(words):
            found[...] = words[positions.reshape(ids.shape)]
        return found

    def number(self, name: Any) -> int | None:
        """The number of a name; None if there is no such name."""
        return self._numbers.get(name)

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        return {name: number for number, name in enumerate(self)}

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The arrays, for a file."""
        text = torch.from_numpy(np.array(self.text))
        return {f"{prefix}.text": text, f"{prefix}.ends": torch.from_numpy(np.array(self.ends))}

    @classmethod
    def restored(cls, stored: Stored, kind: str) -> "Names":
        """The object that had these `tensors`."""
        text = stored.array("text", Expected((None,), "uint8"))
        ends = stored.array("ends", Expected((None,), "int64", 0))
        try:
            names = cls(text, ends, kind)
        except ValueError as error:
            stored.refuse_array("ends", f"fit the text: {error}")
        begins = np.concatenate([[0], names.ends[:-1]])[: len(names)]
        if kind != "text":
            good = all(
                re.fullmatch(_WORDS[kind], text[begin:end].tobytes())
                for begin, end in zip(begins, names.ends, strict=True)
            )
        else:
            begins = text[begins[begins < len(text)]]
            good = _is_utf8(text) and not ((begins & 0xC0) == 0x80).any()
        if not good:
            what = "UTF-8" if kind == "text" else "digits of whole numbers"
            stored.refuse_array("text", f"hold {what} between any two ends")
        return names


def check_columns(what: str, found: Iterable[Any], known: Iterable[Any]) -> None:
    """Raise ValueError if a column of a frame has another name than it had in training."""
    for number, names in enumerate(zip(found, known, strict=False)):
        if names[0] != names[1]:
            name, wanted = (each.item() if isinstance(each, np.generic) else each for each in names)
            raise ValueError(
                f"column {number} of the {what} must be {wanted!r:.60}, as in training, not "
                f"{name!r:.60}"
            )


def _packed(names: list[Any], kind: str, what: str) -> tuple[np.ndarray, np.ndarray]:
    """The characters of all names, and where each ends."""
    for name in names:
        if type(name) is not _TYPES[kind] and not (kind == "text" and isinstance(name, str)):
            raise TypeError(f"{what} must be texts, or all of them numbers; one is {name!r:.60}")
    if len(set(names)) < len(names):
        seen = set()
        twice = next(name for name in names if name in seen or seen.add(name))
        raise ValueError(f"{what} must differ; {twice!r:.60} occurs twice")
    try:
        words = [str(name).encode() for name in names]
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} must be text in Unicode; {error.object!a} holds half of a pair of surrogates: "
            "read the file that it comes from with errors='replace'"
        ) from error
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    return np.frombuffer(b"".join(words), np.uint8), ends


def _is_utf8(text: np.ndarray) -> bool:
    """Whether bytes are UTF-8; they are decoded in pieces, since there may be very many."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for begin in range(0, len(text), _PIECE):
            decoder.decode(text[begin : begin + _PIECE].tobytes())
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True
