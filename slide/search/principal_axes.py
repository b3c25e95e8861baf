"""A nearly exact search for many high scores, by products in the principal axes of a weight."""

import numpy as np
import torch
from torch import Tensor

from slide.runtime import has_bfloat16

_COPIED_ROWS = 1 << 16  # Rows of a weight that are copied at a time.
# A sample of the scores of an input gives the bound for its high scores. About this many scores of
# the sample are above the bound.
_SAMPLED = 8
_FEW = 2048  # The sample has at least this many scores.
# Number of principal axes of the weight rows. Products with more axes find nearly the same outputs.
_AXES = 192


class PrincipalAxesSearch:
    """Finds about ``count`` outputs with the highest scores for each input.

    Products are computed in the principal axes of the weight rows. They are rounded to bfloat16 if
    the processor multiplies it faster. A sample of the scores of an input gives a bound, and scores
    above it are high. The result has at most twice ``count`` outputs for each input. The object is
    called as ``search(hidden, count)``; see `__call__`.

    Args:
        weight: ``(N, D)`` floats; changes after the construction have no effect.
        bias: ``(N,)`` or None.
        among: ``(n,)`` int64 ascending ids of the outputs to choose from.

    Example:
        >>> import numpy as np, torch
        >>> from slide.search import PrincipalAxesSearch
        >>> search = PrincipalAxesSearch(torch.eye(4), None, np.arange(4))
        >>> rows, ids = search(torch.eye(4), count=1)
        >>> bool((rows == ids).all())
        True
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, among: np.ndarray):
        self.among, self.axes = among, None
        weight, places = weight.detach(), torch.from_numpy(among)
        # Rows are copied in parts, because the weight may take up most of the memory.
        if weight.shape[1] > _AXES:
            self.axes = _main_axes(weight, places)
        rounds = weight.dtype == torch.float32 and has_bfloat16()
        parts = []
        for at in places.split(_COPIED_ROWS):
            rows = weight.index_select(0, at)
            rows = rows if self.axes is None else rows @ self.axes
            parts.append(rows.bfloat16() if rounds else rows)
        self.weight = torch.cat(parts)
        self.bias = None if bias is None else bias.detach()[places].to(self.weight)

    def __call__(self, hidden: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The high scores of inputs.

        Args:
            hidden: ``(B, D)`` floats.
            count: number of outputs to find for each input.

        Returns:
            Two integer arrays of one length, sorted by input: numbers of inputs in [0, B), and ids.
        """
        num_labels = len(self.among)
        if count >= num_labels:
            rows = np.repeat(np.arange(len(hidden)), num_labels)
            return rows, np.tile(self.among, len(hidden))
        scores = self._scores(hidden)
        stride = max(1, min(count // _SAMPLED, num_labels // _FEW))
        sample = scores[:, ::stride]
        least = sample.topk(min(-(-count // stride), sample.shape[1]), sorted=False).values.amin(1)
        # numpy finds the true values of a flat array fastest.
        high = np.flatnonzero((scores >= least[:, None]).numpy())
        rows, places = np.divmod(high, num_labels)
        crowded = np.flatnonzero(np.bincount(rows, minlength=len(hidden)) > 2 * count)
        if len(crowded):  # Many scores are equal, for example of an input without features.
            kept = ~np.isin(rows, crowded)
            best = scores[torch.from_numpy(crowded)].topk(count).indices.sort().values
            rows = np.concatenate([rows[kept], np.repeat(crowded, count)])
            places = np.concatenate([places[kept], best.numpy().ravel()])
            order = np.argsort(rows, kind="stable")
            rows, places = rows[order], places[order]
        return rows, self.among[places]

    def _scores(self, hidden: Tensor) -> Tensor:
        if self.axes is not None:
            hidden = hidden.to(self.axes.dtype) @ self.axes
        scores = hidden.to(self.weight.dtype) @ self.weight.T
        return scores if self.bias is None else scores.add_(self.bias)


def _main_axes(weight: Tensor, places: Tensor) -> Tensor:
    """``(D, _AXES)`` principal axes of the rows ``places``; the mean is not subtracted."""
    products = torch.zeros(weight.shape[1], weight.shape[1])
    for at in places.split(_COPIED_ROWS):
        rows = weight.index_select(0, at).float()
        products += rows.T @ rows
    return torch.linalg.eigh(products).eigenvectors[:, -_AXES:].to(weight.dtype)
