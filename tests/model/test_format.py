"""The page of the format says what `Model.save` writes: each key and array, and nothing else."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

import slide
from slide.data import Split, TextVectorizer, holdout
from slide.data.row_transform import STEP_ARRAYS, RowTransform
from slide.model import Model
from slide.model.folder import MODEL_FOLDER
from slide.ranking import EnsembleRanker
from slide.sparse import Pattern
from slide.utils.tensor_folder import read_tensors

pytestmark = [pytest.mark.compiled_only, pytest.mark.usefixtures("one_thread")]
PAGE = (Path(__file__).parents[2] / "docs/model-format.md").read_text()
TYPES = {"text": str, "list": list, "object": dict, "flag": bool, "null": type(None)}
TYPES |= {"integer": int, "number": (int, float)}


def described():
    """The rows of the tables by file: a name, what matches it, and the other cells of its row."""
    file = "model.json"
    for line in PAGE.splitlines():
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        file = first.strip("*") if first.startswith("**") and cells else file
        for name in re.findall(r"`([^`]+)`", first) if line.startswith("| `") else ():
            pattern = re.escape(name).replace("<layer>", r"\w+(\.\d+)?")
            pattern = re.sub("<(file|array)>", "[^/]+", pattern)
            yield file, name, re.compile(re.sub("<[a-z]+>", "[^./]+", pattern)), cells


ROWS = list(described())


def network(features, hidden, proposer):
    sampler = partial(slide.ActiveSampler, active=4, proposer=proposer)
    return slide.SlideNetwork(features, hidden, 9, sampler)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models that have all parts among them."""
    place = tmp_path_factory.mktemp("models")
    vectorizer = TextVectorizer.of(TfidfVectorizer().fit(["red fox", "blue dog"]))
    names = {"label_names": [*range(9)], "vectorizer": vectorizer}
    Model(network(4, [3, 2], slide.LSHProposer), **names).save(place / "words")
    arrays = dict.fromkeys(STEP_ARRAYS, np.zeros(4))
    arrays |= {"label_ids": np.arange(9, dtype=np.int32), "bin_bounds": np.zeros(5, np.int64)}
    step = RowTransform(4, 9, **arrays)
    short = Model(network(step.num_columns[0], [3], slide.SketchProposer), steps=[step])
    for dtype in ("bfloat16", "int8"):
        short.save(place / dtype, dtype)
    rows = np.random.default_rng(0).integers(0, 12, (60, 3)).astype(np.int32)
    seen = Pattern.from_lists([np.unique(row) for row in rows])
    train = Split(slide.CSR(*seen, np.ones(len(seen.indices), "f4")), seen, 12, 12, kind="items")
    whole = slide.SlideNetwork(12, [3], 12, slide.FullSampler)
    ranker = EnsembleRanker(depth=5).fit(whole, *holdout(train, 0.3, seed=0), every=train)
    Model(whole, ranker).save(place / "ranked")
    return sorted(place.iterdir())


def described_as(file, name):
    return [row for row in ROWS if row[0] == file and row[2].fullmatch(name)]


def found_in(folder):
    """The file, the name and the value of each key and array that the page has to describe."""
    content = json.loads((folder / "model.json").read_text())
    for file in content["files"]:
        for name, tensor in read_tensors(folder, file.partition(".")[0]).items():
            yield file, name, tensor
    left = list(content.items())
    for name, value in left:
        rows = described_as("model.json", name)
        below = any(row[1].startswith(f"{name}/") for row in ROWS)
        if isinstance(value, dict) and (below or not rows):
            left += [(f"{name}/{key}", each) for key, each in value.items()]
        if rows or not isinstance(value, dict):
            yield "model.json", name, value


def fits(cells, value):
    """Whether the cells of a row describe a value: its type, and the number of its dimensions."""
    if not hasattr(value, "shape"):
        return isinstance(value, tuple(TYPES[kind] for kind in cells[0].split(" or ")))
    kind, shape, _ = cells
    dimensions = shape == "any" or value.ndim == shape.count(",") + 1
    return dimensions and kind in ("any", str(value.dtype).removeprefix("torch."))


def test_the_page_describes_each_key_and_array_and_nothing_else(folders):
    used = set()
    for folder in folders:
        for file, name, value in found_in(folder):
            good = {row[:2] for row in described_as(file, name) if fits(row[3], value)}
            assert good, f"{folder.name}/{file}: {name} is {value!r:.60}"
            used |= good
    assert [row[:2] for row in ROWS if row[:2] not in used] == []
    assert re.findall(r"\*\*format (\d+)\*\*", PAGE) == [str(MODEL_FOLDER.format)]
