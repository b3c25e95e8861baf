"""From texts to rows: vectorizers of scikit-learn, and what a model keeps of them."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from slide.data.errors import DataError
from slide.sparse import CSR
from slide.utils import checks
from slide.utils.names import Names

_WORDS = ("analyzer", "binary", "dtype", "lowercase", "ngram_range", "stop_words")
_WORDS += ("strip_accents", "token_pattern")
# The arguments of scikit-learn's vectorizers that say how a text becomes a row after `fit`.
_KEPT = {
    "CountVectorizer": _WORDS,
    "HashingVectorizer": (*_WORDS, "alternate_sign", "n_features", "norm"),
    "TfidfVectorizer": (*_WORDS, "norm", "sublinear_tf"),
}


def _is_pattern(value: Any) -> bool:
    """Whether it is a regular expression with one group at most, as scikit-learn wants it."""
    try:
        return value is None or (isinstance(value, str) and re.compile(value).groups < 2)
    except (re.error, OverflowError, RecursionError):
        return False


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)


def _are_lengths(value: Any) -> bool:
    return _is_list_of(int, value) and len(value) == 2 and 0 < value[0] <= value[1]


_NUMBER_TYPES = [f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (16, 32, 64)]
_FLAGS = ("alternate_sign", "binary", "lowercase", "sublinear_tf")
# What each argument in a folder may be: scikit-learn looks at some only with the first text.
_ARGUMENTS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_FLAGS, lambda value: isinstance(value, bool)),
    "analyzer": lambda value: value in ("word", "char", "char_wb"),
    "dtype": lambda value: value in ("bool", "int8", "uint8", *_NUMBER_TYPES),
    "n_features": lambda value: type(value) is int and 0 < value < 2**31,
    "ngram_range": _are_lengths,
    "norm": lambda value: value in ("l1", "l2", None),
    "stop_words": lambda value: value in (None, "english") or _is_list_of(str, value),
    "strip_accents": lambda value: value in ("ascii", "unicode", None),
    "token_pattern": _is_pattern,
}
# Arguments that would run code of the user's, or read something else than texts.
_FIXED = {"input": "content", "preprocessor": None, "tokenizer": None}


@dataclass(frozen=True)
class TextOptions:
    """How texts become rows; see `sklearn.feature_extraction.text.TfidfVectorizer`.

    Attributes:
        ngrams: most words in a feature: 1 is single words, 2 also pairs of neighbours.
        min_rows: features of fewer training rows are left out.
        max_features: the most features, the most frequent ones; None: all.
        lower: read texts in lower case.
        sublinear: count an occurrence as 1 + ln(number of occurrences in the row).

    Example:
        >>> from slide.data import TextOptions
        >>> TextOptions(ngrams=0)
        Traceback (most recent call last):
        ValueError: ngrams must be a whole number of at least 1, not 0
    """

    kind: ClassVar[str] = "TfidfVectorizer"

    ngrams: int = 1
    min_rows: int = 2
    max_features: int | None = None
    lower: bool = True
    sublinear: bool = True

    def __post_init__(self) -> None:
        checks.whole("ngrams", self.ngrams, 1)
        checks.whole("min_rows", self.min_rows, 1)
        if self.max_features is not None:
            checks.whole("max_features", self.max_features, 1)
        checks.flag("lower", self.lower)
        checks.flag("sublinear", self.sublinear)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of scikit-learn's vectorizer, as JSON values."""
        options = {"lowercase": self.lower, "sublinear_tf": self.sublinear, "dtype": "float32"}
        return {**options, "ngram_range": [1, self.ngrams]}


@dataclass(frozen=True)
class _Kept:
    """A vectorizer of scikit-learn: its class, and its arguments as JSON values."""

    kind: str
    arguments: Mapping[str, Any]


def _made(options: TextOptions | _Kept, **more: Any) -> Any:
    import sklearn.feature_extraction.text as sklearn_text  # It takes a second.

    found = {**options.arguments, **more}
    found["dtype"] = np.dtype(found["dtype"]).type
    found["ngram_range"] = tuple(found["ngram_range"])
    return getattr(sklearn_text, options.kind)(**found)


class TextVectorizer:
    """Texts as rows: by default of tf-idf weights of their words, of length 1.

    Args:
        terms: words, or words with spaces between them, one for each feature; None: features are
            hashes of words.
        idf: ``(num_features,)`` weights of the terms; None: there are none.

    Example:
        >>> from slide.data import TextOptions, TextVectorizer
        >>> texts = ["a red fox", "a red dog", "a dog"]
        >>> vectorizer = TextVectorizer.fit(texts, TextOptions(min_rows=2))
        >>> list(vectorizer.terms), vectorizer.rows(["the dog", "no such"]).indptr.tolist()
        (['dog', 'red'], [0, 1, 1])
    """

    def __init__(self, options: Any, terms: Names | None, idf: np.ndarray | None):
        if idf is not None and (terms is None or len(terms) != len(idf)):
            raise ValueError(f"{len(idf)} weights do not fit {len(terms or ())} terms")
        self.options, self.terms = options, terms
        self.idf = None if idf is None else np.asarray(idf, np.float64)

    @property
    def num_features(self) -> int:
        """Number of columns of the rows."""
        return self.options.arguments["n_features"] if self.terms is None else len(self.terms)

    @classmethod
    def fit(cls, texts: Iterable[str], options: TextOptions) -> "TextVectorizer":
        """Count the words of training texts, which are read once; ValueError if none is left."""
        found = _made(options, min_df=options.min_rows, max_features=options.max_features)
        try:
            found.fit(texts)
        except DataError:  # A row that cannot be read.
            raise
        except ValueError as error:  # scikit-learn names its own arguments.
            said = "no training row has a word of two characters or more"
            if options.min_rows > 1:
                said = f"no word is in {options.min_rows:,} training rows: lower dataset.min_rows"
            raise ValueError(said) from error
        terms = Names.of(found.get_feature_names_out().tolist())
        return cls(options, terms, found.idf_)

    @classmethod
    def of(cls, vectorizer: Any) -> "TextVectorizer":
        """What a fitted vectorizer of scikit-learn does, as data: without its code.

        Raises TypeError unless it is a ``CountVectorizer``, ``HashingVectorizer`` or
        ``TfidfVectorizer``, and ValueError for an option that is code or reads no texts.

        Example:
            >>> from sklearn.feature_extraction.text import CountVectorizer
            >>> from slide.data import TextVectorizer
            >>> found = TextVectorizer.of(CountVectorizer(binary=True).fit(["red fox", "red dog"]))
            >>> found.rows(["red red dog"]).values.tolist()
            [1.0, 1.0]
        """
        kind = type(vectorizer).__name__
        own = type(vectorizer).__module__.startswith("sklearn.")  # A subclass has code of its own.
        if not own or kind not in _KEPT:
            raise TypeError(
                f"a vectorizer must be a {', '.join(_KEPT)} of scikit-learn, not a {kind}"
            )
        options = vectorizer.get_params()
        for name, value in _FIXED.items():
            if options[name] != value:
                raise ValueError(
                    f"{name} of the {kind} must be {value!r} for a model folder, which holds no "
                    f"code, not {options[name]!r}"
                )
        arguments = {name: options[name] for name in _KEPT[kind]}
        arguments["dtype"] = np.dtype(arguments["dtype"]).name
        for name, value in arguments.items():
            value = value.item() if isinstance(value, np.generic) else value
            if callable(value) or not isinstance(value, str | int | list | tuple | None):
                raise ValueError(
                    f"{name} of the {kind} must be a value that JSON has, for a model folder, "
                    f"which holds no code, not {value!r}"
                )
            arguments[name] = list(value) if isinstance(value, tuple) else value
        if kind == "HashingVectorizer":
            return cls(_Kept(kind, arguments), None, None)
        terms = Names.of(vectorizer.get_feature_names_out().tolist(), "terms")
        idf = None
        if kind == "TfidfVectorizer":
            idf = vectorizer.idf_ if vectorizer.use_idf else np.ones(len(terms))
        return cls(_Kept(kind, arguments), terms, idf)

    def check_terms(self, terms: Iterable[str]) -> None:
        """Raise ValueError for a term that no text can have, as the options split texts."""
        own = _made(self.options)
        split = own.build_analyzer()
        for term in terms:
            if term not in split(term):
                raise ValueError(
                    f"no text has the feature {term!r}: texts are split into words of two letters "
                    f"or more{', in lower case' * own.lowercase}, and a feature has at most "
                    f"{own.ngram_range[1]} of them"
                )

    def extended(self, terms: Names) -> "TextVectorizer":
        """The same with all ``terms``: further ones at the end count as the rarest."""
        idf = self.idf
        if idf is not None:
            new = len(terms) - len(idf)
            idf = np.pad(idf, (0, new), constant_values=idf.max(initial=1.0))
        return TextVectorizer(self.options, terms, idf)

    def most_parts(self, text: str) -> int:
        """An upper bound of the words of a text, or of its pieces, of all lengths that count."""
        own = self._vectorizer
        size = len(text.encode("utf-8", "surrogatepass"))
        positions = size // 2 if own.analyzer == "word" else size  # A blank follows a word.
        return positions * (own.ngram_range[1] - own.ngram_range[0] + 1)

    def rows(self, texts: Iterable[str]) -> CSR:
        """Rows of B texts; words that no training text had are left out."""
        if isinstance(texts, str):
            raise TypeError(f"give a list of texts, not the single text {texts[:40]!r}")
        texts = list(texts)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"text {number} must be a str, not {text!r}")
        if not texts:  # scikit-learn refuses them.
            return CSR(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        found = self._vectorizer.transform(texts)
        return CSR(
            found.indptr.astype(np.int64, copy=False),
            found.indices.astype(np.int32, copy=False),
            found.data.astype(np.float32, copy=False),
        )

    def settings(self) -> dict[str, Any]:
        """The options, as JSON values; with the terms and ``idf``, everything."""
        return asdict(self.options)

    @classmethod
    def restored(
        cls, settings: Mapping[str, Any], terms: Names | None, idf: np.ndarray | None
    ) -> "TextVectorizer":
        """The object that had these `settings`, terms and weights."""
        if "kind" not in settings:
            return cls(TextOptions(**settings), terms, idf)
        kind, arguments = settings["kind"], settings.get("arguments")
        if not isinstance(kind, str) or kind not in _KEPT or not isinstance(arguments, dict):
            raise ValueError(f"there is no vectorizer {kind!r}")
        if set(arguments) != set(_KEPT[kind]):
            raise ValueError(f"a {kind} has other arguments than {', '.join(map(str, arguments))}")
        for name, value in arguments.items():
            if not _ARGUMENTS[name](value):
                raise ValueError(f"{name} of a {kind} cannot be {value!r}")
        if arguments["analyzer"] == "word" and arguments["token_pattern"] is None:
            raise ValueError(f"token_pattern of a {kind} cannot be None: words need one")
        if arguments.get("alternate_sign") and arguments["dtype"].startswith("uint"):
            raise ValueError(f"dtype of a {kind} cannot be {arguments['dtype']}: it has signs")
        return cls(_Kept(kind, arguments), terms, idf)

    @cached_property
    def _vectorizer(self) -> Any:
        """Made at the first use: it holds all terms as Python's strings."""
        if self.terms is None:
            return _made(self.options)
        found = _made(self.options, vocabulary=list(self.terms))
        if self.idf is not None:
            found.idf_ = np.array(self.idf)
        return found
