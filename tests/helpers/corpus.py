"""The corpus of the fuzz tests: small damaged files in `tests/corpus/<format>/`, all generated.

Each run of the tests tries each file, and damages it further; a file that fails in a longer run
(``SLIDE_FUZZ=20``) is added, so that it is tried from then on.
"""

import hashlib
from contextlib import contextmanager
from pathlib import Path

from helpers.damage import REPEAT

FOLDER = Path(__file__).parents[1] / "corpus"
ROWS = {
    "xmc": b"3 6 4\n0,2 1:0.5 5:2\n 0:1\n3 2:1e-3 3:-4\n",
    "svmlight": b"1,3 1:0.5 6:2 # note\n2 1:1\n4 3:1e-3 4:-4\n",
    "documents": b"""{"text": "a red fox", "labels": ["red", "animal", 3]}
{"text": "", "labels": [], "id": {"a": [1]}}

{"labels": ["red", "red"], "text": "red car"}
""",
    "jsonl": b"""{"features": {"1": 0.5, "3": 2, "1": 1e-3}, "labels": [2, "0"]}
{"labels": [7, "9", 7], "features": [2, "3", 2]}
{"features": {}}
""",
}
FEATURES, LABELS = 6, 4


def kept(format):
    """The files of a format, by name."""
    return {path.name: path.read_bytes() for path in sorted((FOLDER / format).glob("*.txt"))}


@contextmanager
def kept_on_failure(format, data):
    """Show a file for which a test fails, and keep it if this is a longer run."""
    try:
        yield
    except BaseException:
        print(repr(data))
        if REPEAT > 1:
            keep(format, data)
        raise


def keep(format, data):
    """Add a file."""
    path = FOLDER / format / f"{hashlib.sha256(data).hexdigest()[:12]}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
