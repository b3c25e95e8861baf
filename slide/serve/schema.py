"""What requests and answers look like; the page of the interface is made from it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_LARGEST = 3.4e38  # About the largest float32.
_Index = Annotated[int, Field(ge=0, lt=2**31)]
_Value = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
_Name = Annotated[str | int, Field(union_mode="left_to_right")]
_STRICT = ConfigDict(extra="forbid", strict=True)


class Row(BaseModel):
    """A row: numbers of features and their values, features by their names, or a text."""

    model_config = _STRICT
    indices: list[_Index] | None = Field(None, description="numbers of features")
    values: list[_Value] | None = Field(None, description="as many; without them, all are 1")
    features: dict[str, _Value] | list[_Name] | None = Field(
        None,
        description="values by name (or number) of the feature, or names alone, whose values are "
        "1; names that the model does not have are left out",
    )
    text: str | None = Field(None, description="a text, for a model that was trained on texts")


class Query(BaseModel):
    """Rows, and which answers they get."""

    model_config = _STRICT
    rows: list[Row] = Field(min_length=1)
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
