"""Settings that a run chooses for its data, by short races (``search=quick``)."""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial

from omegaconf import DictConfig, OmegaConf

from slide import checks
from slide.bars import Bar, say
from slide.config.compose import find_conf, settings
from slide.config.defaults import FULL
from slide.training.race import Contender, race, run_alone

# Settings of a set, whoever chooses it.
_OF_SETS = ("active", "mode", "weighting", "candidate_share")
# A contender is made from these groups; the other keys are the same for all.
_RACED = ("network", "sampler", "hash", "schedule", "loss", "optimizer")
Make = Callable[[DictConfig, int], Contender]


def race_steps(search: DictConfig, steps_per_epoch: int) -> int:
    """Number of steps of a contender.

    Args:
        search: the group ``search`` of a configuration.
        steps_per_epoch: steps in a pass over the rows to learn from.

    Raises:
        ValueError: for a number out of range.
    """
    checks.positive("search.epochs", search.epochs)
    checks.whole("search.most_steps", search.most_steps, 2)
    return max(2, min(round(search.epochs * steps_per_epoch), search.most_steps))


def variants(config: DictConfig, given: Collection[str] = ()) -> dict[str, dict[str, DictConfig]]:
    """For each key of ``search.tries``, the configurations with another value of it.

    Args:
        config: from `slide.config.read_config`.
        given: keys that are not changed, since a user set them; nor are the groups that hold them.

    Raises:
        ValueError: for a key or a value that does not exist or that a race does not compare, or two
            lines with the same key.
    """
    keys, found = [], {}
    for line in config.search.tries:
        key, _, values = str(line).partition("=")
        _check_raced(key, keys)
        keys.append(key)
        if not _is_fixed(key, given):
            # A comma inside of brackets belongs to a value.
            names = re.split(r",(?![^\[]*\])", values)
            each = {name: with_value(config, key, name) for name in names}
            if key == "sampler":
                each.pop(_present(config, key), None)
            found[key] = {name: other for name, other in each.items() if other != config}
    return found


def _check_raced(key: str, before: Collection[str]) -> None:
    """Raise ValueError for a key that a race does not compare, or that an earlier line has."""
    if key == "sampler.mode":  # Other settings depend on it.
        raise ValueError(f"search.tries: {key} cannot be raced: give it by {key}=...")
    if key.partition(".")[0] not in _RACED:
        raise ValueError(
            f"search.tries: {key} cannot be raced: a race compares {', '.join(_RACED[:-1])} and "
            f"{_RACED[-1]}, and their keys"
        )
    if key in before:
        raise ValueError(f"search.tries: two lines try {key}: name all its values in one")


def _is_fixed(key: str, given: Collection[str]) -> bool:
    """Whether a user set a key, or a key of a group that another choice would put back."""
    lost = set(given) - {f"sampler.{name}" for name in _OF_SETS}
    return key in given or any(each.startswith(f"{key}.") for each in lost)


def choose_settings(
    config: DictConfig, make: Make, steps: int, given: Collection[str] = ()
) -> DictConfig:
    """The configuration with the settings that won their races.

    A sentence on each race is printed, and kept in ``search.chosen``.

    One setting after another is changed. The best value takes the place of the present one if its
    precision on held-out rows is higher by the share ``search.least_gain`` of it.

    Args:
        config: without null settings; see `slide.config.fill_in`.
        make: makes the contender of a configuration for a race of a number of steps.
        steps: number of steps of a race; see `race_steps`.
        given: keys that are not changed, since a user set them.

    Raises:
        ValueError: for a key or a value that does not exist.
    """
    checks.not_negative("search.least_gain", config.search.least_gain)
    keys = [key for key, others in variants(config, given).items() if others]
    if not keys:
        return config
    standing, sentences = run_alone(partial(make, config, steps)), []
    for key in Bar(keys, "search", leave=False):
        others = variants(config, given)[key]
        found = race({name: partial(make, other, steps) for name, other in others.items()})
        best = max(found, key=lambda name: found[name].end)
        # A loss that is not finite counts -1.
        better = found[best].end > max(standing.end, 0) * (1 + config.search.least_gain)
        rivals = {_present(config, key): standing.end, best: found[best].end}
        sentences.append(f"{key}: {_sentence(rivals, better)} after {steps} steps")
        say(sentences[-1])
        if better:
            config, standing = others[best], found[best]
    config = config.copy()
    config.search.chosen = sentences
    return config


def with_value(config: DictConfig, key: str, value: str) -> DictConfig:
    """A copy of a configuration with another value.

    Args:
        config: from `slide.config.read_config`.
        key: a dotted key, or the name of a group of ``conf/``.
        value: the value as on the command line, or the choice of the group.

    Raises:
        ValueError: for a key or a choice that does not exist.

    Example:
        >>> from slide.config import read_config
        >>> from slide.config.search import with_value
        >>> config = with_value(read_config([]), "loss", "softmax")
        >>> with_value(config, "network.dropout", "0.5").network.dropout
        0.5
    """
    config = config.copy()
    if key == "sampler":
        return _with_sampler(config, value)
    group, _, _ = key.partition(".")
    path = find_conf() / group / f"{value}.yaml"
    if "." in key and key in settings(config):
        config.merge_with_dotlist([f"{key}={value}"])
    elif "." not in key and path.exists():
        OmegaConf.set_struct(config, False)
        config[group] = OmegaConf.load(path)
        OmegaConf.set_struct(config, True)
    else:
        raise ValueError(f"search.tries: there is no {key}={value}")
    return config


def _with_sampler(config: DictConfig, name: str) -> DictConfig:
    """The configuration with another sampler; the size of a set and how it is filled stay."""
    path = find_conf() / "sampler" / f"{name}.yaml"
    if name == "auto" or not path.exists():
        raise ValueError(
            f"search.tries: there is no sampler={name}; take one of {', '.join(_sampler_names())}"
        )
    kept = {key: value for key, value in config.sampler.items() if key in _OF_SETS}
    if kept.get("active") == "all":
        kept["active"] = None  # Filled in again, like that of a new sampler.
    OmegaConf.set_struct(config, False)
    config.sampler = OmegaConf.merge(OmegaConf.load(path), kept)
    OmegaConf.set_struct(config, True)
    return config


def _sampler_names() -> list[str]:
    """The samplers that can be raced."""
    return sorted({path.stem for path in (find_conf() / "sampler").glob("*.yaml")} - {"auto"})


def _sampler_name(sampler: DictConfig) -> str:
    if sampler._target_ == FULL or sampler.active == "all":
        return "full"
    proposer = sampler.get("proposer")
    if proposer is None:
        return "uniform"
    kind = proposer._target_.removeprefix("slide.").removesuffix("Proposer").lower()
    known = {"neighbour": "neighbours"}.get(kind, kind)
    return known if known in _sampler_names() else "as it is"


def _present(config: DictConfig, key: str) -> str:
    """The present value of a key; of a group, the name of its file."""
    if key == "sampler":
        return _sampler_name(config.sampler)
    found = OmegaConf.select(config, key)
    if "." in key:
        return str(found)
    names = [path.stem for path in sorted((find_conf() / key).glob("*.yaml"))]
    return next((name for name in names if with_value(config, key, name) == config), "as it is")


def _sentence(rivals: Mapping[str, float], better: bool) -> str:
    """``softmax, 16.9 against 15.8 of squared_hinge``; the first rival is the present value."""
    first, second = rivals
    if better:
        first, second = second, first
    return f"{first}, {100 * rivals[first]:.1f} against {100 * rivals[second]:.1f} of {second}"
