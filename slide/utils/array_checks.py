"""Arrays that come from a file, against what they must be before a kernel reads them.

Kernels trust their arguments: a number of a row that is too large is memory outside of an array.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from slide.sparse import CSR, Pattern
from slide.utils.checks import shortened


class Expected(NamedTuple):
    """What an array must be; ``dtype`` is how its type's name begins, None any size or number."""

    shape: tuple[int | None, ...]
    dtype: str
    least: float | None = None
    most: float | None = None
    finite: bool = True


def check_arrays(what: str, found: Mapping[str, Any], expected: Mapping[str, Expected]) -> None:
    """Raise ValueError, which names the array, unless all arrays are as expected."""
    for name, wanted in expected.items():
        if name not in found:
            raise ValueError(f"{what} is damaged: it lacks {name}")
        fault = _fault(found[name], wanted)
        if fault:
            raise ValueError(f"{what} is damaged: {name} must {shortened(fault)}")


def is_plain(array: np.ndarray | Tensor) -> bool:
    """Whether all numbers of a tensor are in memory, as of an array; ``torch.load`` reads others.

    Of few bytes PyTorch makes a tensor of any size, whose copies fill the memory.
    """
    if isinstance(array, np.ndarray):
        return True
    try:
        held = array.untyped_storage().nbytes()
        return not array.is_meta and held >= array.numel() * array.element_size()
    except (RuntimeError, TypeError):  # Sparse or quantized, without memory, or an exotic type.
        return False


def check_offsets(what: str, name: str, offsets: np.ndarray, end: int) -> None:
    """Raise ValueError unless offsets begin with 0, never fall, and end with ``end``."""
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        raise ValueError(f"{what} is damaged: {name} must rise from 0 to {end}")


def check_counter(what: str, name: str, value: Any) -> int:
    """The value as an integer; raise ValueError unless it is a whole number of at least 0."""
    number = value
    if isinstance(value, np.ndarray | Tensor) and is_plain(value) and math.prod(value.shape) == 1:
        number = value.item()
    shown = shortened(repr(value))
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < 2**63:
        raise ValueError(f"{what} is damaged: {name} must be a number of at least 0, not {shown}")
    if number != int(number):
        raise ValueError(f"{what} is damaged: {name} must be a whole number, not {shown}")
    return int(number)


def _fault(array: Any, wanted: Expected) -> str:
    """What an array must do, and does not; empty if it is as expected."""
    if not isinstance(array, (np.ndarray, torch.Tensor)):
        return f"be an array, not {type(array).__name__}"
    if not is_plain(array):
        return f"be a plain tensor of {tuple(array.shape)}, with all numbers in memory"
    shape, dtype = tuple(array.shape), str(array.dtype).removeprefix("torch.")
    fits = len(shape) == len(wanted.shape) and all(
        size is None or size == own for size, own in zip(wanted.shape, shape, strict=True)
    )
    if not fits or not dtype.startswith(wanted.dtype):
        sizes = ", ".join("any" if size is None else str(size) for size in wanted.shape)
        return f"be ({sizes}) {wanted.dtype}, not {shape} {dtype}"
    floats = "float" in dtype and wanted.finite
    if 0 in shape or not (floats or wanted.least is not None or wanted.most is not None):
        return ""
    least, most = _ends(array)
    # A NaN is the least and the largest number of its array.
    if floats and not (-np.inf < least <= most < np.inf):
        return "hold finite numbers only"
    bounds = (
        -np.inf if wanted.least is None else wanted.least,
        np.inf if wanted.most is None else wanted.most,
    )
    if not bounds[0] <= least <= most <= bounds[1]:
        return f"lie in [{bounds[0]}, {bounds[1]}], not in [{least}, {most}]"
    return ""


def _ends(array: np.ndarray | Tensor) -> tuple[float, float]:
    """The least and the largest number, from one pass over the array where torch has its type."""
    if not isinstance(array, Tensor):
        return array.min().item(), array.max().item()
    least, most = torch.aminmax(array)
    return least.item(), most.item()


class Stored:
    """Numbers and arrays of a part of a folder; a ValueError names the file and what is wrong."""

    def __init__(
        self,
        numbers: Any,
        arrays: Mapping[str, Any],
        numbers_file: str = "the list of numbers",
        arrays_file: str = "the file of arrays",
        prefix: str = "",
    ):
        self._files, self._prefix, self.arrays = (numbers_file, arrays_file), prefix, arrays
        if not isinstance(numbers, dict):
            raise ValueError(f"{numbers_file} is damaged: {prefix[:-1]} must be an object")
        self.numbers: dict[str, Any] = numbers

    def __contains__(self, name: str) -> bool:
        """Whether there is such an array."""
        return self._prefix + name in self.arrays

    def part(self, name: str, numbers: Any) -> "Stored":
        """The part with these numbers, whose arrays are called ``name.<array>`` here."""
        return Stored(numbers, self.arrays, *self._files, f"{self._prefix}{name}.")

    def of(self, numbers: dict[str, Any], arrays: Mapping[str, Any]) -> "Stored":
        """Other numbers of this part, and arrays by their names in it, of the same files."""
        whole = {self._prefix + name: array for name, array in arrays.items()}
        return Stored(numbers, whole, *self._files, self._prefix)

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object."""
        return self.part(name, self.get(name)).numbers

    def lists(self, name: str) -> list[Any]:
        """A list of lists."""
        return self._listed(name, lambda each: isinstance(each, list | tuple), "lists")

    def objects(self, name: str) -> list[Any]:
        """A list of JSON objects."""
        return self._listed(name, lambda each: isinstance(each, dict), "objects")

    def text(self, name: str) -> str:
        """A text."""
        found = self.get(name)
        if not _is_text(found):
            self._refuse(name, "be a text")
        return found

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        return self._listed(name, _is_text, "texts")

    def _listed(self, name: str, fits: Callable[[Any], bool], what: str) -> list[Any]:
        found = self.get(name)
        if not isinstance(found, list) or not all(map(fits, found)):
            self._refuse(name, f"be a list of {what}")
        return found

    def get(self, name: str) -> Any:
        """A JSON value."""
        if name not in self.numbers:
            raise ValueError(f"{self._files[0]} is damaged: it lacks {self._prefix}{name}")
        return self.numbers[name]

    def count(self, name: str, least: int = 0, most: int = 2**62) -> int:
        """A whole number in a range."""
        found = check_counter(self._files[0], self._prefix + name, self.get(name))
        if not least <= found <= most:
            self._refuse(name, f"lie in [{least}, {most}]")
        return found

    def exactly(self, name: str, value: int) -> int:
        """A whole number that follows from other parts of the folder."""
        if self.count(name) != value:
            self._refuse(name, f"be {value}")
        return value

    def number(self, name: str, least: float = -np.inf, most: float = np.inf) -> float:
        """A finite number in a range."""
        found = self.get(name)
        if not _is_number(found) or not least <= found <= most:
            self._refuse(name, f"be a finite number in [{least}, {most}]")
        return float(found)

    def list_of(self, name: str, size: int | None = None, whole: bool = False) -> list[Any]:
        """A list of finite numbers, or of whole numbers of at least 1."""
        found = self.get(name)
        if not isinstance(found, list) or size not in (None, len(found)):
            self._refuse(name, f"be a list of {'some' if size is None else size} numbers")
        for each in found:
            if not (_is_number(each) if not whole else type(each) is int and 0 < each < 2**62):
                self._refuse(name, f"hold {'whole numbers above 0' if whole else 'finite numbers'}")
        return found if whole else list(map(float, found))

    def flag(self, name: str) -> bool:
        """True or false."""
        return self.one_of(name, (False, True))

    def one_of(self, name: str, values: Iterable[Any]) -> Any:
        """One of some values."""
        found, values = self.get(name), list(values)
        if type(found) not in map(type, values) or found not in values:
            self._refuse(name, f"be one of {', '.join(map(str, values))}")
        return found

    def tensor(self, name: str, expected: Expected) -> Tensor:
        """A tensor of the file itself: a view, if that is one."""
        whole = self._prefix + name
        check_arrays(self._files[1], self.arrays, {whole: expected})
        found = self.arrays[whole]
        return found if isinstance(found, Tensor) else torch.from_numpy(found)

    def array(self, name: str, expected: Expected) -> np.ndarray:
        """An array of the file itself: a view, if that is one."""
        return self.tensor(name, expected).numpy()

    def ascending(self, name: str, expected: Expected, like: str = "int64") -> np.ndarray:
        """An array whose numbers do not fall, where they are read as another type of their size."""
        found = self.array(name, expected)
        numbers = found.view(like)
        if (numbers[1:] < numbers[:-1]).any():
            self.refuse_array(name, "not fall")
        return found

    def pattern(
        self, name: str, rows: int | None, columns: int, fields: Iterable[str] = Pattern._fields
    ) -> Pattern:
        """Rows of column numbers."""
        bounds, indices = (f"{name}.{field}" for field in fields)
        count = None if rows is None else rows + 1
        indptr = self.array(bounds, Expected((count,), "int64"))
        found = self.array(indices, Expected((None,), "int32", 0, columns - 1))
        check_offsets(self._files[1], self._prefix + bounds, indptr, len(found))
        return Pattern(indptr, found)

    def csr(self, name: str, rows: int | None, columns: int, least: float | None = None) -> CSR:
        """A sparse matrix; its values are finite, and ``least`` at least."""
        pattern = self.pattern(name, rows, columns)
        expected = Expected((len(pattern.indices),), "float32", least)
        values = self.array(f"{name}.values", expected)
        return CSR(pattern.indptr, pattern.indices, values)

    def refuse_array(self, name: str, must: str) -> NoReturn:
        """Raise the error for an array that must be something, such as "not fall"."""
        raise ValueError(f"{self._files[1]} is damaged: {self._prefix}{name} must {must}")

    def refuse(self, must: str) -> NoReturn:
        """Raise the error for numbers that must together be something."""
        what = f"{self._prefix[:-1]} must ".lstrip() + shortened(must)
        raise ValueError(f"{self._files[0]} is damaged: {what}")

    def _refuse(self, name: str, must: str) -> NoReturn:
        shown = f"{self.numbers[name]!r}"[:60]
        what = f"{self._prefix}{name} must {must}, not {shown}"
        raise ValueError(f"{self._files[0]} is damaged: {what}")


def _is_text(value: Any) -> bool:
    """Whether it is text that can be written: JSON may spell half of a pair of surrogates."""
    return isinstance(value, str) and value == value.encode(errors="replace").decode()


def _is_number(value: Any) -> bool:
    """Whether it is a finite number of JSON."""
    return type(value) in (int, float) and -1e300 < value < 1e300
