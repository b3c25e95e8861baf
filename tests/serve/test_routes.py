"""The addresses of a server: answers, refusals, and requests at random."""

import json
import re
import shutil
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from html import escape
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
import requests
import torch
from fastapi import FastAPI, HTTPException
from helpers.damage import fuzzed
from helpers.matrices import make_csr
from helpers.serving import running, serving_model
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.feature_extraction.text import HashingVectorizer

from slide import FullSampler, Model, SlideNetwork
from slide.data import TextOptions, TextVectorizer
from slide.model import load
from slide.serve import Limits, create_app, routes
from slide.serve.batcher import Batcher
from slide.serve.routes import Row, read_query, row_form, rows_to_csr

FEATURES, LABELS = 30, 12
LABEL_NAMES = [f"label {n}" for n in range(LABELS)]
FEATURE_NAMES = [f"word {n}" for n in range(FEATURES)]
ROW = {"indices": [3, 7], "values": [1.0, 0.5]}


def make_model(**names):
    torch.manual_seed(0)
    return Model(SlideNetwork(FEATURES, [8], LABELS, FullSampler), **names, name="test")


NAMED = make_model(label_names=LABEL_NAMES, feature_names=FEATURE_NAMES)


@pytest.fixture(scope="module")
def client():
    with serving_model(make_model(), rows=20, k=9, body_bytes=6000) as client:
        yield client


@pytest.fixture(scope="module")
def named():
    with serving_model(NAMED) as client:
        yield client


def ask(client, *rows, **more):
    answer = client.post(json={"rows": list(rows), **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["answers"]


def refusal(client, status, body=None, **how):
    answer = client.post(**(how or {"json": body}))
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    return answer.json()["error"]


def assert_answers(found, labels, scores):
    assert [answer["labels"] for answer in found] == labels.tolist()
    shown = [answer["scores"] for answer in found]
    np.testing.assert_allclose(shown, scores, rtol=1e-5)


def test_rows_of_numbers(client):
    rows = make_csr(np.random.default_rng(0), [3, 0, 5], FEATURES)
    parts = [slice(*rows.indptr[b : b + 2]) for b in range(3)]
    sent = [{"indices": rows.indices[p].tolist(), "values": rows.values[p].tolist()} for p in parts]
    for k in (1, 4):
        assert_answers(ask(client, *sent, k=k), *make_model().predict(rows, k))
    ones = rows._replace(values=np.ones_like(rows.values))
    sent = [{"indices": rows.indices[part].tolist()} for part in parts]
    assert_answers(ask(client, *sent), *make_model().predict(ones, 5))


def test_features_of_a_row_add_up(client):
    """As by ``slide-predict``; JSON itself keeps the last value of a name."""

    def sent(text):
        return client.post(data=text, headers={"Content-Type": "application/json"})

    twice = {"indices": [3, 7, 3], "values": [0.75, 0.5, 0.25]}
    found = sent('{"rows": [{"features": {"3": 0.75, "7": 0.5, "3": 0.25}}]}')
    assert found.json()["answers"] == ask(client, twice) == ask(client, ROW)
    for text in ('{"rows": [{"indices": [3], "indices": [7]}]}', '{"k": 1, "rows": [{}], "k": 2}'):
        found = sent(text)
        assert found.status_code == 422
        assert "stands twice in an object" in found.json()["error"]


def test_names(named):
    row = {"features": {"word 3": 1.0, "word 7": 0.5, "unheard of": 9.0}}
    dense = np.zeros((1, FEATURES), np.float32)
    dense[0, [3, 7]] = 1, 0.5
    labels, scores = NAMED.predict(dense, 3)
    assert labels[0, 0].startswith("label ")
    assert_answers(ask(named, row, k=3), labels, scores)
    assert_answers(ask(named, ROW, k=3), labels, scores)
    assert_answers(ask(named, row, k=3, ids=True), *NAMED.predict_ids(dense, 3))
    assert ask(named, {"features": ["word 3"]}) == ask(named, {"indices": [3]})


def test_texts():
    """Also beside rows of other forms; the vectorizer is ready before the first request."""
    texts = ["a red fox", "a red dog", "a dog", "", "no such"]
    vectorizer = TextVectorizer.fit(texts[:3], TextOptions(min_rows=1))
    torch.manual_seed(0)
    model = Model(SlideNetwork(3, [8], LABELS, FullSampler), vectorizer=vectorizer)
    with serving_model(model) as client:
        assert "_vectorizer" in vars(vectorizer)
        found = ask(client, *({"text": text} for text in texts), k=4)
        between = [{"text": "a dog"}, {"features": {"red": 1.0}}, {"text": "fox"}]
        mixed = ask(client, *between, k=4)
    assert_answers(found, *model.predict(texts, 4))
    assert_answers(mixed, *model.predict(["a dog", "red", "fox"], 4))


def test_k_and_threshold(client):
    (every,) = ask(client, ROW, k=9)
    middle = every["scores"][4]
    (some,) = ask(client, ROW, k=9, threshold=middle)
    assert some == {"labels": every["labels"][:5], "scores": every["scores"][:5]}
    with serving_model(make_model(), k=100) as more:
        assert len(ask(more, ROW, k=100)[0]["labels"]) == LABELS


def test_other_pages(client):
    health = {"status": "ok", "model": "test", "features": FEATURES, "labels": LABELS}
    assert client.get("/health").json() == health | {"waiting_rows": 0}
    interface = client.get("/openapi.json").json()
    assert set(interface["paths"]) == {"/predict", "/health", "/metrics"}
    page = client.get("/docs").text
    assert client.get("/").text == page
    assert not re.search(r"(src|href)=.?(https?:)?//", page), "it loads from somewhere else"
    assert escape('{"rows": [{"indices": [0, 1], "values": [1, 0.5]}], "k": 5}') in page
    assert 'post.requestBody.content["application/json"].schema.properties' in page
    body = interface["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["schema"]["properties"]["rows"]["items"]["properties"]) == set(Row.model_fields)
    assert client.get("/nowhere").json() == {"error": "Not Found"}
    assert client.get("/predict").status_code == 405


def test_health_says_if_rows_are_not_answered(client, monkeypatch):
    monkeypatch.setattr(Batcher, "failed", True)
    answer = client.get("/health")
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("rows are not answered any more")


def test_metrics():
    with serving_model(make_model()) as client:
        ask(client, ROW, ROW)
        client.get("/a")
        client.get("/b")
        client.post(data=b"{", headers={"Content-Type": "application/json"})
        lines = client.get("/metrics").text.splitlines()
    for line in (
        'slide_requests_total{path="/predict",status="200"} 1.0',
        'slide_requests_total{path="/predict",status="400"} 1.0',
        'slide_requests_total{path="other",status="404"} 2.0',
        'slide_request_seconds_count{path="/predict"} 2.0',
        "slide_batch_rows_sum 2.0",
        "slide_batch_rows_count 1.0",
        "slide_waiting_rows 0.0",
    ):
        assert line in lines


BAD = {
    "no json": (b"{rows", "the body is no JSON: Expecting"),
    "no object": (b"[1]", 'must be a JSON object such as {"rows"'),
    "no utf-8": (b'{"rows": "\xff"}', "the body is no JSON: 'utf-8' codec"),
    "nested": (b'{"rows":' + b"[" * 1900, ""),
    "digits": (b'{"rows":[{"indices":[' + b"9" * 5000 + b"]}]}", ""),
    "no rows": ({"rows": []}, "rows: List should have at least 1 item"),
    "a key": (
        {"rows": [ROW], "top": 3},
        "top: there is no such key; a request has rows, k, threshold, ids, search",
    ),
    "a key of a row": (
        {"rows": [{"index": [1]}]},
        "rows[0].index: there is no such key; a row has indices, values, features, text",
    ),
    "a text": ({"rows": ["text"]}, """rows[0]: a row is one of {"text": "..."}, {"features":"""),
    "a long text": ({"rows": ["a" * 99]}, f"""not "{"a" * 49} ..."""),
    "surrogate": (b'{"rows": [{"features": {"\\ud800": 1}}]}', "row 0: '\\ud800' is no number"),
    "a row": ({"rows": [ROW, {}]}, "row 1: give it either indices"),
    "values": ({"rows": [{"features": {}, "values": []}]}, "row 0: values go with indices"),
    "text": ({"rows": [{"text": "a"}]}, "row 0: the model takes rows of features, not texts"),
    "lengths": (
        {"rows": [{"indices": [1], "values": []}]},
        "row 0: indices and values must have one length, not 1 and 0",
    ),
    "range": ({"rows": [{"indices": [FEATURES]}]}, f"row 0: feature {FEATURES} is not in [0, 30)"),
    "names": ({"rows": [{"features": {"word": 1}}]}, "row 0: 'word' is no number"),
    "a feature's value": (
        {"rows": [{"features": dict.fromkeys(map(str, range(99)), "")}]},
        "row 0: value '' of feature '0' is not a finite float32",
    ),
    "nan": (b'{"rows": [{"indices": [1], "values": [NaN]}]}', "should be a finite number"),
    "sum": ({"rows": [{"indices": [1, 1], "values": [3e38, 3e38]}]}, "row 0: the values of"),
    "k": ({"rows": [ROW], "k": 0}, "k: Input should be greater than or equal to 1"),
    "larger k": ({"rows": [ROW], "k": 10}, "k is at most 9, not 10"),
    "search": ({"rows": [ROW], "search": "tree"}, "search: Input should be 'exact' or 'index'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_get_a_sentence(client, case):
    body, sentence = BAD[case]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    how = {"data": content, "headers": {"Content-Type": "application/json"}}
    status = 400 if sentence.startswith("the body is") or not sentence else 422
    assert sentence in refusal(client, status, **how)


ALL_WRONG = {
    "values": {"indices": [1], "values": [""] * 9999},
    "keys": dict.fromkeys(map(str, range(9999)), 1),
}


@pytest.mark.parametrize("case", ALL_WRONG)
def test_a_large_row_that_is_all_wrong_has_few_errors(case):
    """Millions of them took gigabytes, and a minute in which nobody was answered."""
    with pytest.raises(ValidationError) as found:
        Row.model_validate(ALL_WRONG[case])
    assert found.value.error_count() <= 6


MIB = 1 << 20


def repeated(before, item, after):
    """A body of a MiB that repeats an item."""
    return before + b",".join([item] * (MIB // (len(item) + 1))) + after


NUMBERED = b",".join(b'"%d":0' % n for n in range(MIB // 10))


# Of each: the status, and how many times its own size its parsing may take.
LARGE = {
    "rows": (repeated(b'{"rows": [', b"{}", b"]}"), 413, 3),
    "no rows": (repeated(b'{"rows": [', b"0", b"]}"), 422, 3),
    "a row of lists": (repeated(b'{"rows": [{"indices": [', b"[]", b"]}]}"), 422, 32),
    "numbers": (repeated(b'{"rows": [{"indices": [', b"3", b"]}]}"), 200, 32),
    "values": (b'{"rows": [{"features": {' + NUMBERED + b"}}]}", 422, 32),
}


@pytest.mark.parametrize("case", LARGE)
def test_a_body_takes_memory_in_proportion_to_its_size(case):
    """Too many rows are noticed before they are parsed."""
    body, status, most = LARGE[case]
    model = make_model()
    tracemalloc.start()
    try:
        rows_to_csr(read_query(body, 1024).rows, model)
        found = 200
    except HTTPException as error:
        found = error.status_code
    except ValueError:
        found = 422
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found == status
    assert peak < most * len(body)


@pytest.mark.parametrize(
    ("counted", "share"), [({}, 1), ({"analyzer": "char", "ngram_range": (1, 5)}, 10)]
)
def test_a_text_takes_memory_in_proportion_to_the_largest_body(counted, share):
    """A share of the largest body is a text that is answered, and a longer one is refused."""
    vectorizer = TextVectorizer.of(HashingVectorizer(n_features=FEATURES, **counted))
    with serving_model(make_model(vectorizer=vectorizer), body_bytes=MIB) as client:
        tracemalloc.start()
        try:
            ask(client, {"text": "ab " * (MIB // share // 3 - 20)})
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        said = refusal(
            client, 413, {"rows": [{"text": ""}, {"text": "ab " * (MIB // share // 3 + 9)}]}
        )
    assert peak < 32 * MIB
    if share > 1:
        assert re.match(
            r"row 1: its texts make up to \d+ words or pieces, and at most 524288", said
        )


def test_others_are_answered_while_a_large_body_is_parsed(monkeypatch):
    """In another thread, and one body after the other."""
    begun, free, threads = threading.Event(), threading.Event(), set()

    def read(body, *others):
        if len(body) > 1 << 16:
            threads.add(threading.current_thread().name)
            begun.set()
            free.wait(20)
        return read_query(body, *others)

    monkeypatch.setattr(routes, "read_query", read)
    large = {"rows": [{"indices": [3] * 30_000}]}
    with serving_model(make_model()) as client, ThreadPoolExecutor() as pool:
        try:
            asked = [pool.submit(client.post, json=large) for _ in range(3)]
            assert begun.wait(20)
            assert client.get("/health").status_code == 200
            assert ask(client, ROW)
            assert not any(each.done() for each in asked)
        finally:
            free.set()
        assert [each.result().status_code for each in asked] == [200] * 3
    assert threads == {"slide-parser_0"}


def test_limits_of_size_and_type(client):
    said = refusal(client, 422, data=json.dumps({"rows": [ROW]}), headers={"Content-Type": "a/b"})
    assert "sent as application/json" in said
    said = refusal(client, 413, {"rows": [ROW] * 21})
    assert said == "a request has at most 20 rows; this one has more"
    said = refusal(client, 413, {"rows": [{"indices": [0] * 3000}]})
    assert said.startswith("a body has at most 6000 bytes, not 90")
    pieces = (b" " * 1000 for _ in range(7))  # Without an announced length.
    assert refusal(client, 413, data=pieces).endswith("this one has more")


@pytest.mark.parametrize("announced", [True, False])
def test_who_sends_too_much_sees_the_answer(announced):
    """A client that looks for it only when it has sent all, which is more than the system keeps."""
    with serving_model(make_model(), body_bytes=1 << 20) as client:
        content = b" " * (15 << 20)
        said = refusal(client, 413, data=content if announced else iter([content]))
        assert said.startswith("a body has at most 1048576 bytes")


def test_who_asks_before_sending_too_much_need_not_send_it(client):
    address = urlsplit(client.root)
    head = (
        "POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=30) as asking:
        asking.sendall(head.encode())
        assert asking.recv(1000).startswith(b"HTTP/1.1 413")


def test_a_model_that_is_cut_in_place_is_not_read(tmp_path):
    """To read a page that a file has lost would end the process; another file is no harm."""
    make_model().save(tmp_path)
    make_model().save(tmp_path / "other")
    path = tmp_path / "network.safetensors"
    with serving_model(load(tmp_path)) as client:
        found = ask(client, ROW)
        shutil.move(tmp_path / "other" / path.name, path)
        assert ask(client, ROW) == found
    with serving_model(load(tmp_path)) as client:
        with path.open("rb+") as file:
            file.truncate(100)
        said = "network.safetensors of the model was written over or cut; start the server again"
        assert refusal(client, 503, {"rows": [ROW]}) == said
        assert client.get("/health").json() == {"error": said}
    make_model().save(tmp_path)
    with serving_model(load(tmp_path)) as client:
        make_model().save(tmp_path)
        shutil.rmtree(tmp_path)
        assert ask(client, ROW) == found


def test_scores_that_are_not_finite_get_a_sentence():
    network = SlideNetwork(FEATURES, [8], LABELS, FullSampler)
    for parameter in network.parameters():
        torch.nn.init.constant_(parameter, 3.0)
    with serving_model(Model(network)) as client:
        bad = {"indices": [3], "values": [3e38]}
        assert "row 1 are too large" in refusal(client, 422, {"rows": [ROW, bad]})
        assert ask(client, ROW)


@pytest.fixture
def held():
    """A model whose answers to k=2 wait for an event, and which fails for k=3."""
    model, begun, free = make_model(), threading.Event(), threading.Event()
    answer = model.predict_ids

    def predict_ids(rows, k=5, search="exact"):
        if k == 3:
            raise RuntimeError("a fault of the server")
        if k == 2:
            begun.set()
            free.wait(10)
        return answer(rows, k, search)

    model.predict_ids = predict_ids
    yield model, begun, free
    free.set()


def test_answers_that_take_too_long(held):
    model, _, free = held
    with serving_model(model, timeout=0.1) as client:
        assert refusal(client, 504, {"rows": [ROW], "k": 2}) == "no answer within 0.1 s"
        free.set()
        assert ask(client, ROW, k=2)


def test_more_rows_than_may_wait(held):
    model, begun, free = held
    with serving_model(model, waiting_rows=3) as client, ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, client, ROW, k=2)]
        assert begun.wait(10)
        asked.append(pool.submit(ask, client, ROW, ROW, k=2))
        while client.get("/health").json()["waiting_rows"] < 2:
            time.sleep(0.005)
        body = {"rows": [ROW, ROW]}
        assert refusal(client, 503, body) == "2 rows wait already; try again later"
        assert client.post(json=body).headers["Retry-After"] == "1"
        free.set()
        assert [len(each.result()) for each in asked] == [1, 2]


def test_a_fault_of_the_server_is_a_sentence(held):
    with serving_model(held[0]) as client:
        said = refusal(client, 500, {"rows": [ROW], "k": 3})
        assert said == "the server failed; its log says why"
        assert 'path="/predict",status="500"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize("how", ["Content-Length: 4\r\nTransfer-Encoding", "Transfer-Encoding"])
def test_no_request_hides_in_the_body_of_another_one(how):
    """A proxy may take one of two lengths, and the server the other one."""
    with serving_model(make_model()) as client:
        address = urlsplit(client.root)
        with socket.create_connection((address.hostname, address.port), timeout=30) as asking:
            first = f"POST /a HTTP/1.1\r\nHost: a\r\n{how}: chunked\r\n\r\n0\r\n\r\n"
            hidden = "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            asking.sendall(f"{first}{hidden}".encode())
            answer = b"".join(iter(lambda: asking.recv(1000), b"")).decode()
    if "Length" in how:
        assert answer.startswith("HTTP/1.1 400")
        assert answer.endswith('has Content-Length or Transfer-Encoding, and not both"}')
    else:
        assert re.findall(r"HTTP/1.1 (\d+)", answer) == ["404", "200"]


def test_a_slow_body_is_refused():
    with serving_model(make_model(), timeout=0.1) as client:
        address = urlsplit(client.root)
        with socket.create_connection((address.hostname, address.port), timeout=30) as asking:
            asking.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
            answer = b"".join(iter(lambda: asking.recv(1000), b"")).decode()
    assert answer.startswith("HTTP/1.1 408")
    assert answer.endswith('{"error":"the body did not arrive within 0.1 s"}')


# The application of a model as a part of another one, and one that is started twice.


def ask_below(root):
    answer = requests.post(f"{root}/predict", json={"rows": [{"indices": [3]}]}, timeout=30)
    assert answer.status_code == 200, answer.text
    assert requests.get(f"{root}/health", timeout=30).json()["status"] == "ok"
    return answer.json()["answers"]


def test_an_application_in_another_one():
    app, outer = create_app(make_model(), Limits(timeout=5.0), threads=1), FastAPI()
    outer.mount("/labels", app)
    with running(outer) as root:
        found = ask_below(f"{root}/labels")
        metrics = requests.get(f"{root}/labels/metrics", timeout=30).text
        assert 'slide_requests_total{path="/predict",status="200"} 1.0' in metrics
        assert requests.get(f"{root}/labels/", timeout=30).url == f"{root}/labels/docs"
    for _ in range(2):
        with running(app) as root:
            assert ask_below(root) == found


# Requests of any shape get answers or sentences, and never a failure of the server.


@pytest.fixture(scope="module")
def texts():
    vectorizer = TextVectorizer.fit([f"word {n}x" for n in range(29)], TextOptions(min_rows=1))
    with serving_model(make_model(vectorizer=vectorizer)) as client:
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

    @fuzzed(70)
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


def test_a_column_of_a_table_may_be_called_text():
    columns = SimpleNamespace(names=["name", "text", "length"], numbers=["length"])
    form = row_form(SimpleNamespace(columns=columns, settings={"columns": {}}))
    found = {field.alias: field.description for field in form.model_fields.values() if field.alias}
    assert found["text"] == found["name"] == "a text, in the table's column"
    assert found["length"] == "a number, in the table's column"
    assert form.model_validate({"text": "a"}).text == "a"
