"""The application of a model as a part of another one, and one that is started twice."""

import requests
from fastapi import FastAPI
from helpers.serving import running

from slide import FullSampler, Model, SlideNetwork
from slide.serve import Limits, create_app


def make_app():
    model = Model(SlideNetwork(30, [8], 12, FullSampler))
    return create_app(model, Limits(timeout=5.0), threads=1)


def ask(root):
    answer = requests.post(f"{root}/predict", json={"rows": [{"indices": [3]}]}, timeout=30)
    assert answer.status_code == 200, answer.text
    assert requests.get(f"{root}/health", timeout=30).json()["status"] == "ok"
    return answer.json()["answers"]


def test_an_application_in_another_one():
    app, outer = make_app(), FastAPI()
    outer.mount("/labels", app)
    with running(outer) as root:
        found = ask(f"{root}/labels")
        metrics = requests.get(f"{root}/labels/metrics", timeout=30).text
        assert 'slide_requests_total{path="/predict",status="200"} 1.0' in metrics
    for _ in range(2):
        with running(app) as root:
            assert ask(root) == found
