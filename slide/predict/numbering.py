"""Columns of features and labels, by their names or by the numbers that training files count."""

from typing import Any, NamedTuple

from slide.data.formats.text_reader import VARIANTS, text_variant
from slide.model import Model, Names


class Numbering(NamedTuple):
    """How a model's training files count; rows to predict, and answers, count in the same way.

    Attributes:
        format: of the files; None: they were no text of rows.
        first_feature, first_label: numbers of the first columns; 0 in matrices and generated rows.
    """

    format: str | None = None
    first_feature: int = 0
    first_label: int = 0

    @classmethod
    def of(cls, model: Model) -> "Numbering":
        """The numbering of a model that ``train.py`` or the model's own folder describes.

        Example:
            >>> import slide
            >>> from slide.predict.numbering import Numbering
            >>> network = slide.SlideNetwork(5, [2], 3, slide.FullSampler)
            >>> model = slide.Model(network, settings={"dataset": {"format": "svmlight"}})
            >>> Numbering.of(model)
            Numbering(format='svmlight', first_feature=1, first_label=0)
        """
        files = model.settings.get("dataset")
        files = files if isinstance(files, dict) else {}
        if files.get("format") not in VARIANTS:
            return cls()
        named = files["format"], files.get("first_feature"), files.get("first_label")
        variant = text_variant(*named)
        return cls(files["format"], variant.first_feature, variant.first_label)


def number_features(
    given: dict[Any, Any] | list[Any], model: Model, counted: Numbering
) -> dict[int, float]:
    """Values by column of the feature; values of the same feature are added up.

    Args:
        given: values by name or number of the feature, or a list of these: all values are 1.
            Numbers are those of the training files.
        model: says how many features there are, and their names.
        counted: how the training files count.

    Raises:
        ValueError: for a value that is not finite, or a feature that the model cannot have.
    """
    pairs = given.items() if isinstance(given, dict) else ((each, 1.0) for each in given)
    features: dict[int, float] = {}
    columns = model.num_features, counted.first_feature
    for feature, value in pairs:
        _check_finite(value, feature)
        place = _number_of(feature, model.feature_names, *columns)
        if place is not None:  # Else a word, for example, that no training row has.
            features[place] = features.get(place, 0.0) + value
            _check_finite(features[place], feature)
    return features


def _check_finite(value: Any, feature: Any) -> None:
    if not isinstance(value, int | float) or not abs(value) < 3.4e38:
        raise ValueError(f"value {value!r} of feature {feature!r} is not a finite float32")


def number_labels(
    given: Any, model: Model, counted: Numbering, unknown: dict[Any, int]
) -> list[int]:
    """Columns of labels, each once.

    Args:
        given: a list of names or numbers; None: there are none.
        model: says how many labels there are, and their names.
        counted: how the training files count.
        unknown: numbers of the names that are no label of the model; grows by new ones.

    Raises:
        ValueError: for what is no list, or no name.
    """
    labels, columns = [], (model.num_labels, counted.first_label)
    if given is not None and not isinstance(given, list):
        raise ValueError(f"labels must be a list of names, not {given!r}")
    for label in given or []:
        place = _number_of(label, model.label_names, *columns, strict=False)
        if place is None:
            place = model.num_labels + unknown.setdefault(str(label), len(unknown))
        labels.append(place)
    return list(dict.fromkeys(labels))  # 5 and "5" are one name.


def _number_of(
    name: Any, names: Names | None, count: int, first: int, strict: bool = True
) -> int | None:
    """The column of a feature or label; None if there is none of that name."""
    if names is not None:
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise ValueError(f"{name!r} is neither text nor a whole number")
        return names.number(str(name) if names.kind == "text" else _whole(name))
    number = _whole(name)
    if number is None:
        raise ValueError(f"{name!r} is no number; the model has no names")
    if not first <= number < first + count:
        if strict:
            raise ValueError(f"feature {number} is not in [{first}, {first + count})")
        return None
    return number - first


def _whole(name: Any) -> int | None:
    """A whole number, or the one that a text is; else None."""
    if isinstance(name, str) and name.removeprefix("-").isdecimal():
        return int(name)
    return name if isinstance(name, int) and not isinstance(name, bool) else None
