"""What the site adds to MkDocs. MkDocs calls the functions named ``on_...``.

* A link from a page to a file of the repository outside of docs/ brings that file into the site.
  A link to a file that does not exist stays as it is, and MkDocs warns.
* A line ``::: exports of slide.nn`` becomes a ``:::`` block for each public name of that package
  which the page does not name itself.
* A page of results begins with its title; in the file, who made it comes first.
* A page that would load something from another host is a warning, so that the site works offline.
"""

import ast
import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)\s#]+)")
EXPORTS = re.compile(r"^::: exports of (slide\.\w+)$", re.MULTILINE)
MADE = re.compile(r"\A(Made by .*)\n\n(# .*)\n")
NAMED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
OUTSIDE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?https?://[^>]*>")
log = logging.getLogger("mkdocs.hooks.slide")


def on_files(files: Files, config: Any) -> Files:
    """Add the repository's files that pages link to, and those that these link to in turn."""
    waiting = list(DOCS.rglob("*.md"))
    seen = set(waiting)
    while waiting:
        for target in linked_files(waiting.pop()):
            if target in seen or target.is_relative_to(DOCS):
                continue
            seen.add(target)
            uri = target.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(target)))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the places that files have in the site, and expand lists of exports."""
    source = Path(page.file.abs_src_path).resolve()
    here = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = resolved(source, link[2])
        if target is None:
            return link[0]
        return link[1] + posixpath.relpath(place(target), here or ".")

    named = set(NAMED.findall(markdown))
    markdown = MADE.sub(r"\2\n\n\1\n", LINK.sub(moved, markdown))
    return EXPORTS.sub(lambda line: blocks(line[1], named), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn of scripts, styles and pictures from other hosts."""
    for tag in OUTSIDE.findall(output):
        log.warning("%s would load something from another host: %s", page.file.src_uri, tag)
    return output


def on_env(env: Any, **_: Any) -> Any:
    """Warn of public names that no page of the reference shows."""
    pages = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    shown = {f"slide.{name}" for package in EXPORTS.findall(pages) for name in exports(package)}
    shown |= set(NAMED.findall(pages))
    for name in exports("slide"):
        if f"slide.{name}" not in shown:
            log.warning("slide.%s is public, and no page of docs/api shows it", name)
    return env


def linked_files(page: Path) -> Iterator[Path]:
    """Files of the repository that a page links to."""
    for link in LINK.finditer(page.read_text()):
        target = resolved(page, link[2])
        if target is not None:
            yield target


def resolved(page: Path, link: str) -> Path | None:
    """The file of the repository that a link names; None: there is none."""
    if ":" in link:
        return None
    target = (page.parent / link).resolve()
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def place(target: Path) -> str:
    """Where a file of the repository stands in the site."""
    return target.relative_to(DOCS if target.is_relative_to(DOCS) else ROOT).as_posix()


def blocks(package: str, named: set[str]) -> str:
    """A ``:::`` block for each public name of a package, by its shortest public name."""
    short, found = exports("slide"), exports(package)
    if not found:
        log.warning("%s exports nothing, and docs/api shows its exports", package)
    names = [f"slide.{name}" if name in short else f"{package}.{name}" for name in found]
    return "\n\n".join(f"::: {name}" for name in names if name not in named)


def exports(package: str) -> dict[str, str]:
    """Public names of a package, and the module that each is imported from.

    These are the names that the package's ``__init__`` imports, and those that ``slide`` imports
    from the package.
    """
    found = imports(ROOT / package.replace(".", "/") / "__init__.py")
    if package != "slide":
        all_of_slide = imports(ROOT / "slide" / "__init__.py")
        found |= {
            name: home
            for name, home in all_of_slide.items()
            if f"{home}.".startswith(f"{package}.")
        }
    return found


def imports(file: Path) -> dict[str, str]:
    """Names that a file imports from modules of slide, modules themselves left out."""
    found = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slide."):
            for alias in node.names:
                name = alias.asname or alias.name
                if not name.startswith("_"):
                    found[name] = str(node.module)
    return found
