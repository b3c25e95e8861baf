"""What requests and answers look like; the page of the interface is made from it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_LARGEST = 3.4e38  # About the largest float32.
_Index = Annotated[int, Field(ge=0, lt=2**31)]
_Value = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
_Name = Annotated[str | int, Field(union_mode="left_to_right")]
_STRICT = ConfigDict(extra="forbid", strict=True)


def _first_bad_value(given: Any) -> Any:
    """Only the first value that is none of `_Value`: pydantic makes an error for each."""
    if isinstance(given, dict):
        for name, value in given.items():
            if type(value) not in (int, float) or not abs(value) <= _LARGEST:
                return {name: value}
    return given


class _Asked(BaseModel):
    """A part of a request: a large one that is all wrong gets one error, and not millions."""

    model_config = _STRICT

    @model_validator(mode="before")
    @classmethod
    def _first_unknown_key(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > len(cls.model_fields):
            unknown = next(key for key in given if key not in cls.model_fields)
            kept = {*cls.model_fields, unknown}
            return {key: given[key] for key in kept if key in given}
        return given


class Row(_Asked):
    """A row: numbers of features and their values, features by their names, or a text."""

    indices: Annotated[list[_Index], Field(fail_fast=True)] | None = Field(
        None, description="numbers of features"
    )
    values: Annotated[list[_Value], Field(fail_fast=True)] | None = Field(
        None, description="as many; without them, all are 1"
    )
    features: Annotated[
        dict[str, _Value] | Annotated[list[_Name], Field(fail_fast=True)] | None,
        BeforeValidator(_first_bad_value),
    ] = Field(
        None,
        description="values by name (or number) of the feature, or names alone, whose values are "
        "1; names that the model does not have are left out",
    )
    text: str | None = Field(None, description="a text, for a model that was trained on texts")


class Query(_Asked):
    """Rows, and which answers they get."""

    rows: list[Row] = Field(min_length=1, fail_fast=True)
    k: int = Field(5, ge=1, description="number of labels of a row")
    threshold: float | None = Field(
        None, allow_inf_nan=False, description="leave out labels with lower scores"
    )
    ids: bool = Field(False, description="numbers of labels, where the model has their names")
    # Those of `slide.model.model.SEARCHES` that any model can do.
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
