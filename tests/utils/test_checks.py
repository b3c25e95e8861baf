"""Checks let good values through, and name bad ones with their bound."""

import io
import re
from email.message import Message
from functools import partial
from urllib.error import HTTPError

import numpy as np
import pytest

from slide.utils import checks

NAN, INF = float("nan"), float("inf")
CASES = {
    "whole": (
        partial(checks.whole, least=2),
        [2, 10**12, np.int64(2), np.uint8(3)],
        [1, np.int64(1), np.bool_(True), -3, 2.0, "2", None, True, [2]],
    ),
    "positive": (checks.positive, [1, 1e-300, 2.5], [0, -1, NAN, INF, "1", None, True]),
    "not_negative": (checks.not_negative, [0, 0.0, 3], [-1e-9, NAN, INF, "0", None, False]),
    "within": (
        partial(checks.within, least=1, most=5),
        [1, 5, 2.5],
        [0.99, 5.01, NAN, INF, "3", None, True],
    ),
    "share": (checks.share, [0, 0.5, 0.999], [1, -0.1, NAN, INF, "0.5", None, False]),
    "share with one": (partial(checks.share, with_one=True), [0, 0.5, 1, 1.0], [1.001, NAN, "1"]),
    "one_of": (partial(checks.one_of, names=("a", "b")), ["a", "b"], ["c", "", None, 1, ["a"]]),
    "listing": (checks.listing, [[], [1], (1, 2)], [1, "12", None, {1: 2}]),
    "filled_text": (checks.filled_text, ["a", "2024"], ["", 2024, None, ["a"]]),
    "flag": (checks.flag, [True, False], [0, 1, "true", None]),
}


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    check, good, bad = CASES[case]
    for value in good:
        check("key", value=value)
    for value in bad:
        with pytest.raises(ValueError, match=rf"^key must be .*not {re.escape(repr(value))}$"):
            check("key", value=value)


def test_bounds_are_named():
    with pytest.raises(ValueError, match="at least 7, not 6"):
        checks.whole("key", 6, 7)
    with pytest.raises(ValueError, match=r"in \[1, 5\], not 6"):
        checks.within("key", 6, 1, 5)
    with pytest.raises(ValueError, match=r"in \[0, 1\), not 1"):
        checks.share("key", 1)
    with pytest.raises(ValueError, match=r"in \[0, 1\], not 2"):
        checks.share("key", 2, with_one=True)
    with pytest.raises(ValueError, match="one of fifo, reservoir, not 'lifo'"):
        checks.one_of("key", "lifo", ("fifo", "reservoir"))
    with pytest.raises(ValueError, match=r"not 'fiifo'; did you mean fifo\?$"):
        checks.one_of("key", "fiifo", ("fifo", "reservoir"))
    with pytest.raises(ValueError, match=r"not 'stack'$"):
        checks.one_of("key", "stack", ("fifo", "reservoir"))


def test_the_nearest_word_is_suggested():
    known = ["trainer.seed", "dataset.seed"]
    assert checks.near_word("datset.seed", known) == "; did you mean dataset.seed?"
    assert checks.near_word("datset.seed", known, 0.99) == ""


class TestErrorMessage:
    def test_a_file_without_a_reason(self):
        with HTTPError("https://x.org/a", 404, "Not Found", Message(), io.BytesIO()) as error:
            assert checks.error_message(error) == "HTTP Error 404: Not Found"

    def test_both_paths_of_a_rename(self, tmp_path):
        with pytest.raises(OSError, match="No such file") as caught:
            (tmp_path / "a").rename(tmp_path / "b")
        wanted = f"{tmp_path}/a -> {tmp_path}/b: No such file or directory"
        assert checks.error_message(caught.value) == wanted

    @pytest.mark.parametrize(
        ("said", "shown"),
        [
            ("bias must be true or false, not 1", "network.bias must be true or false, not 1"),
            ("probes = 2 needs a family", "hash.probes = 2 needs a family"),
            ("hash.num_tables would have no effect", "hash.L would have no effect"),
            ("probes=2 needs a family", "hash.probes=2 needs a family"),
            ("seed must not be negative, not -1", "seed must not be negative, not -1"),
        ],
    )
    def test_only_a_sentence_about_a_value_gets_the_whole_key(self, said, shown):
        words = [
            "network.bias=1",
            "+hash.probes=2",
            "hash.L=3",
            "trainer.seed=-1",
            "dataset.seed=-1",
        ]
        assert checks.error_message(ValueError(said), words) == shown
