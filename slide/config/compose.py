"""Composes configurations, of new and of resumed runs, and explains mistakes in overrides."""

import copy
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from inspect import signature
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Quote, QuotedString
from hydra.errors import HydraException, InstantiationException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, OmegaConfBaseException

from slide.training import Trainer
from slide.training.loggers import make_loggers
from slide.utils import checks
from slide.utils.checks import override_key, typed_key
from slide.utils.files import read_text, write_text
from slide.utils.progress_bar import fail, log
from slide.utils.run_folders import check_links, check_plain_yaml
from slide.utils.sizes import find_conf, flat

# The configuration in the folder of a run.
CONFIG = "config.yaml"
USER_ERRORS = (ValueError, TypeError, OSError)
# Last parts of keys that name what a file builds or explain it.
_NO_SETTINGS = ("_target_", "_partial_", "_args_", "look_up", "hint", "defaults")
# Keys of paths, in which a character may stand that has a meaning in Hydra's grammar.
_PATHS = (
    *("resume", "run_dir", "dataset.root", "dataset.cache", "dataset.file"),
    *("dataset.train_file", "dataset.test_file", "dataset.path", "dataset.test_path"),
    *("dataset.train_labels_file", "dataset.test_labels_file"),
)
# Settings that may change when a run is resumed. Other settings would not fit its checkpoint.
REPLACEABLE = {
    *("trainer.epochs", "trainer.max_epochs", "trainer.max_minutes", "trainer.max_steps"),
    *("trainer.checkpoint_every", "trainer.keep_checkpoints", "trainer.log_every"),
    *("trainer.patience", "trainer.share_cores"),
    *("network.input_dropout", "network.dropout"),
    *("trainer.eval_every", "trainer.eval_samples", "trainer.evaluation", "trainer.recall_every"),
    *("optimizer.lr", "lr_schedule.warmup", "lr_schedule.floor"),
    *("sampler.active", "sampler.candidate_share", "runtime.threads", "runtime.deterministic"),
    *("runtime.device", "runtime.timeout", "runtime.products"),
    *("dataset.root", "dataset.cache", "report"),
}
# Keys that a resumed run takes from its command line alone.
_OF_CALLER = ("resume", "allow_targets", "logger")
# Keys that no comparison of runs needs.
_ASIDE = (*_OF_CALLER, "report", *_PATHS)
# Names of settings in other libraries, and the last part of their keys here.
_SYNONYMS = {"learning_rate": "lr", "num_epochs": "epochs", "n_epochs": "epochs"}
_SYNONYMS |= {"random_state": "seed", "output_dir": "run_dir", "checkpoint": "resume"}
# Other words, and what stands for them.
_WAYS = {
    "k": "hash.K",
    "l": "hash.L",
    "tables": "hash.L",
    "rebuild": "schedule=fixed schedule.every",
}
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")
# A text that stands for another value, or that makes Hydra build something.
_REFERENCE = re.compile(r"\$\{|^\?\?\?$")
_CODE = re.compile(rf"{_REFERENCE.pattern}|\b_(target|args|partial|recursive|convert)_\b")
# Packages whose names the configuration of a resumed run may use.
_PACKAGES = ("slide", "slide.data", "slide.ranking", "slide.sampling", "slide.training")
# What a run notes of its command line.
_NOTED = ("words", "choices")
_NOWHERE = object()
# The default, which Hydra does not take as a choice.
_NO_RECIPE = "recipe=null"
_COMPOSING = Lock()  # Hydra has one state for all threads.


@contextmanager
def user_errors(overrides: Sequence[str] = ()) -> Iterator[None]:
    """Ends the process with a message after an error that a user can correct.

    Other errors are bugs and pass through. The message calls a value by its key in ``overrides``.

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
            fail(f"{first} (modules are looked for on PYTHONPATH)")
        if cause is None:
            fail(" ".join(str(error).split()))
        if not isinstance(cause, USER_ERRORS):
            raise
        said = checks.error_message(cause, overrides).partition("\nfull_key:")[0]
        if isinstance(cause, OmegaConfBaseException):  # Lines follow that tell where.
            said = said.partition("\n")[0]
        fail(said)
    except ConfigAttributeError as error:
        fail(f"the configuration has no {error.full_key}; was it removed with ~?")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Inside of it, an error of a part is raised as it is, not as one of Hydra that names it."""
    try:
        yield
    except InstantiationException as error:
        raise (error.__cause__ or error) from None


@contextmanager
def memory_errors(advice: Callable[[], str] | None = None) -> Iterator[None]:
    """Ends the process with a message if memory is refused; ``advice`` says how to go on."""
    try:
        yield
    except (MemoryError, RuntimeError, InstantiationException) as error:
        cause = error.__cause__ if isinstance(error, InstantiationException) else error
        if isinstance(cause, MemoryError):
            what = str(cause) or "a request for memory failed"
        # PyTorch raises a RuntimeError. On the CPU its first line is a line of its sources.
        elif needed := re.search(r"tried to allocate (\d+) bytes", str(cause)):
            what = f"{int(needed[1]) / 2**30:,.1f} GiB were asked for at once"
        elif needed := re.search(r"out of memory\. Tried to allocate ([\d.]+ \w+)", str(cause)):
            what = f"{needed[1]} were asked for at once on the device"
        else:
            raise
        said = f"there is not enough memory ({what}): lower"
        if advice is None:
            keys = "network.hidden, dataset.num_features, sampler.active, hash.num_tables"
            fail(f"{said} {keys} or trainer.batch_size")
        # A resumed run may not change the others.
        new = "a smaller network.hidden, hash.num_tables or trainer.batch_size"
        fail(f"{said} sampler.active, or begin a new run with {new}; {advice()}")


def read_config(overrides: Sequence[str]) -> DictConfig:
    """The configuration of a command line with these ``overrides``.

    Raises:
        ValueError: for a choice or a key that does not exist, or an override that cannot be read.

    Example:
        >>> from slide.config import read_config
        >>> read_config(["trainer.epochs=3"]).trainer.epochs
        3
    """
    check_overrides(overrides)
    try:
        return _compose(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        # One line, without the folders in which Hydra searches.
        said, _, _ = str(error).partition("\nConfig search path:")
        raise ValueError(" ".join(said.split())) from error


def choose(choices: Mapping[str, str], values: Mapping[str, Any]) -> DictConfig:
    """The configuration of choices of groups, and values of keys that are Python's objects."""
    words = [f"{group}={choice}" for group, choice in choices.items()]
    check_overrides([*words, *(f"{key}={value}" for key, value in values.items())])
    config = copy.deepcopy(_composed(tuple(words))[0])
    for key, value in values.items():
        OmegaConf.update(config, key, value)
    return config


def _compose(overrides: Sequence[str], **options: bool) -> DictConfig:
    with _COMPOSING:
        hydra = GlobalHydra.instance()
        before, hydra.hydra = hydra.hydra, None  # The caller may be a program of Hydra.
        try:
            with initialize_config_dir(str(find_conf()), version_base="1.3"):
                words = [readable(each) for each in overrides if each != _NO_RECIPE]
                return compose("train", words, **options)
        finally:
            hydra.hydra = before


def readable(override: str, sweeps: bool = False) -> str:
    """An override as Hydra takes it: whole keys, and paths in quotes that are no text without."""
    if any("\ud800" <= letter < "\ue000" for letter in override):  # Bytes that are no text.
        raise ValueError(
            f"{override!a} cannot be read as {sys.getfilesystemencoding()}, the encoding of the "
            "locale: set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        )
    key, equals, path = override.partition("=")
    if typed_key(override) != override_key(override):
        return f"{override_key(override)}{equals}{path}"
    if not equals or override_key(override) not in _PATHS:
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


def _parsed(override: str, sweeps: bool = False) -> Override:
    word = readable(override, sweeps)
    if "=" not in word and not word.startswith("~"):
        raise ValueError(_no_setting(word))
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException as error:
        raise ValueError(
            f"{override} cannot be read; overrides are group=choice or key=value, and a value with "
            "a comma, a colon or a bracket is quoted twice for a shell: 'key=\"a,b\"'"
        ) from error


def as_dict(config: DictConfig) -> dict[str, Any]:
    """A configuration as Python's own objects, with all values resolved."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))


def texts_in(tree: object) -> Iterator[str]:
    """All texts in nested values, keys as well."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for pair in tree.items():
            yield from texts_in(pair)
    elif isinstance(tree, list | tuple | set):
        for each in tree:
            yield from texts_in(each)


def code_in(tree: object) -> str | None:
    """The first text in nested values by which a configuration would run something; or None."""
    return next(filter(_CODE.search, texts_in(tree)), None)


def _without_references(tree: object) -> DictConfig:
    """A configuration in which nothing is resolved any more: what it says once, it says always."""
    if any(map(_REFERENCE.search, texts_in(tree))):
        raise ValueError("it refers to other values")
    if not isinstance(tree, dict):
        raise ValueError("it has no keys")
    return OmegaConf.create(tree)


def combinations(overrides: Sequence[str], sweeps: bool = True) -> list[list[str]]:
    """The overrides of each run of a sweep; mistakes are logged, and raised if no run fits."""
    runs = [list(words) for words in product(*sweep_values(overrides, sweeps).values())]
    mistakes = Counter[str]()
    for words in runs:
        try:
            check_overrides(words)
        except ValueError as error:
            mistakes[str(error)] += 1
            if mistakes.total() == len(runs):
                raise ValueError(next(iter(mistakes))) from error
    for said, count in mistakes.items():
        log(f"warning   {count} of {checks.counted(len(runs), 'run')} cannot be: {said}")
    return runs


def sweep_values(overrides: Iterable[str], sweeps: bool = True) -> dict[str, list[str]]:
    """The overrides that a command line has of each key, one for each of its values."""
    values: dict[str, list[str]] = {}
    for word in overrides:
        each = _parsed(word, sweeps)
        key, value, typed = each.get_key_element(), each.value(), word.partition("=")[0]
        if isinstance(value, Glob):
            values[key] = [f"{key}={choice}" for choice in value.filter(_choices(key))]
            if not values[key]:
                raise ValueError(f"{word} finds no file: a glob is one over the choices of a group")
        elif each.is_discrete_sweep():
            values[key] = [f"{typed}={one}" for one in each.sweep_string_iterator()]
        else:
            values[key] = [word]
    return values


def _groups() -> list[str]:
    return sorted(path.name for path in find_conf().iterdir() if path.is_dir())


def _choices(group: str) -> list[str]:
    return sorted(path.stem for path in (find_conf() / group).glob("*.yaml"))


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise ValueError with a sentence about the first override that does not fit ``conf/``."""
    parsed = [_parsed(override) for override in overrides]
    for each in parsed:
        if each.is_sweep_override():
            key, _, values = str(each.input_line).partition("=")
            value, several = each.value(), f"{each.input_line} has several values: add -m for a run"
            a_list = isinstance(value, ChoiceSweep) and value.simple_form
            told = f"; a list is {key}=[{values}]" if a_list else ""
            raise ValueError(f"{several} of each{told}")
    groups = _groups()
    chosen = [each for each in parsed if each.key_or_group in groups]
    for each in chosen:
        group, value, known = each.key_or_group, each.value(), _choices(each.key_or_group)
        if not each.is_delete() and each.input_line != _NO_RECIPE and value not in known:
            near = checks.near_word(str(value), known)
            told = f"the choices of {group} are {', '.join(known)}{near}"
            raise ValueError(f"there is no {str(each.input_line).lstrip('+')}; {told}")
    try:
        config, choices = _composed(tuple(str(each.input_line) for each in chosen))
    except (HydraException, OmegaConfBaseException):  # Hydra's own sentence is said.
        return
    for each in parsed:
        key = each.key_or_group
        if "???" in texts_in([each.value()]):
            raise ValueError(f"{each.input_line}: ??? is no value; --help {key} explains the key")
        if each in chosen:
            continue
        above, _, last = key.rpartition(".")
        holder = OmegaConf.select(config, above) if above else config
        adds = each.is_add() or each.is_force_add()
        if isinstance(holder, DictConfig) and last in holder:
            part, value = OmegaConf.select(config, key), each.value()
            kept = each.is_delete() or isinstance(value, dict) or (value is None and above)
            if isinstance(part, DictConfig) and not kept and not adds:
                way = f"; did you mean {_WAYS[last]}={value}?" if last in _WAYS else ""
                told = way or f"; --help {key} explains them"
                raise ValueError(f"{each.input_line}: {key} has keys of its own{told}")
            continue
        if key.startswith(("hydra/", "hydra.")):  # Hydra names what it does not know.
            continue
        if adds and _is_used(config, each, parsed):
            continue
        group, _, own = key.partition(".")
        said = f"there is no key {key} (in {each.input_line})"
        if owners := [choice for choice in _choices(group) if own in _own_keys(group, choice)]:
            told = f"{own} belongs to {group}={' and '.join(owners)}"
            keys = leaves(OmegaConf.to_container(config[group])) if group in config else {}
            has = f"; {choices[group]} has {', '.join(keys)}" if keys else ""
            raise ValueError(f"{said}: {told}{has}")
        near = near_key(key, [*groups, *leaves(as_dict(config))])
        raise ValueError(f"{said}{near or '; --help lists all keys'}")


def _no_setting(word: str) -> str:
    """What to type in place of a word that is neither group=choice nor key=value."""
    path, groups = Path(word), _groups()
    of = [group for group in groups if word in _choices(group)]
    if path.suffix.lower() in _TABLES:
        way = f"dataset=table dataset.path={word} reads a table"
    elif path.is_dir() and (path / CONFIG).exists():
        way = f"resume={word} goes on with this run"
    elif path.is_dir():
        way = f"dataset=xmc dataset.root={word} reads its files"
    elif path.suffix in (".txt", ".svm", ".svmlight"):
        way = f"dataset=xmc dataset.root={path.parent} dataset.train_file={path.name} reads rows"
    elif of:
        way = f"did you mean {of[0]}={word}?"
    elif word in groups:
        way = f"{word}={' | '.join(_choices(word))} is a choice, and --help {word} explains them"
    else:
        near = near_key(word, list(leaves(as_dict(_composed(())[0]))))
        way = f"settings are group=choice or key=value, and --help explains them{near}"
    return f"{word} is no setting; {way}"


def _is_used(config: DictConfig, added: Override, parsed: Sequence[Override]) -> bool:
    """Whether something takes an added key: what is built there, or another value by reference."""
    key = added.key_or_group
    if any(f"${{{key}" in text for each in parsed for text in texts_in([each.value()])):
        return True
    names = key.split(".")
    for count in range(len(names) - 1, 0, -1):
        above, name = ".".join(names[:count]), names[count]
        part = OmegaConf.select(config, above)
        if not isinstance(part, DictConfig):
            continue
        # A part of the user's own takes what it takes.
        if name.startswith("_") or any(e.key_or_group == f"{above}._target_" for e in parsed):
            return True
        taken = signature(get_object(part._target_)).parameters if "_target_" in part else {}
        return name in taken or any(each.kind == each.VAR_KEYWORD for each in taken.values())
    return False


@lru_cache(maxsize=64)
def _composed(choices: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
    """The configuration of some choices, and the choice of each group."""
    config = _compose(choices, return_hydra_config=True)
    chosen = {group: config.hydra.runtime.choices.get(group) for group in _groups()}
    with open_dict(config):
        del config["hydra"]
    return config, chosen


def _own_keys(group: str, choice: str) -> list[str]:
    page = OmegaConf.to_container(OmegaConf.load(find_conf() / group / f"{choice}.yaml"))
    return list(leaves(page))


def leaves(tree: object, above: str = "") -> dict[str, Any]:
    """The settings in a mapping by dotted key, without values that refer to another key."""
    assert isinstance(tree, dict)
    return {
        key: value
        for key, value in flat(tree, above).items()
        if key.rpartition(".")[2] not in _NO_SETTINGS and not str(value).startswith("${")
    }


def near_key(key: str, known: Sequence[str]) -> str:
    """``; did you mean ...?`` with the key that is meant, or the keys beside it, if any are."""
    above, _, last = key.replace("-", "_").rpartition(".")
    if way := _WAYS.get(last.lower()):
        return f"; did you mean {way}?"
    last = _SYNONYMS.get(last, last)
    if same := [each for each in known if each.rpartition(".")[2] == last]:
        return checks.near_word(key, same, 0) if above else f"; did you mean {' or '.join(same)}?"
    # Keys of other groups resemble this key by chance, as share of a ranker does seed of a trainer,
    # and whole keys of one group resemble each other by the name of the group.
    beside = [
        each.rpartition(".")[2] for each in known if above and each.rpartition(".")[0] == above
    ]
    if near := get_close_matches(last, beside, n=1):
        return f"; did you mean {above}.{near[0]}?"
    if near := get_close_matches(last, [each.rpartition(".")[2] for each in known], 1, 0.8):
        return near_key(f"{above}.{near[0]}".lstrip("."), known)
    if not above:
        return checks.near_word(key, known)
    others = [each for each in known if "." in each and not each.startswith(f"{above}.")]
    near = checks.near_word(key, others, 0.85)
    return near or (f"; {above} has {', '.join(beside)}" if beside else "")


def note_run(
    trainer: Trainer, config: DictConfig, words: Sequence[str], swept: Sequence[str] = ()
) -> None:
    """Write the configuration of a run into its folder, and note it in logs."""
    noted = {"resume": None, "run_dir": str(trainer.folder), "command": _command(config, words)}
    with open_dict(config):
        noted = OmegaConf.merge(config, noted)
    write_text(trainer.folder / CONFIG, OmegaConf.to_yaml(noted, resolve=True))
    for logger in make_loggers(config.logger):
        trainer.monitor.add(logger, as_dict(config))
    if config.resume is None:
        trainer.monitor.note_settings(_typed_values(swept or words), trainer.ranker is not None)


def _typed_values(words: Sequence[str]) -> dict[str, bool | int | float | str]:
    """The values of overrides by key as it was typed, others than scalars as texts.

    Left out is where a run reads and writes.
    """
    values = {typed_key(word): _parsed(word).value() for word in words}
    return {
        key: value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in values.items()
        if key not in _ASIDE and not key.startswith("hydra")
    }


def _command(config: DictConfig, words: Sequence[str]) -> dict[str, Any]:
    """What the folder of a run keeps of its command line: words, and the choice of each group."""
    before = config.get("command") or {"words": [], "choices": {}}
    new = [word for word in words if override_key(word) != "resume"]
    for at, word in enumerate(new):
        if "${" in word:  # It refers to another key from where it stood.
            new[at] = f"{override_key(word)}={OmegaConf.select(config, override_key(word))}"
    choices = dict(before["choices"])
    if config.resume is None:
        chosen = [each for each in words if override_key(each) in _groups()]
        choices = {group: str(name) for group, name in _composed(tuple(chosen))[1].items()}
    return {"words": [*before["words"], *new], "choices": choices}


def asked_for(overrides: Sequence[str]) -> list[str]:
    """The overrides that a configuration is composed of; `resumed` takes the others."""
    folders = [word for word in overrides if override_key(word) == "resume"]
    if not folders or _parsed(folders[-1]).value() is None:
        return list(overrides)
    return [override for override in overrides if override_key(override) not in REPLACEABLE]


def resumed(composed: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration of a run: ``composed``, or the saved one of a run that is resumed.

    A run that is resumed takes only some of the ``overrides``; ``composed`` may lack them.

    Raises:
        ValueError: if an override changes a setting that a resumed run keeps, or if the saved
            configuration names code that is neither slide's nor in ``composed.allow_targets``.

    Example:
        >>> from slide.config import read_config, resumed
        >>> resumed(read_config(["seed=3"]), ["seed=3"]).seed  # A new run.
        3
    """
    checks.listing("allow_targets", composed.allow_targets)
    if composed.resume is None:
        return composed
    folder = str(composed.resume)
    path = Path(folder) / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"resume={folder}: there is no {path}")
    check_links(Path(folder))
    config = _saved(path)
    for group in composed:
        if group not in config:  # The run is from before there was this group.
            config[group] = composed[group]
    if "prior_margin" not in config.network:
        config.network.prior_margin = 0.0
    for key, value in {"input_betas": "betas", "input_rowwise": "rowwise"}.items():
        if key not in config.optimizer and value in config.optimizer:
            config.optimizer[key] = config.optimizer[value]  # As it was for all layers.
    if "products" not in config.runtime:
        config.runtime.products = "auto"
    rebuild = OmegaConf.select(config, "sampler.rebuild")
    if isinstance(rebuild, DictConfig) and rebuild.get("growth", 0) is None:
        rebuild.growth = 0.7  # What null meant in slide 0.1.0.
    for override in overrides:
        key = override_key(override)
        if key in _OF_CALLER:
            continue
        old = OmegaConf.select(config, key, default=_NOWHERE)
        if key not in REPLACEABLE or old is _NOWHERE:
            raise ValueError(f"{override}: a resumed run keeps its {key}; start a new one instead")
        new = _parsed(override).value()
        never = {"trainer.epochs": "auto", "trainer.patience": 0}.get(key, _NOWHERE)
        if never in (old, new) and old != new:
            # The rows to learn from would differ, and so would the rates.
            raise ValueError(
                f"{override}: a resumed run keeps {key}={old}; start a new one instead"
            )
        OmegaConf.update(config, key, new)
    config.run_dir = config.resume = folder
    for key in _OF_CALLER[1:]:  # Who resumes decides, not the folder.
        config[key] = composed[key]
    # Groups that the folder lacks, and words, refer to values that change before they are used.
    config = _without_references(as_dict(config))
    for target in foreign_targets(config):
        if target in _GONE:
            raise ValueError(f"{path} names {target}, which slide no longer has: start a new run")
        if target not in composed.allow_targets:
            raise ValueError(
                f"{path} names {target}, which is no part of slide's runs and would run: if you "
                f"trust this folder, allow it by allow_targets=[{target}]"
            )
    _check_places(path, config, {override_key(word) for word in overrides})
    return config


def _saved(path: Path) -> DictConfig:
    """The configuration in a folder: values alone, as a run writes them."""
    try:
        text = read_text(path)
        check_plain_yaml(text)
        # As parsed: YAML has escapes for each character. No variable of this environment is read.
        config = _without_references(OmegaConf.to_container(OmegaConf.create(text)))
        _check_command(config.get("command") or {"words": [], "choices": {}})
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        said = str(error).partition("\n")[0]
        raise ValueError(f"{path} is not the configuration of a run: {said}") from error
    return config


def _check_command(noted: Any) -> None:
    """Raise ValueError unless it is what `_command` returns."""
    found = OmegaConf.to_container(noted) if OmegaConf.is_config(noted) else noted
    words, choices = (found.get(each) if isinstance(found, dict) else None for each in _NOTED)
    if not isinstance(words, list) or not isinstance(choices, dict):
        raise ValueError("its command must have words and choices")
    if not all(isinstance(each, str) for each in (*words, *choices, *choices.values())):
        raise ValueError("the words and choices of its command must be texts")


def _check_places(path: Path, config: DictConfig, given: Collection[str]) -> None:
    """A folder from elsewhere chooses no place to write to, unless a cache is there already."""
    dataset = config.get("dataset")
    for key in ("cache", "root") if isinstance(dataset, DictConfig) else ():
        cache = dataset.get(key)
        parts = Path(str(cache)).parts  # By default data sets are in the folder datasets.
        usual = isinstance(cache, str) and parts[:1] == ("datasets",) and ".." not in parts
        if cache is None or f"dataset.{key}" in given or usual:
            continue
        if key == "root":
            dataset.fetch = None
        elif not isinstance(cache, str) or not any(Path(cache).glob("*/meta.json")):
            raise ValueError(
                f"{path} names dataset.cache={cache}, where no cache of a data set is: say where "
                f"to write one, such as dataset.cache={cache}"
            )


# Base classes of the parts that a run has several kinds of; by name, so that none is imported.
_ROLES = {
    *("slide.sampling.protocol.Sampler", "slide.sampling.protocol.Proposer"),
    "slide.ranking.base_scorer.BaseScorer",
}
# What configurations of slide 0.1.0 name, and no page does now; and what there is no more.
_EARLIER = {"slide.sampling.never"}
_GONE = {"slide.IndexProposer"}


@cache
def _pages() -> list[Any]:
    """All files of ``conf/``."""
    return [OmegaConf.to_container(OmegaConf.load(path)) for path in find_conf().rglob("*.yaml")]


@cache
def _known() -> dict[str, Any]:
    """What the files of ``conf/`` build, by name."""
    names = _EARLIER | {str(each["_target_"]) for page in _pages() for each in _parts(page)}
    return {name: _exported(name) for name in names}


def _exported(target: str) -> Any:
    """What slide exports by this name; None: nothing."""
    package, _, name = target.rpartition(".")
    return getattr(import_module(package), name, None) if package in _PACKAGES else None


def foreign_targets(config: DictConfig) -> list[str]:
    """What a configuration names that is not a part of runs, as slide offers them.

    Parts are in ``conf/``, or of the same base class as one that is (`_ROLES`); the rest of what
    slide exports may write files.
    """
    known = _known()
    mirrors = [page["fetch"] for page in _pages() if isinstance(page, dict) and page.get("fetch")]
    foreign = []
    tree = OmegaConf.to_container(config, resolve=True)
    assert isinstance(tree, dict)
    sources: list[Any] = [tree.get("dataset")]
    if isinstance(sources[0], dict):
        sources.append(sources[0].get("fetch"))
    for part in _parts(tree):
        target = str(part["_target_"])
        if target.startswith("slide.data.") and not any(part is each for each in sources):
            ours = False  # Else it would read and write where another part of a run tells it to.
        elif target in known:
            # What it fetches may be written anywhere, by another dataset.root.
            ours = target != "slide.data.download" or part in mirrors
        else:
            found = _exported(target)
            bases = (f"{e.__module__}.{e.__qualname__}" for e in getattr(found, "__mro__", ()))
            ours = not _ROLES.isdisjoint(bases)
            ours |= found is not None and any(found is each for each in known.values())
        if not ours:
            foreign.append(target)
    return foreign


def _parts(tree: object) -> Iterator[dict[Any, Any]]:
    if isinstance(tree, dict):
        if "_target_" in tree:
            yield tree
        tree = list(tree.values())
    for each in tree if isinstance(tree, list) else ():
        yield from _parts(each)
