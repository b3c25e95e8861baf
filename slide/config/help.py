"""The text of ``--help``, from the comments in ``conf/``."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf

from slide.config.compose import REPLACEABLE, leaves, near_key
from slide.utils.checks import override_key, typed_value
from slide.utils.sizes import find_conf

WIDTH, KEY_WIDTH = 100, 34
USAGE = """\
Trains a network with a sampled output layer.

  {program} [group=choice ...] [key=value ...]
  {program} resume=results/<dataset>/<time stamp>
  {program} -m key=value,value ...   one run after the other, for each of the values
  {program} --cfg job                prints all keys and their values
  {program} --help sampler           explains one group, section or key

Groups of settings and their choices, the default first:
"""
Sections = dict[str, dict[str, tuple[str, str]]]


class Page(NamedTuple):
    """A file of ``conf/``: what it is about; defaults and explanations by dotted key."""

    about: str
    values: dict[str, object]
    texts: dict[str, str]


class KeyGroup(NamedTuple):
    """A folder of ``conf/``: pages to choose from, the default first."""

    name: str
    about: str
    default: str
    pages: dict[str, Page]


def explanations(text: str) -> dict[str, str]:
    """The comments directly above keys of a YAML text, by dotted key."""
    found: dict[str, str] = {}
    comment: list[str] = []
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
            continue
        if key := re.match(r"( *)(\w+):(\s|$)", line):
            above = [(indent, name) for indent, name in above if indent < len(key[1])]
            above.append((len(key[1]), key[2]))
            if comment:
                found[".".join(name for _, name in above)] = " ".join(comment)
        comment = []
    return found


def read_page(text: str, above: str = "") -> Page:
    """Parse a file: comments about it at its top, then keys, which get ``above`` in front."""
    lines = text.splitlines()
    head = list(takewhile(lambda line: line.startswith("#"), lines))
    words = [line.lstrip("# ") for line in head]
    about = [line for line in words if not line.startswith(("python train.py", "@package"))]
    values = leaves(OmegaConf.to_container(OmegaConf.create(text)), above)
    texts = explanations("\n".join(lines[len(head) :]))
    return Page(" ".join(about), values, {above + key: text for key, text in texts.items()})


def read_groups(conf: Path) -> list[KeyGroup]:
    """The groups in the order of ``train.yaml``."""
    text, groups = (conf / "train.yaml").read_text(), []
    for name, default, about in re.findall(r"^  - (\w+): (\w+)  # (.*)$", text, re.MULTILINE):
        paths = sorted((conf / name).glob("*.yaml"), key=lambda p: (p.stem != default, p.stem))
        pages = {path.stem: read_page(path.read_text(), f"{name}.") for path in paths}
        groups.append(KeyGroup(name, about, default, pages))
    return groups


def sections(conf: Path) -> Sections:
    """Default and explanation of each setting, by title of the section and key."""
    main, groups = read_page((conf / "train.yaml").read_text()), read_groups(conf)
    found: Sections = {}

    def add(title: str, page: Page, above: str = "") -> None:
        for key, text in page.texts.items():
            # The comment of a mapping is only for readers of the file.
            if key in page.values and key.startswith(above):
                found.setdefault(title, {})[key] = typed_value(page.values[key]), text

    for group in groups:
        add(group.name, main, f"{group.name}.")
        for choice, page in group.pages.items():
            add(group.name if choice == group.default else f"{group.name}={choice}", page)
    names = {group.name for group in groups}
    for title in dict.fromkeys(key.partition(".")[0] for key in main.values):
        if title not in names:
            add(title if f"{title}." in " ".join(main.values) else "run", main, title)
    return found


def train_help(program: str) -> str:
    """The text of ``--help`` for the command that the user called."""
    listed = _listing(read_groups(find_conf()), sections(find_conf()))
    kept = f"resume=<folder> takes new values of {', '.join(sorted(REPLACEABLE))}."
    usage = USAGE.format(program=program)
    return "\n".join([usage, *listed, "", textwrap.fill(kept, WIDTH)]) + "\n"


def help_on(word: str) -> str:
    """The part of ``--help`` about a group, its choice, a section or a key.

    ValueError: there is none such.
    """
    name, groups, titles = override_key(word), read_groups(find_conf()), sections(find_conf())
    if chosen := [group for group in groups if name in group.pages]:
        return "\n".join(_about_choice(group, name, titles) for group in chosen)
    found = {
        title: {key: row for key, row in rows.items() if f"{key}.".startswith(f"{name}.")}
        for title, rows in titles.items()
        if title != name
    }
    if name in titles:
        found = {name: titles[name], **found}
    listed = list(_listing([group for group in groups if group.name == name], found))
    if not listed:
        names = dict.fromkeys([*(group.name for group in groups), *titles])
        near = near_key(name, [*names, *chain(*titles.values())])
        told = near or f"; there is on {', '.join(each for each in names if '=' not in each)}"
        raise ValueError(f"there is no help on {word}{told}")
    return "\n".join(listed).lstrip("\n") + "\n"


def _about_choice(group: KeyGroup, choice: str, titles: Sections) -> str:
    """A choice of a group, such as lsh: how it is typed, what it is, and its settings."""
    page = group.pages[choice]
    texts = {key: text for rows in titles.values() for key, (_, text) in rows.items()} | page.texts
    lines = [_entry(f"{group.name}={choice}", page.about)]
    for key, value in page.values.items():
        if key in texts:
            lines.append(_entry(f"{key}={typed_value(value)}", texts[key]))
    return "\n".join(lines) + "\n"


def _listing(groups: Iterable[KeyGroup], titles: Sections) -> Iterator[str]:
    """The lines about groups and their choices, and about the settings below each title."""
    for group in groups:
        yield _entry(group.name, group.about, 15)
        for choice, page in group.pages.items():
            if page.about:
                yield _entry(f"  {choice}", page.about)
        if plain := [choice for choice, page in group.pages.items() if not page.about]:
            yield textwrap.indent(textwrap.fill(" | ".join(plain), WIDTH - 4), " " * 4)
    for title, settings in titles.items():
        if settings:
            yield f"\n{title}"
        for key, (default, text) in settings.items():
            yield _entry(f"{key}={default}", text)


def _entry(name: str, text: str, width: int = KEY_WIDTH) -> str:
    """A name and its explanation, side by side if the name is short."""
    begin, rest = f"  {name}".ljust(width), f"\n{' ' * width}"
    beside = "" if begin.endswith(" ") else rest
    return f"{begin}{beside}{rest.join(textwrap.wrap(text, WIDTH - width))}".rstrip()
