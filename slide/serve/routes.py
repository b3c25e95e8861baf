"""The addresses of a server: requests and answers, their checks, and the counters of Prometheus."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, cast

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from starlette.exceptions import HTTPException as HTTPError

from slide import runtime
from slide.model import Model, Predicted
from slide.predict.rows import (
    NameTwice,
    Numbering,
    each_row,
    number_features,
    object_hook,
    one_row,
    shown_labels,
)
from slide.serve.batcher import Batcher, Limits, Overloaded
from slide.serve.docs_page import docs_page
from slide.serve.hosts import Hosts
from slide.sparse import CSR, stacked
from slide.utils import checks

_Index = Annotated[int, Field(ge=0, lt=2**31)]
# 3.4e38 is about the largest float32.
_Value = Annotated[float, Field(ge=-3.4e38, le=3.4e38, allow_inf_nan=False)]
_Name = Annotated[str | int, Field(union_mode="left_to_right")]
_STRICT = ConfigDict(extra="forbid", strict=True)

# Bounds of the histograms of Prometheus: seconds of a request, and rows of a product.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = tuple(2.0**power for power in range(11))
# 400 characters of a sentence are shown: it may hold a name from the request.
_LONGEST = 400
_ROW_FORMS = 'one of {"text": "..."}, {"features": {"name": 1}}, {"indices": [3], "values": [1]}'
_CODES = (400, 408, 413, 421, 422, 503, 504)
# A body of 65,536 bytes, which takes about a millisecond, is parsed in a thread beside the event
# loop, and so is a larger one.
_LARGE_BODY = 1 << 16
# An answer of 20,000 labels takes some milliseconds to write.
_LARGE_ANSWER = 20_000
# Of a body that is too large, 16 times the limit are read and thrown away: most clients look for
# an answer only when they have sent all.
_DRAINED = 16
# A proxy that believes the other one would take the end of a body for the next request.
_TWO_LENGTHS = "a request has Content-Length or Transfer-Encoding, and not both"
_BLANKS = re.compile(r"[ \t\n\r]*")
_WANTED = 'a JSON object such as {"rows": [...]}, sent as application/json'


class Row(BaseModel):
    """A row: numbers of features and their values, features by their names, or a text."""

    model_config = _STRICT

    indices: Annotated[list[_Index], Field(fail_fast=True)] | None = Field(
        None, description="numbers of features"
    )
    values: Annotated[list[_Value], Field(fail_fast=True)] | None = Field(
        None, description="as many; without them, all are 1"
    )
    # Names and values are those of `number_features`, which stops at the first that is none.
    features: dict[str, Any] | list[Any] | None = Field(
        None,
        description="values by name (or number) of the feature, or names alone, whose values are "
        "1; names that the model does not have are left out",
    )
    text: str | None = Field(None, description="a text, for a model that was trained on texts")

    @model_validator(mode="before")
    @classmethod
    def _first_unknown_key(cls, given: Any) -> Any:
        """A large row that is all wrong gets one error, and not millions."""
        if isinstance(given, dict) and len(given) > len(cls.model_fields):
            known = _keys(cls)
            kept = {*known, *[key for key in given if key not in known][:1]}
            return {key: given[key] for key in kept if key in given}
        return given


def _keys(form: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in form.model_fields.items()]


# What a row has in a column of texts, and in one of numbers.
_CELLS = "a text, in the table's column", "a number, in the table's column"


def row_form(model: Model) -> type[Row]:
    """What a row may be: for a model of a table, also cells by the name of their column."""
    columns, fields = model.columns, dict[str, Any]()
    if columns is None or "columns" not in model.settings:
        return Row
    for column in columns.names:
        number = column in columns.numbers
        field = Field(None, alias=column, description=_CELLS[number])
        if column not in Row.model_fields:
            kind: Any = _Value if number else str
            fields[f"column_{len(fields)}"] = (kind | None, field)
        elif column == "text" and not number:
            fields[column] = (str | None, field)
    return create_model("Row", __base__=Row, __doc__=Row.__doc__, **fields) if fields else Row


class Query(BaseModel):
    """Rows, and which answers they get."""

    model_config = _STRICT

    rows: list[Row] = Field(min_length=1, fail_fast=True, description="one or more rows")
    k: int = Field(5, ge=1, description="number of labels of a row")
    threshold: float | None = Field(
        None, allow_inf_nan=False, description="leave out labels with lower scores"
    )
    ids: bool = Field(False, description="numbers of labels, where the model has their names")
    # The searches of `slide.model.model.SEARCHES` that every model has.
    search: Literal["exact", "index"] | None = Field(
        None, description="how labels are found; without it, as the server was told to"
    )


class Answer(BaseModel):
    """The labels of a row, best first: names, or numbers if the model has no names."""

    labels: list[_Name]
    scores: list[float]


class AnsweredRows(BaseModel):
    """An answer to each row, in their order."""

    answers: list[Answer]


class Problem(BaseModel):
    """What was wrong with a request."""

    error: str


class Health(BaseModel):
    """The server answers."""

    status: Literal["ok"]
    model: str = Field(description="name of the data set")
    features: int
    labels: int
    waiting_rows: int


class _Json:
    """JSON whose containers are read item by item, and other values as a whole."""

    def __init__(self, text: str, columns: bool):
        self.text, self.at = text, 0
        self.decoder = json.JSONDecoder(object_pairs_hook=object_hook(columns))

    def skips(self, wanted: str) -> bool:
        """Whether this comes next; it is passed then."""
        self.at = cast(re.Match, _BLANKS.match(self.text, self.at)).end()
        found = self.text.startswith(wanted, self.at)
        self.at += len(wanted) if found else 0
        return found

    def need(self, wanted: str) -> None:
        if not self.skips(wanted):
            raise json.JSONDecodeError(f"Expecting '{wanted}'", self.text, self.at)

    def value(self) -> Any:
        self.skips("")
        found, self.at = self.decoder.raw_decode(self.text, self.at)
        return found

    def items(self, end: str) -> Iterator[int]:
        """Stop before each item of a container, and after its end; their numbers."""
        if self.skips(end):
            return
        number = 0
        yield number
        while not self.skips(end):
            self.need(",")
            number += 1
            yield number

    def finish(self) -> None:
        self.skips("")
        if self.at < len(self.text):
            raise json.JSONDecodeError("Extra data", self.text, self.at)


def read_query(body: bytes, most: int, form: type[Row] = Row) -> Query:
    """The query in a body, parsed row by row: between two rows other threads go on."""
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        parsed = _Json(text, columns=form is not Row)
        if body and parsed.skips("{"):
            return _read_fields(parsed, most, form)
        if body:
            parsed.value()
            parsed.finish()
    except ValidationError as error:
        raise HTTPException(422, _fault(error, form)) from error
    except NameTwice as error:
        raise HTTPException(422, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from error
    raise HTTPException(422, f"the body must be {_WANTED}")


def _read_fields(parsed: _Json, most: int, form: type[Row]) -> Query:
    found = {}
    for _ in parsed.items("}"):
        key = parsed.value()
        parsed.need(":")
        if key in found:
            raise NameTwice(key)
        if key not in Query.model_fields:
            raise HTTPException(422, f"{key}: {_unknown_key('a request', Query)}")
        if key != "rows" or not parsed.skips("["):
            found[key] = parsed.value()
            continue
        found[key] = rows = []
        for number in parsed.items("]"):
            if number == most:
                raise HTTPException(
                    413, f"a request has at most {checks.counted(most, 'row')}; this one has more"
                )
            try:
                rows.append(form.model_validate(parsed.value()))
            except ValidationError as error:
                raise HTTPException(422, _fault(error, form, "rows", number)) from error
    parsed.finish()
    return Query.model_validate(found)


def _fault(error: ValidationError, form: type[Row], *above: str | int) -> str:
    """Where the first fault is, and what it is; in other words where pydantic names our classes."""
    first = error.errors()[0]
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in (*above, *first["loc"]))
    said = first["msg"]
    if above and first["type"] == "extra_forbidden":
        said = _unknown_key("a row", form)
    elif above and first["type"] in ("model_type", "model_attributes_type"):
        fields, given = form.model_fields.values(), json.dumps(first["input"])
        columns = [str(field.alias) for field in fields if field.description in _CELLS]
        forms = f"an object with the columns {', '.join(columns)}" if columns else _ROW_FORMS
        said = f"a row is {forms}, not {given if len(given) < 50 else given[:50] + ' ...'}"
    return f"{path.removeprefix('.')}: {said}"


def _unknown_key(where: str, known: type[BaseModel]) -> str:
    return f"there is no such key; {where} has {', '.join(_keys(known))}"


def rows_to_csr(rows: Sequence[Row], model: Model) -> CSR:
    """The rows as a matrix ``(B, D)``; values of a feature that a row names twice are added up."""
    counted, cells = Numbering.of(model), [_cells(row) for row in rows]
    given, texts = [each for each in cells if each], None
    if model.columns is not None:  # All texts in one call.
        texts = each_row(model.rows_of(given) if given else None)
    found = []
    for number, (row, own) in enumerate(zip(rows, cells, strict=True)):
        try:
            found.append(_row(row, own, texts, model, counted))
        except (ValueError, TypeError) as error:
            raise ValueError(f"row {number}: {error}") from error
    return stacked(found)


def _check_texts(rows: Sequence[Row], model: Model, most: int) -> None:
    """Raise HTTPException for a row whose words would take more memory than a body may."""
    for number, row in enumerate(rows):
        texts = [cell for cell in _cells(row).values() if isinstance(cell, str)]
        if texts and model.vectorizer is not None:
            count = sum(map(model.vectorizer.most_parts, texts))
            if count > most:
                sentence = f"its texts make up to {count} words or pieces, and at most {most}"
                raise HTTPException(413, f"row {number}: {sentence} are counted (--max-body)")


def _cells(row: Row) -> dict[str, Any]:
    """The cells of a row, and its text, that are given."""
    found = {} if row.text is None else {"text": row.text}
    for name in row.model_fields_set:
        if name not in Row.model_fields:
            found[type(row).model_fields[name].alias or name] = getattr(row, name)
    return found


def _row(
    row: Row, cells: dict[str, Any], texts: Iterator[CSR] | None, model: Model, counted: Numbering
) -> CSR:
    """The features of a row; ``texts`` has those of rows with ``cells``, in their order."""
    if [row.indices, row.features, cells or None].count(None) != 2:
        columns = " and columns" if type(row) is not Row else ""
        raise ValueError(f"give it either indices (and values), or features, or a text{columns}")
    if row.values is not None and row.indices is None:
        raise ValueError("values go with indices; features and texts have their own")
    if cells:
        if texts is None:
            raise ValueError("the model takes rows of features, not texts")
        return next(texts)
    if row.features is not None:
        return one_row(number_features(row.features, model, counted))  # They are finite.
    columns = np.array(row.indices, np.int32)
    values = np.ones(len(columns)) if row.values is None else np.array(row.values)
    if len(values) != len(columns):
        raise ValueError(
            f"indices and values must have one length, not {len(columns)} and {len(values)}"
        )
    first, end = counted.first_feature, counted.first_feature + model.num_features
    for bad in columns[(columns < first) | (columns >= end)][:1]:
        raise ValueError(f"feature {bad} is not in [{first}, {end})")
    columns, at = np.unique(columns - first, return_inverse=True)
    sums = np.bincount(at, values, len(columns))
    if (np.abs(sums) > np.finfo(np.float32).max).any():
        raise ValueError("the values of a feature add up to more than a float32 holds")
    return CSR(np.array([0, len(columns)]), columns, sums.astype(np.float32))


class Metrics:
    """The metrics of one server."""

    def __init__(self, waiting: Callable[[], int]):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        how: Any = {"namespace": "slide", "registry": self.registry}
        self.requests = Counter("requests", "Requests.", ("path", "status"), **how)
        about = "Seconds from the last byte of a request to its answer."
        self.seconds = Histogram("request_seconds", about, ("path",), buckets=_SECONDS, **how)
        about = "Rows that were answered in one product."
        self.batch_rows = Histogram("batch_rows", about, buckets=_ROWS, **how)
        Gauge("waiting_rows", "Rows that wait for a batch.", **how).set_function(waiting)


class _Refused(Exception):
    """A status and a sentence."""


class Guard:
    """ASGI middleware: an application gets a request when its whole body is there.

    A request that calls the server by a wrong name gets a 421.
    """

    def __init__(
        self, app: Any, limits: Limits, metrics: Metrics, paths: Collection[str], hosts: Hosts
    ):
        self.app, self.limits, self.metrics = app, limits, metrics
        self.paths, self.hosts = paths, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = _own_path(scope) if _own_path(scope) in self.paths else "other"
        status, begin, waiting = 500, time.perf_counter(), []

        async def counted(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        async def replayed() -> Any:
            return waiting.pop() if waiting else await receive()

        try:
            if (sentence := self.hosts.refusal(scope)) is not None:
                raise _Refused(421, sentence)
            body = await self._read(scope, receive)
            waiting.append({"type": "http.request", "body": body, "more_body": False})
            begin = time.perf_counter()
            await self.app(scope, replayed, counted)
        except _Refused as refused:
            code, sentence = refused.args
            answer = JSONResponse({"error": sentence}, code, {"Connection": "close"})
            await answer(scope, receive, counted)
        finally:
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - begin)

    async def _read(self, scope: Any, receive: Any) -> bytes:
        most, headers = self.limits.body_bytes, dict(scope["headers"])
        if {b"content-length", b"transfer-encoding"} <= headers.keys():
            raise _Refused(400, _TWO_LENGTHS)
        announced = headers.get(b"content-length", b"0")
        announced = int(announced[:20]) if announced.isdigit() else 0
        said = f", not {announced}" if announced > most else "; this one has more"
        too_large = _Refused(413, f"a body has at most {most} bytes{said}")
        if announced > most and (b"expect" in headers or announced > _DRAINED * most):
            raise too_large  # Who expects "100 Continue" has not sent it.
        parts, size, more = [], 0, True
        end = time.monotonic() + self.limits.timeout
        while more and size <= _DRAINED * most:
            try:
                message = await asyncio.wait_for(receive(), end - time.monotonic())
            except asyncio.TimeoutError as error:  # Another class before Python 3.11.
                late = f"the body did not arrive within {self.limits.timeout:g} s"
                raise _Refused(408, late) from error
            if message["type"] == "http.disconnect":
                raise _Refused(400, "the connection ended before the body")
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if max(size, announced) > most:
                parts.clear()
        if max(size, announced) > most:
            raise too_large
        return b"".join(parts)


def _own_path(scope: Any) -> str:
    """The path without that of the application in which this one is mounted."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def make_app(model: Model, limits: Limits, threads: int, search: str, hosts: Hosts) -> FastAPI:
    """See `slide.serve.create_app`."""
    metrics = Metrics(lambda: batcher.waiting)

    def answer(rows: CSR, k: int, search: str) -> Predicted:
        check_files()  # As late as can be: to read a page that a file has lost ends the process.
        return model.predict_ids(rows, k, search)

    def check_files() -> None:
        if path := model.changed_file():
            sentence = f"{path.name} of the model was written over or cut; start the server again"
            raise HTTPException(503, sentence)

    batcher = Batcher(answer, limits, threads, metrics.batch_rows.observe)
    parser = ThreadPoolExecutor(1, "slide-parser")  # One large body is parsed at a time.

    async def apart(large: bool, work: Callable[..., Any], *given: Any) -> Any:
        """What ``work`` returns; one that would hold the event loop up is done beside it."""
        if not large:
            return work(*given)
        done = asyncio.get_running_loop().run_in_executor(parser, work, *given)
        return await asyncio.wait_for(done, limits.timeout)

    def read(body: bytes) -> tuple[Query, CSR]:
        query = read_query(body, limits.rows, form)
        if query.k > limits.k:
            raise HTTPException(422, f"k is at most {limits.k}, not {query.k}")
        _check_texts(query.rows, model, limits.body_bytes // 2)
        rows = rows_to_csr(query.rows, model)
        query.rows.clear()  # They take many times the memory of the arrays.
        return query, rows

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        # Compile kernels, and make look-ups of names and words, before requests.
        if model.feature_names is not None:
            await batcher.run(model.feature_names.number, "")
        if model.vectorizer is not None:
            await batcher.run(model.rows_of, ["a text"])
        row = CSR(np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32))
        await batcher.run(model.predict_ids, row, 1, search)
        yield
        await batcher.stop()

    about = "Labels for rows of features or texts, by a model of slide."
    options: dict[str, Any] = {"redoc_url": None, "docs_url": None, "lifespan": lifespan}
    app = FastAPI(title="slide", description=about, version=runtime.VERSION, **options)
    responses: Any = {code: {"model": Problem} for code in _CODES}

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("docs")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(model))

    form, schema = row_form(model), Query.model_json_schema()
    schema.pop("$defs")
    schema["properties"]["rows"]["items"] = form.model_json_schema()
    wanted = {"required": True, "content": {"application/json": {"schema": schema}}}

    @app.post(
        "/predict",
        response_model=AnsweredRows,
        responses=responses,
        openapi_extra={"requestBody": wanted},
    )
    async def predict(request: Request) -> Response:
        """The best labels of each row, with their scores."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not re.fullmatch(r"application/(.+\+)?json", kind):
            raise HTTPException(422, f"the body must be {_WANTED}")
        body = await request.body()
        try:
            query, rows = await apart(len(body) >= _LARGE_BODY, read, body)
            found = await batcher.ask(rows, query.k, query.search or search)
            many = rows.num_rows * query.k >= _LARGE_ANSWER
            return Response(
                await apart(many, _written, found, query, model), media_type="application/json"
            )
        except Overloaded as error:
            sentence = f"{checks.counted(batcher.waiting, 'row')} wait already; try again later"
            raise HTTPException(503, sentence, {"Retry-After": "1"}) from error
        except asyncio.TimeoutError as error:  # Another class before Python 3.11.
            raise HTTPException(504, f"no answer within {limits.timeout:g} s") from error
        except ValueError as error:
            raise HTTPException(422, str(error)) from error

    @app.get("/health", response_model=Health, responses={503: {"model": Problem}})
    async def health() -> dict[str, Any]:
        """That the server answers, and what the model is."""
        if batcher.failed:
            raise HTTPException(503, "rows are not answered any more; start the server again")
        check_files()
        sizes = {"features": model.num_features, "labels": model.num_labels}
        return {"status": "ok", "model": model.name, **sizes, "waiting_rows": batcher.waiting}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """Counters and times, in the text format of Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    app.add_exception_handler(HTTPError, _refused)
    app.add_exception_handler(Exception, _failed)
    paths = {route.path for route in app.routes}  # type: ignore[attr-defined]
    app.add_middleware(Guard, limits=limits, metrics=metrics, paths=paths, hosts=hosts)
    return app


def _written(found: Predicted, query: Query, model: Model) -> bytes:
    """The answers as JSON, written row by row: between two rows other threads go on."""
    kept = found.labels >= 0
    if query.threshold is not None:
        kept &= found.scores >= query.threshold
    labels = shown_labels(found.labels, model, query.ids)
    how: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    rows = []
    for i, some in enumerate(kept):
        row = {"labels": labels[i][some].tolist(), "scores": found.scores[i][some].tolist()}
        rows.append(json.dumps(row, **how))
    return f'{{"answers":[{",".join(rows)}]}}'.encode()


async def _refused(request: Any, error: Any) -> JSONResponse:
    # Half of a pair of surrogates cannot be encoded.
    text = str(error.detail).encode("utf-8", "backslashreplace").decode()
    short = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    return JSONResponse({"error": short}, error.status_code, error.headers)


async def _failed(request: Any, error: Exception) -> JSONResponse:
    # uvicorn writes the error into the log, and closes the connection.
    sentence = "the server failed; its log says why"
    return JSONResponse({"error": sentence}, 500, {"Connection": "close"})
