"""Requests of any shape get answers or sentences, and never a failure of the server."""

import json

import pytest
from helpers.damage import fuzzed
from helpers.serving import serving_model
from hypothesis import given
from hypothesis import strategies as st

from slide import FullSampler, Model, SlideNetwork
from slide.data import TextOptions, TextVectorizer


def make_client(**names):
    return serving_model(Model(SlideNetwork(30, [8], 12, FullSampler), **names), k=9)


@pytest.fixture(scope="module")
def client():
    with make_client() as client:
        yield client


@pytest.fixture(scope="module")
def named():
    names = {"label_names": map(str, range(12)), "feature_names": [f"word {n}" for n in range(30)]}
    with make_client(**names) as client:
        yield client


@pytest.fixture(scope="module")
def texts():
    vectorizer = TextVectorizer.fit([f"word {n}x" for n in range(29)], TextOptions(min_rows=1))
    with make_client(vectorizer=vectorizer) as client:
        yield client


KEYS = st.sampled_from(
    ["rows", "k", "threshold", "ids", "search", "indices", "values", "features", "text"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 40)
    | st.floats()
    | st.sampled_from(["exact", "index", "3", "word 3", "٣", "²", "\ud800", "-1", ""])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)
NUMBERS = st.lists(SCALARS | st.integers(0, 30), max_size=4)
ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "indices": NUMBERS,
            "values": NUMBERS,
            "features": NUMBERS | st.dictionaries(st.text() | st.just("3"), SCALARS, max_size=3),
            "text": SCALARS,
        },
    ),
    max_size=3,
)
BODIES = VALUES | st.fixed_dictionaries(
    {"rows": ROWS}, optional={"k": SCALARS, "search": SCALARS, "threshold": SCALARS}
)


@pytest.mark.parametrize("which", ["client", "named", "texts"])
def test_no_request_is_a_failure(which, request):
    """Bodies of any shape get answers or sentences, never a 500."""
    client, seen = request.getfixturevalue(which), set()

    @fuzzed(120)
    @given(BODIES)
    def check(body):
        headers = {"Content-Type": "application/json"}
        answer = client.post(data=json.dumps(body).encode(), headers=headers)
        seen.add(answer.status_code)
        assert answer.status_code in (200, 400, 413, 422), answer.text
        if answer.status_code != 200:
            assert answer.json()["error"]

    check()
    assert seen >= {200, 422}


@fuzzed(60)
@given(content=st.binary(max_size=60), type=st.sampled_from(["application/json", "text/plain"]))
def test_no_bytes_are_a_failure(client, content, type):
    answer = client.post(data=content, headers={"Content-Type": type})
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]
