"""The default recipe: the values in ``conf/``, and sizes that follow from rows and labels."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from slide.utils import checks

_MANY_LABELS = 100_000
# Weights and moments of 10,000,000 outputs take 20 GB at width 256.
_HUGE = 3_000_000
# Outputs in the set of a sample, of a group and of a batch, at most.
_MOST_ACTIVE = {"per_sample": 128, "grouped": 192, "shared": 2048}
# A search by an index saves little for fewer labels.
_SEARCHED_LABELS = 20_000


def find_conf() -> Path:
    """The folder of configurations: that of the checkout, or the copy in the installed package.

    Example:
        >>> from slide.utils.sizes import find_conf
        >>> (find_conf() / "train.yaml").is_file()
        True
    """
    package = Path(__file__).resolve().parents[1]
    folders = [package.parent / "conf", package / "conf"]
    for folder in folders:
        if (folder / "train.yaml").is_file():
            return folder
    raise FileNotFoundError(
        f"there is no train.yaml in {' or '.join(map(str, folders))}: install slide again"
    )


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The values in nested mappings, by dotted key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        whole = f"{above}{key}"
        found |= flat(value, f"{whole}.") if isinstance(value, dict) else {whole: value}
    return found


def _read_defaults() -> dict[str, Any]:
    """The defaults of the command line: of each dotted key, and the choice of each group."""
    conf, found = find_conf(), {}
    load = partial(yaml.load, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    main = load((conf / "train.yaml").read_text())
    for entry in main.pop("defaults"):
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            found[group] = choice
            if choice is not None and (conf / group).is_dir():
                page = load((conf / group / f"{choice}.yaml").read_text()) or {}
                found |= flat(page, f"{group}.")
    return found | flat(main)


# The defaults of the recipe: of each key of the command line, and the choices of groups.
DEFAULTS = _read_defaults()


def batch_size(num_rows: int) -> int:
    """Rows in a step: a power of two in [64, 512]; small sets need steps, large ones save time."""
    checks.whole("num_rows", num_rows, 0)
    return min(max(1 << max(num_rows // 128, 1).bit_length() - 1, 64), 512)


def active_outputs(num_labels: int, mode: str) -> int:
    """Outputs in an active set: a quarter of all, at least 64, and at most what a mode needs."""
    checks.whole("num_labels", num_labels, 1)
    return min(max(num_labels // 4, 64), _MOST_ACTIVE[mode])


def input_betas(betas: Sequence[Any], num_rows: int, batch_size: Any) -> list[Any]:
    """Decays of the moments of the first layer: the second averages over the steps of an epoch.

    Most features occur in few steps, so a shorter average forgets their gradients. What is
    impossible stays as it is, to be refused.

    Example:
        >>> from slide.utils.sizes import input_betas
        >>> input_betas([0.0, 0.99], num_rows=512_000, batch_size=512)
        [0.0, 0.999]
        >>> input_betas([0.0, 0.99], num_rows=5000, batch_size=100)
        [0.0, 0.99]
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        return list(betas)
    longest = 1 - batch_size / max(num_rows, batch_size)
    return [
        max(decay, longest) if i == 1 and isinstance(decay, float) else decay
        for i, decay in enumerate(betas)
    ]


def hidden_width(num_labels: int) -> int:
    """Width of the hidden layer: 512 or 256, as a re-ranker leaves a wider one little to gain.

    It is 128 where weights of 256 would fill the memory of a usual machine.
    """
    checks.whole("num_labels", num_labels, 1)
    if num_labels > _HUGE:
        return 128
    return 256 if num_labels > _MANY_LABELS else 512


def default_search(num_labels: int, ranked: bool) -> str:
    """How outputs are found: by an index, which misses few, for many labels and a re-ranker."""
    return "index" if ranked and num_labels > _SEARCHED_LABELS else "exact"


def validation_cutoffs(num_labels: int) -> list[int]:
    """The cut-offs 1, 3, 5 below the number of labels: with all of them any answer is right."""
    return [k for k in (1, 3, 5) if k == 1 or k < num_labels]


def mean_name(cutoffs: Sequence[int]) -> str:
    """What the mean of precisions is called: ``mean of P@1, P@3 and P@5``, or ``P@1`` alone."""
    *others, last = [f"P@{k}" for k in cutoffs]
    return f"mean of {', '.join(others)} and {last}" if others else last
