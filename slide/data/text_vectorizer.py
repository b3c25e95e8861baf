"""From texts to rows: scikit-learn's tf-idf vectorizer, and what a model keeps of it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from slide.data.errors import DataError
from slide.sparse import CSR
from slide.utils import checks
from slide.utils.names import Names

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

__all__ = ["TextOptions", "TextVectorizer"]


@dataclass(frozen=True)
class TextOptions:
    """How texts become rows; see `sklearn.feature_extraction.text.TfidfVectorizer`.

    Attributes:
        ngrams: most words in a feature: 1 is single words, 2 also pairs of neighbours.
        min_rows: features of fewer training rows are left out.
        max_features: the most features, those of most occurrences; None: all.
        lower: read texts in lower case.
        sublinear: count an occurrence as 1 + ln(number of occurrences in the row).

    Raises:
        ValueError: for an option that is out of range.

    Example:
        >>> from slide.data import TextOptions
        >>> TextOptions(ngrams=0)
        Traceback (most recent call last):
        ValueError: ngrams must be a whole number of at least 1, not 0
    """

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


class TextVectorizer:
    """Texts as rows of tf-idf weights of their words, of length 1.

    It is scikit-learn's ``TfidfVectorizer``, kept as its options, its terms and their weights.

    Args:
        options: how texts become rows.
        terms: words, or words with spaces between them, one for each feature.
        idf: ``(num_features,)`` float64 weights of the terms.

    Raises:
        ValueError: if there are not as many weights as terms.

    Example:
        >>> from slide.data import TextOptions, TextVectorizer
        >>> texts = ["a red fox", "a red dog", "a dog"]
        >>> vectorizer = TextVectorizer.fit(texts, TextOptions(min_rows=2))
        >>> list(vectorizer.terms), vectorizer.rows(["the dog", "no such"]).indptr.tolist()
        (['dog', 'red'], [0, 1, 1])
    """

    def __init__(self, options: TextOptions, terms: Names, idf: np.ndarray):
        if len(terms) != len(idf):
            raise ValueError(f"{len(idf)} weights do not fit {len(terms)} terms")
        self.options, self.terms, self.idf = options, terms, idf

    @classmethod
    def fit(cls, texts: Iterable[str], options: TextOptions) -> "TextVectorizer":
        """Count the words of training texts.

        Args:
            texts: read once, in order.
            options: how texts become rows.

        Raises:
            ValueError: if no word is in enough texts.
        """
        found = _fresh(options, min_df=options.min_rows, max_features=options.max_features)
        try:
            found.fit(texts)
        except DataError:  # A row that cannot be read.
            raise
        except ValueError as error:  # scikit-learn names its own arguments.
            raise ValueError(
                f"no word is in {options.min_rows} training rows: lower dataset.min_rows"
            ) from error
        terms = Names.of(found.get_feature_names_out().tolist())
        return cls(options, terms, found.idf_.astype(np.float64))

    def check_terms(self, terms: Iterable[str]) -> None:
        """Raise ValueError for a term that no text can have, as the options split texts."""
        split = _fresh(self.options).build_analyzer()
        for term in terms:
            if term not in split(term):
                raise ValueError(
                    f"no text has the feature {term!r}: texts are split into words of two letters "
                    f"or more{', in lower case' * self.options.lower}, and a feature has at most "
                    f"{self.options.ngrams} of them"
                )

    def rows(self, texts: Iterable[str]) -> CSR:
        """Rows of texts; words that no training text had are left out.

        Args:
            texts: B texts.

        Raises:
            TypeError: for a single text, or for one that is none.
        """
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
        cls, settings: Mapping[str, Any], terms: Names, idf: np.ndarray
    ) -> "TextVectorizer":
        """The object that had these `settings`, terms and weights."""
        return cls(TextOptions(**settings), terms, idf)

    @cached_property
    def _vectorizer(self) -> "TfidfVectorizer":
        """Made at the first use: it holds all terms as Python's strings."""
        found = _fresh(self.options, vocabulary=list(self.terms))
        found.idf_ = np.array(self.idf)
        return found


def _fresh(options: TextOptions, **more: Any) -> "TfidfVectorizer":
    from sklearn.feature_extraction.text import TfidfVectorizer  # It takes a second.

    kinds: Any = {"dtype": np.float32}
    return TfidfVectorizer(
        ngram_range=(1, options.ngrams),
        lowercase=options.lower,
        sublinear_tf=options.sublinear,
        **kinds,
        **more,
    )
