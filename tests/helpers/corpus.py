"""The corpus of the fuzz tests: small damaged files, one for each thing that a reader says.

    PYTHONPATH=tests python -m helpers.corpus

makes it anew, in `tests/corpus/<format>/`. All of it is generated. Each run of the tests tries each
file, and damages it further; a file that fails in a longer run (``SLIDE_FUZZ=20``) is added, so
that it is tried from then on.
"""

import hashlib
import random
import re
import tempfile
from pathlib import Path

from helpers import damage
from slide import FullSampler, Model, SlideNetwork
from slide.data import DataError
from slide.data.row_files import VARIANTS, read_text_blocks
from slide.data.sources.documents import read_documents
from slide.predict.rows import read_rows

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
TRIES = 4000


def kept(format):
    """The files of a format, by name."""
    return {path.name: path.read_bytes() for path in sorted((FOLDER / format).glob("*.txt"))}


def keep(format, data):
    """Add a file."""
    path = FOLDER / format / f"{hashlib.sha256(data).hexdigest()[:12]}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def count_rows(path, format):
    """How many rows the reader of a format finds."""
    if format == "documents":
        return len(list(read_documents(path, "reading")))
    if format == "jsonl":
        model = Model(SlideNetwork(FEATURES, [2], LABELS, FullSampler))
        blocks = read_rows(str(path), model, format)
    else:
        blocks = read_text_blocks(path, VARIANTS[format])
    return sum(block.features.num_rows for block in blocks)


def ways_of(format):
    """How files of a format are damaged."""
    return damage.TEXTUAL if format in VARIANTS else damage.JSON


def said(path, data, format):
    """What the reader says of a file, without its numbers and words."""
    path.write_bytes(data)
    try:
        rows = count_rows(path, format)
    except DataError as error:
        message = str(error).replace(str(path), "")
        return re.sub(r"'.*?'|\".*?\"|b'.*?'|[\d.+-]+", "_", message)
    return f"{min(rows, 2)} rows"


def make(formats=tuple(ROWS)):
    """Write the smallest file for each thing that is said."""
    for format in formats:
        whole = ROWS[format]
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(TRIES):
                data = damage.damage(random.Random(seed), whole, ways_of(format))
                about = said(Path(folder) / "rows.txt", data, format)
                found[about] = min(found.get(about, data), data, key=lambda x: (len(x), x))
        for data in found.values():
            keep(format, data)


if __name__ == "__main__":
    make()
