"""Small cached sets, from files and from blocks of rows."""

from helpers.splits import make_split
from slide.data.cache import cached
from slide.data.dataset import Block

TRAIN = "3 5 4\n1,3 0:0.5 4:2\n 2:1\n2 1:1\n"
TEST = "2 5 4\n0 3:1\n1 0:1\n"


def forbid(*_, **__):
    raise AssertionError("the files are parsed again")


def leftovers(cache):
    return sorted(path.name for path in cache.iterdir() if path.suffix == ".tmp")


def blocks_of(split):
    return lambda: [Block(split.features, split.labels)]


def open_blocks(cache, train, state, **options):
    test = make_split(4, seed=9)
    given = {"num_features": 50, "num_labels": 30, "train": train, "test": blocks_of(test)}
    options = given | options
    return cached(cache, name="made", key={"made": 1}, state={"state": state}, **options)
