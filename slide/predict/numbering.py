"""From which number on the training files of a model count features and labels."""

from typing import NamedTuple

from slide.data.formats.text_reader import VARIANTS, text_variant
from slide.model import Model


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
