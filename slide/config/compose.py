"""Finds and composes configurations, and explains mistakes in overrides."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString
from hydra.errors import HydraException, InstantiationException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, OmegaConfBaseException

from slide.utils import checks

USER_ERRORS = (ValueError, TypeError, OSError)
# Keys that say what a file builds; they are not settings.
INTERNAL = ("_target_", "_partial_", "_args_", "look_up")
# Keys of paths, in which a character may stand that has a meaning in Hydra's grammar.
_PATHS = (
    *("resume", "run_dir", "dataset.root", "dataset.cache", "dataset.file"),
    *("dataset.train_file", "dataset.test_file"),
    *("dataset.train_labels_file", "dataset.test_labels_file"),
)


@contextmanager
def user_errors(overrides: Sequence[str] = ()) -> Iterator[None]:
    """Ends the process with a message after an error that a user can correct.

    Other errors are bugs and pass through.

    Args:
        overrides: those of the command line, ``key=value``; the message calls a value by its key.

    Example:
        >>> from slide.config import user_errors
        >>> with user_errors():
        ...     raise ValueError("threads must be between 0 (all) and 2, not 3")
        Traceback (most recent call last):
        SystemExit: error: threads must be between 0 (all) and 2, not 3
    """
    try:
        with memory_errors():
            yield
    except (InstantiationException, *USER_ERRORS) as error:
        cause = error.__cause__ if isinstance(error, InstantiationException) else error
        if str(error).startswith("Error locating target"):
            first, *_ = str(error).splitlines()
            sys.exit(f"error: {first} (modules are looked for on PYTHONPATH)")
        if not isinstance(cause, USER_ERRORS):
            raise
        sys.exit(f"error: {checks.error_message(cause, overrides)}")
    except ConfigAttributeError as error:
        sys.exit(f"error: the configuration has no {error.full_key}; was it removed with ~?")


@contextmanager
def memory_errors(advice: Callable[[], str] | None = None) -> Iterator[None]:
    """Ends the process with a message if the system does not give the memory that is asked for.

    Args:
        advice: says how to go on, after the message; None: nothing is said.

    Example:
        >>> from slide.config.compose import memory_errors
        >>> with memory_errors():
        ...     raise MemoryError
        Traceback (most recent call last):
        SystemExit: error: there is not enough memory (a request for memory failed): lower ...
    """
    try:
        yield
    except (MemoryError, RuntimeError, InstantiationException) as error:
        said = _no_memory(error.__cause__ if isinstance(error, InstantiationException) else error)
        if said is None:
            raise
        keys = ["network.hidden", "hash.num_tables", "trainer.batch_size"]
        if advice is None:
            keys[1:1] = ["dataset.num_features", "sampler.active"]
            sys.exit(f"error: {said}: lower {', '.join(keys[:-1])} or {keys[-1]}")
        # A resumed run may not change the others.
        new = f"begin a new run with a smaller {', '.join(keys[:-1])} or {keys[-1]}"
        sys.exit(f"error: {said}: lower sampler.active, or {new}; {advice()}")


def _no_memory(error: BaseException | None) -> str | None:
    """A sentence about memory that the system did not give; None for another error."""
    # PyTorch raises a RuntimeError. On the CPU its first line is a place in its sources.
    needed = re.search(r"tried to allocate (\d+) bytes", str(error))
    of_device = re.search(r"out of memory\. Tried to allocate ([\d.]+ \w+)", str(error))
    if isinstance(error, RuntimeError) and needed:
        what = f"{int(needed[1]) / 2**30:,.1f} GiB were asked for at once"
    elif isinstance(error, RuntimeError) and of_device:
        what = f"{of_device[1]} were asked for at once on the device"
    elif isinstance(error, MemoryError):
        what = str(error) or "a request for memory failed"
    else:
        return None
    return f"there is not enough memory ({what})"


def find_conf() -> Path:
    """The folder of configurations: that of the checkout, or the copy in the installed package.

    Raises:
        FileNotFoundError: if the folder is in neither place.

    Example:
        >>> from slide.config import find_conf
        >>> (find_conf() / "train.yaml").is_file()
        True
    """
    package = Path(__file__).resolve().parents[1]
    places = [package.parent / "conf", package / "conf"]
    for place in places:
        if (place / "train.yaml").is_file():
            return place
    raise FileNotFoundError(
        f"there is no train.yaml in {' or '.join(map(str, places))}: install slide again"
    )


def read_config(overrides: Sequence[str]) -> DictConfig:
    """The configuration of a command line with these ``overrides``.

    Args:
        overrides: each is ``group=choice`` or ``key=value``.

    Raises:
        ValueError: for a choice or a key that does not exist, or an override that cannot be read.

    Example:
        >>> from slide.config import read_config
        >>> read_config(["trainer.epochs=3"]).trainer.epochs
        3
    """
    try:
        return _compose(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        # One line, without the places where Hydra looks for files.
        said, _, _ = str(error).partition("\nConfig search path:")
        raise ValueError(_unknown(overrides) or " ".join(said.split())) from error


def readable(override: str, sweeps: bool = False) -> str:
    """An override as Hydra takes it: a path that Hydra would not read as a text is quoted.

    Args:
        override: ``group=choice`` or ``key=value``.
        sweeps: whether commas stand between several paths; else they belong to the path.

    Raises:
        ValueError: with ``sweeps``, for text with commas that Hydra cannot read, unless it names a
            folder that there is.

    Example:
        >>> from slide.config.compose import readable
        >>> readable("resume=results/x_lr=0.1"), readable("seed=1")
        ("resume='results/x_lr=0.1'", 'seed=1')
    """
    key, equals, path = override.partition("=")
    if not equals or checks.override_key(override) not in _PATHS:
        return override
    try:
        found = OverridesParser.create().parse_override(override)
        plain = sweeps if found.is_sweep_override() else isinstance(found.value(), str | None)
    except HydraException as error:
        if sweeps and "," in path and not Path(path).exists():
            raise ValueError(
                f"{override} may be one path or several: quote each path, as in "
                f"\"{key}='a=1','b=2'\""
            ) from error
        plain = False
    return override if plain else f"{key}={QuotedString(path, Quote.single).with_quotes()}"


def read_value(override: str) -> Any:
    """The value of an override ``key=value``.

    Raises:
        ValueError: for an override that cannot be read.

    Example:
        >>> from slide.config.compose import read_value
        >>> read_value("network.hidden=[8,4]"), read_value("sampler.active=null")
        ([8, 4], None)
    """
    return _parsed(override).value()


def _parsed(override: str) -> Override:
    try:
        return OverridesParser.create().parse_override(readable(override))
    except HydraException as error:
        raise ValueError(
            f"{override} cannot be read; overrides are group=choice or key=value"
        ) from error


def check_overrides(overrides: Sequence[str]) -> None:
    """Raises ValueError for the first override that cannot be meant."""
    if said := _unknown(overrides):
        raise ValueError(said)


def settings(config: DictConfig, above: str = "") -> Iterator[str]:
    """The dotted keys of all values in a configuration."""
    for key in config:
        value = config._get_node(key)
        if isinstance(value, DictConfig) and not value._is_none() and not value._is_interpolation():
            yield from settings(value, f"{above}{key}.")
        elif key not in INTERNAL:
            yield f"{above}{key}"


def _compose(overrides: Sequence[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(find_conf()), version_base="1.3"):
        return compose("train", [readable(override) for override in overrides])


def _unknown(overrides: Sequence[str]) -> str | None:
    """A sentence about the first override that does not fit ``conf/``; None: all fit."""
    try:
        parsed = [_parsed(override) for override in overrides]
    except ValueError as error:
        return str(error)
    conf = find_conf()
    groups = {path.name: path for path in sorted(conf.iterdir()) if path.is_dir()}
    chosen = [each for each in parsed if each.key_or_group in groups]
    for each in chosen:
        choices = sorted(path.stem for path in groups[each.key_or_group].glob("*.yaml"))
        for value in _values(each):
            if isinstance(value, str) and value not in choices:
                told = f"the choices of {each.key_or_group} are {', '.join(choices)}"
                near = checks.near_word(value, choices)
                return f"there is no {each.key_or_group}={value}; {told}{near}"
    try:
        # Of a sweep, the first values: which keys there are hardly depends on the others.
        config = _compose([_first(each) for each in chosen if _values(each)])
    except (HydraException, OmegaConfBaseException):
        return None
    known = [*groups, *settings(config)]
    for each in parsed:
        if each not in chosen and not _exists(config, each):
            key = each.key_or_group
            return f"there is no key {key} (in {each.input_line}){_near_key(key, known)}"
    return None


def _exists(config: DictConfig, override: Override) -> bool:
    if override.is_add() or override.is_force_add():
        return True
    if override.key_or_group.startswith(("hydra/", "hydra.")):  # Hydra says what it does not know.
        return True
    *above, last = override.key_or_group.split(".")
    holder = OmegaConf.select(config, ".".join(above)) if above else config
    return isinstance(holder, DictConfig) and last in holder


def _values(override: Override) -> list[Any]:
    """The value of an override; of a sweep, its values; none of a glob, which Hydra looks up."""
    if isinstance(override.value(), Glob):
        return []
    if override.is_sweep_override():
        return [str(value) for value in override.sweep_iterator()]
    return [override.value()]


def _first(override: Override) -> str:
    """The override, with the first of its values if it is one of a sweep."""
    if override.is_sweep_override():
        return f"{override.key_or_group}={_values(override)[0]}"
    return str(override.input_line)


def _near_key(key: str, known: Sequence[str]) -> str:
    """`checks.near_word` among the keys of the same last part, if there are any."""
    last = key.rpartition(".")[2]
    if same := [each for each in known if each.rpartition(".")[2] == last]:
        either = f"; did you mean {' or '.join(same)}?"
        return either if key == last else checks.near_word(key, same, 0)
    # Keys of other groups are alike by chance, as share of a ranker and seed of a trainer.
    return checks.near_word(key, known, 0.7 if "." in key else 0.6)
