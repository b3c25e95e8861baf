"""Names as one array of characters."""

import numpy as np
import pytest

from slide.model import Names
from slide.utils.array_checks import Stored

WORDS = ["fruit", "", "Straße", "日本", "a b\n"]


def test_a_list_of_texts():
    names = Names.of(WORDS)
    assert list(names) == WORDS
    assert len(names) == 5
    assert [names.number(word) for word in WORDS] == list(range(5))
    assert names.number("tree") is None
    assert "tree" not in names
    assert Names.of(names) is names
    again = Names.restored(Stored({}, names.tensors("it"), prefix="it."), names.kind)
    assert list(again) == WORDS
    with pytest.raises(IndexError, match=r"name 5 is not in \[0, 5\)"):
        names[5]
    with pytest.raises(IndexError, match="name -1"):
        names[-1]


def test_numbers_stay_numbers():
    names = Names.of(np.array([70, -3, 5]))
    assert list(names) == [70, -3, 5]
    assert names.kind == "number"
    assert names.number(5) == 2
    assert names.number("5") is None


def test_names_of_ids():
    found = Names.of(WORDS).take(np.array([[3, 0, -1], [0, 0, 4]]))
    assert found.tolist() == [["日本", "fruit", None], ["fruit", "fruit", "a b\n"]]
    assert Names.of([]).take(np.empty((0, 2), int)).shape == (0, 2)
    assert Names.of([]).take(np.array([-1])).tolist() == [None]


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["a", "b", "a"], ValueError, "label_names must differ; 'a' occurs twice"),
        (["a", 3], TypeError, "label_names must be texts, or all of them numbers; one is 3"),
        ([0.5, 3], TypeError, "one is 0.5"),
        ([True, "a"], TypeError, "one is True"),
    ],
)
def test_names_that_cannot_be(names, error, message):
    with pytest.raises(error, match=message):
        Names.of(names, "label_names")


def test_arrays_that_cannot_be():
    with pytest.raises(ValueError, match="names end at byte 3, not at 2"):
        Names(np.zeros(2, np.uint8), np.array([3]))
    with pytest.raises(ValueError, match="names end at byte 0, not at 2"):
        Names(np.zeros(2, np.uint8), np.empty(0, np.int64))
    for ends in ([5, 2, 6], [-1, 6]):
        with pytest.raises(ValueError, match="a name ends before it begins"):
            Names(np.zeros(6, np.uint8), np.array(ends))
    with pytest.raises(ValueError, match="one of text, number, float, flag, not 'color'"):
        Names(np.zeros(0, np.uint8), np.empty(0, np.int64), "color")
