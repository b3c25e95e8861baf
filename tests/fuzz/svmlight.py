"""Rows of the format svmlight: what the plain parser reads, or an error in the same line."""

from pathlib import Path

from fuzz.shared import check_text, kept_rows


def seeds(folder: Path) -> list[bytes]:
    """See `fuzz`."""
    return kept_rows("svmlight")


def check(data: bytes, folder: Path) -> bool:
    """See `fuzz`."""
    return check_text(data, folder, "svmlight")
