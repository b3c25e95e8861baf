"""Data sets from the command line; the configuration is that of train.py."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from slide.data import SparseDataset, transform
from slide.data.describe import describe, folder_bytes
from slide.data.transforms import check_transform

USAGE = """\
Fetches, reads and transforms a data set, as train.py does before it trains.

  python -m slide.data describe [dataset=choice] [dataset.key=value ...] [transform.key=value ...]
  python -m slide.data prepare  [dataset=choice] [dataset.key=value ...] [transform.key=value ...]

describe prints a table of the data set; prepare only says where its arrays lie, and their size.
The keys are those of train.py: python train.py --help explains them.
"""
USER_ERRORS = (ValueError, TypeError, OSError)


@contextmanager
def user_errors() -> Iterator[None]:
    """Ends the process with a message for errors that users can mend; others would be bugs."""
    try:
        yield
    except (InstantiationException, *USER_ERRORS) as error:
        cause = error.__cause__ if isinstance(error, InstantiationException) else error
        if not isinstance(cause, USER_ERRORS):
            raise
        sys.exit(f"error: {cause}")


def find_conf() -> Path:
    """The folder of configurations: beside the package, or in the working directory.

    Raises:
        FileNotFoundError: it is in neither place.
    """
    places = [parent / "conf" for parent in (Path(__file__).resolve().parents[2], Path.cwd())]
    for place in places:
        if (place / "train.yaml").is_file():
            return place
    raise FileNotFoundError(
        f"there is no train.yaml in {' or '.join(map(str, places))}; "
        "run this in a checkout of slide, or use slide.data as a library"
    )


def read_config(overrides: Sequence[str]) -> DictConfig:
    """What train.py would run with.

    Raises:
        ValueError: for a choice or a key that does not exist.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(find_conf()), version_base="1.3"):
            return compose("train", list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        # One line, without the places where Hydra looks for files.
        said, _, _ = str(error).partition("\nConfig search path:")
        raise ValueError(" ".join(said.split())) from error


def open_dataset(config: DictConfig) -> SparseDataset:
    """The data set, fetched, read and transformed where that was not done before."""
    check_transform(**config.transform)  # before hours of reading
    return transform(instantiate(config.dataset), **config.transform)


def show_place(data: SparseDataset) -> str:
    """Where the arrays of a data set lie, and how large they are."""
    assert data.folder is not None
    return f"{data.folder}  {folder_bytes(data.folder) / 1e6:,.1f} MB\n"


COMMANDS = {"describe": describe, "prepare": show_place}


def main(arguments: Sequence[str]) -> None:
    """Runs a command; ends the process with a message where that fails."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE, end="")
        return
    command, *overrides = arguments
    if command not in COMMANDS:
        sys.exit(f"error: the command must be {' or '.join(COMMANDS)}, not {command!r}")
    try:
        with user_errors():
            print(COMMANDS[command](open_dataset(read_config(overrides))), end="")
    except KeyboardInterrupt:
        sys.exit("interrupted")


if __name__ == "__main__":
    main(sys.argv[1:])
