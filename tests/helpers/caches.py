"""Small cached sets, from files and from blocks of rows."""

from helpers.splits import make_split
from slide.data import xmc
from slide.data.cache import cached
from slide.data.dataset import Block

TRAIN = "3 5 4\n1,3 0:0.5 4:2\n 2:1\n2 1:1\n"
TEST = "2 5 4\n0 3:1\n1 0:1\n"


def forbid(*_, **__):
    raise AssertionError("the files are parsed again")


def opening(folder, **defaults):
    """What opens the files in ``folder/files``, with these options where no others are given."""
    places = {"name": "tiny", "root": folder / "files", "cache": folder / "cache"}
    return lambda **options: xmc(**{**places, **defaults, **options})


def leftovers(cache):
    return sorted(path.name for path in cache.iterdir() if path.suffix == ".tmp")


def blocks_of(split):
    return lambda: [Block(split.features, split.labels)]


def open_blocks(cache, train, state, num_labels=lambda: 30, **options):
    parts = {"train": train, "test": blocks_of(make_split(4, seed=9))}
    options |= {"blocks": lambda part: parts[part](), "num_columns": lambda: (50, num_labels())}
    return cached(cache, name="made", key={"made": 1}, state={"state": state}, **options)
