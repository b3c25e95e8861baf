"""Names and numbers of labels and features in lines of JSON."""

import json
from itertools import pairwise

import pytest

import slide
from slide.data import DataError
from slide.predict.rows import RowSource, read_rows

WORDS = ["5", "red", "7"]
NUMBERS = [5, -3, 7]


def labels_of(folder, names, *rows):
    """The numbers of the labels of rows, for a model with these ``names`` of 3 labels."""
    network = slide.SlideNetwork(4, [2], 3, slide.FullSampler)
    model = slide.Model(network, label_names=names)
    lines = [json.dumps({"features": [0], "labels": row}) for row in rows]
    (folder / "a.jsonl").write_text("\n".join(lines))
    (block,) = read_rows(RowSource(str(folder / "a.jsonl")), model)
    bounds = block.labels.indptr
    return [block.labels.indices[begin:end].tolist() for begin, end in pairwise(bounds)]


@pytest.mark.parametrize(
    ("names", "row", "expected"),
    [
        (WORDS, [5, "red", "7"], [0, 1, 2]),  # Names of documents are texts, whatever a line has.
        (WORDS, [5, "5"], [0]),
        (WORDS, [8, "8", "blue", "9" * 5000], [3, 4, 5]),
        (NUMBERS, ["5", -3, "-3", 7], [0, 1, 2]),
        (NUMBERS, ["abc", "1.5", 8], [3, 4, 5]),
        (None, ["2", 0, 9], [2, 0, 3]),
    ],
)
def test_names_that_look_like_numbers(tmp_path, names, row, expected):
    assert labels_of(tmp_path, names, row) == [expected]


@pytest.mark.parametrize("names", [WORDS, NUMBERS, None])
@pytest.mark.parametrize("label", [[2], 1.5, None, True])
def test_what_is_no_name(tmp_path, names, label):
    said = "neither text nor a whole number" if names else "no number; the model has no names"
    with pytest.raises(DataError, match=rf"a\.jsonl:2: .* is {said}"):
        labels_of(tmp_path, names, [], [label])
