"""The addresses of a server, and the sentences that it answers to bad requests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as HTTPError

from slide import runtime
from slide.model import Model, Predicted
from slide.predict.numbering import Numbering
from slide.serve.batcher import Batcher, Overloaded
from slide.serve.guard import Guard
from slide.serve.limits import Limits
from slide.serve.metrics import CONTENT_TYPE_LATEST, Metrics
from slide.serve.rows import rows_to_csr
from slide.serve.schema import AnsweredRows, Health, Problem, Query
from slide.sparse import CSR

_LONGEST = 400  # Characters of a sentence: it may hold a name from the request.
_CODES = (400, 408, 413, 422, 503, 504)


def make_app(model: Model, limits: Limits, threads: int, search: str) -> FastAPI:
    """See `slide.serve.create_app`."""
    metrics = Metrics(lambda: state.waiting)
    state = Batcher(model.predict_ids, limits, threads, metrics.batch_rows.observe)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.start()
        await _warm_up(state, model, search)
        yield
        await state.stop()

    about = "Labels for rows of features or texts, by a model of slide."
    options: dict[str, Any] = {"redoc_url": None, "lifespan": lifespan}
    app = FastAPI(title="slide", description=about, version=runtime.VERSION, **options)
    _add_routes(app, (model, search), limits, state, metrics)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPError, _refused)
    app.add_exception_handler(Exception, _failed)
    paths = {route.path for route in app.routes}  # type: ignore[attr-defined]
    app.add_middleware(Guard, limits=limits, metrics=metrics, paths=paths)
    return app


def _add_routes(
    app: FastAPI, served: tuple[Model, str], limits: Limits, batcher: Batcher, metrics: Metrics
) -> None:
    model, search = served
    responses: Any = {code: {"model": Problem} for code in _CODES}

    @app.post("/predict", response_model=AnsweredRows, responses=responses)
    async def predict(query: Query) -> Response:
        """The best labels of each row, with their scores."""
        _check_size(query, limits)
        try:
            rows = rows_to_csr(query.rows, model)
            found = await batcher.ask(rows, query.k, query.search or search)
        except Overloaded as error:
            sentence = f"{batcher.waiting} rows wait already; try again later"
            raise HTTPException(503, sentence, {"Retry-After": "1"}) from error
        except TimeoutError as error:
            raise HTTPException(504, f"no answer within {limits.timeout:g} s") from error
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        return JSONResponse({"answers": _answers(found, query, model)})

    @app.get("/health", response_model=Health, responses={503: {"model": Problem}})
    async def health() -> dict[str, Any]:
        """That the server answers, and what the model is."""
        if batcher.failed:
            raise HTTPException(503, "rows are not answered any more; start the server again")
        sizes = {"features": model.num_features, "labels": model.num_labels}
        return {"status": "ok", "model": model.name, **sizes, "waiting_rows": batcher.waiting}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """Counters and times, in the text format of Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def _warm_up(batcher: Batcher, model: Model, search: str) -> None:
    """Compile kernels, and make look-ups of names and words, before requests.

    So is the index, if requests get it that name no search; else when one asks for it.
    """
    row = CSR(np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32))
    if model.feature_names is not None:
        await batcher.run(model.feature_names.number, "")
    if model.vectorizer is not None:
        await batcher.run(model.rows_of, ["a text"])
    await batcher.run(model.predict_ids, row, 1, search)


def _check_size(query: Query, limits: Limits) -> None:
    if len(query.rows) > limits.rows:
        raise HTTPException(413, f"a request has at most {limits.rows} rows, not {len(query.rows)}")
    if query.k > limits.k:
        raise HTTPException(422, f"k is at most {limits.k}, not {query.k}")


def _answers(found: Predicted, query: Query, model: Model) -> list[dict[str, Any]]:
    kept = found.labels >= 0
    if query.threshold is not None:
        kept &= found.scores >= query.threshold
    names = None if query.ids else model.label_names
    first = Numbering.of(model).first_label
    labels = found.labels + first if names is None else names.take(found.labels)
    return [
        {"labels": labels[i][kept[i]].tolist(), "scores": found.scores[i][kept[i]].tolist()}
        for i in range(len(kept))
    ]


def _sentence(text: str) -> dict[str, str]:
    # Half of a pair of surrogates cannot be encoded.
    text = text.encode("utf-8", "backslashreplace").decode()
    return {"error": text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."}


async def _invalid(request: Any, error: Any) -> JSONResponse:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return JSONResponse(_sentence(f"the body is no JSON: {first['ctx']['error']}"), 400)
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"][1:])
    if not place:
        wanted = 'a JSON object such as {"rows": [...]}, sent as application/json'
        return JSONResponse(_sentence(f"the body must be {wanted}"), 422)
    return JSONResponse(_sentence(f"{place.removeprefix('.')}: {first['msg']}"), 422)


async def _refused(request: Any, error: Any) -> JSONResponse:
    return JSONResponse(_sentence(str(error.detail)), error.status_code, error.headers)


async def _failed(request: Any, error: Exception) -> JSONResponse:
    # uvicorn writes the error into the log, and closes the connection.
    sentence = "the server failed; its log says why"
    return JSONResponse({"error": sentence}, 500, {"Connection": "close"})
