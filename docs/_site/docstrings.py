"""Brings docstrings into the form that griffe, the parser of mkdocstrings, reads.

* A section ``Example:`` becomes ``Examples:``, which griffe shows as code.
* An item ``rows, columns: text`` of a section becomes an item for each name.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
SECTION = re.compile(r"^(?:Args|Attributes):\n(?:(?: {4}.*)?\n?)*", re.MULTILINE)
ITEM = re.compile(r"^ {4}(?P<names>\w+(?:, \w+)+):(?P<text>.*(?:\n {5,}.*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """An extension of griffe; mkdocs.yml names it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, a class or a function."""
        if obj.docstring is not None:
            text = EXAMPLE.sub("Examples:", obj.docstring.value)
            obj.docstring.value = SECTION.sub(lambda found: split(found[0]), text)


def split(section: str) -> str:
    """A section with one name an item."""

    def items(found: re.Match[str]) -> str:
        return "\n".join(f"    {name}:{found['text']}" for name in found["names"].split(", "))

    return ITEM.sub(items, section)
