"""Candidates by any index of FAISS's index factory."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import on_host
from slide.sampling.protocol import most_labels, without_labels
from slide.sampling.ranked import RankedProposer
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.profiling import profiled

# With fewer rows, 256 lists have no 40 rows each.
_FEW = 40 * 256


class FaissProposer(RankedProposer):
    """Proposes the rows with the largest inner products that an index of FAISS finds.

    The index holds each row with its bias as one more coordinate. Each rebuild makes a new index,
    which does not change between rebuilds. (Douze et al. 2024, "The Faiss library".)

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        factory: a string of FAISS's index factory, such as ``"IVF1024,SQ8"``, ``"HNSW32"``,
            ``"LSH"`` or ``"Flat"``; lists need about 40 rows each. None: ``"IVF256,SQ8"``, and
            ``"Flat"`` for fewer than 10,240 outputs.
        best: maximum number of candidates of a sample; twice as many are scored exactly.
        seed: not used; other proposers have this argument, too.

    Raises:
        ValueError: for a string that FAISS does not know, or a number out of range.
        ImportError: without the package faiss-cpu.

    Example:
        >>> import slide, torch
        >>> weight = torch.randn(100, 8)
        >>> proposer = slide.FaissProposer(8, 100, factory="Flat")
        >>> proposer.rebuild(weight, None)
        >>> int(proposer.candidates(10 * weight[:1]).indices[0])
        0
    """

    cpu_only = True
    scored = 2

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        factory: str | None = None,
        best: int = 16,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, best=best, seed=seed)
        if factory is not None:
            checks.filled_text("factory", factory)
        self._given = factory
        self._index: Any = None
        self._empty()  # So that a bad string is an error here.

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_index": None}  # It is rebuilt from the weights.

    def _empty(self) -> Any:
        """A new index, not trained."""
        try:
            import faiss
        except ImportError as error:
            raise ImportError(
                "FaissProposer needs FAISS: pip install faiss-cpu, or choose LSHProposer"
            ) from error
        try:
            width = self.in_features + 1
            return faiss.index_factory(width, self.factory, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise ValueError(
                "factory must be a string of FAISS's index factory, such as 'IVF256,SQ8', for rows "
                f"of {self.in_features + 1} numbers, not {self.factory!r}"
            ) from error

    @property
    def factory(self) -> str:
        """The string of the index factory."""
        few = self.out_features < _FEW
        return self._given or ("Flat" if few else "IVF256,SQ8")

    @profiled("rebuild")
    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Train a new index, and add all rows."""
        self._rows, self._index = (weight, bias), None
        added = weight.new_zeros(len(weight)) if bias is None else bias
        rows = on_host(torch.cat([weight, added[:, None]], 1).float())
        index = self._empty()
        try:
            index.train(np.ascontiguousarray(rows))
            index.add(rows)
        except RuntimeError as error:
            reason = str(error).rpartition(": ")[2]
            raise ValueError(
                f"factory={self.factory!r} does not fit {len(rows)} rows: {reason}"
            ) from error
        self._index = index
        self.changed.forget()

    def refresh(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Score with these weights; copies of the proposer make their index first."""
        self._rows = weight, bias
        if self._index is None:
            self.rebuild(weight, bias)
            return True
        self.changed.forget()
        return False

    def find(self, queries: Tensor, labels: Pattern, most: int) -> Tensor:
        """See `RankedProposer.find`."""
        x = queries.detach().float()
        x = np.ascontiguousarray(on_host(torch.cat([x, x.new_ones(len(x), 1)], 1)))
        wanted = min(most + most_labels(labels), self.out_features)
        ids = self._index.search(x, wanted)[1].astype(np.int32) if len(x) else np.empty((0, wanted))
        # FAISS does not say how many rows it has scanned.
        return torch.from_numpy(without_labels(ids.astype(np.int32), labels, most).padded(most))

    def description(self) -> str:
        """See `Proposer.description`."""
        return f"FAISS index {self.factory} over {self.out_features:,} outputs"

    def statistics(self) -> dict[str, float]:
        """See `Proposer.statistics`; FAISS does not say how many rows a search has scanned."""
        return {}
