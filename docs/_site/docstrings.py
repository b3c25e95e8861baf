"""Brings docstrings into the form that griffe, the parser of mkdocstrings, reads.

* A section ``Example:`` becomes ``Examples:``, which griffe shows as code.
* An item ``rows, columns: text`` of a section becomes an item for each name.
* Errors that share a line, ``ValueError: text; TypeError: text``, become items.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
SECTION = re.compile(r"^(?:Args|Attributes):\n(?:(?: {4}.*)?\n?)*", re.MULTILINE)
ITEM = re.compile(r"^ {4}(?P<names>\w+(?:, \w+)+):(?P<text>.*(?:\n {5,}.*)*)", re.MULTILINE)
RAISES = re.compile(r"^Raises:\n(?:(?: {4}.*)?\n?)*", re.MULTILINE)
ERROR = re.compile(r";\s+(\w+(?:Error|Exception|Warning)): ")


class Docstrings(griffe.Extension):
    """An extension of griffe; mkdocs.yml names it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, a class or a function."""
        if obj.docstring is not None:
            text = EXAMPLE.sub("Examples:", obj.docstring.value)
            text = SECTION.sub(lambda found: split(found[0]), text)
            obj.docstring.value = RAISES.sub(
                lambda found: ERROR.sub(r".\n    \1: ", found[0]), text
            )


def split(section: str) -> str:
    """A section with one name an item."""

    def items(found: re.Match[str]) -> str:
        return "\n".join(f"    {name}:{found['text']}" for name in found["names"].split(", "))

    return ITEM.sub(items, section)
