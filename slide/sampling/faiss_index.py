"""A FAISS index over the rows of a weight."""

import faiss
import numpy as np
import torch
from torch import Tensor

from slide import checks
from slide.runtime import array_view, num_threads


class FaissIndex:
    """A FAISS index over the rows of a weight, with the bias as one more coordinate.

    Args:
        kind: ``"ivf"`` (inverted lists, cheap to build), ``"hnsw"`` (a graph, slow to build, exact
            enough with few comparisons) or ``"flat"`` (exact).
        probes: lists (ivf) or candidates (hnsw) that a search visits.

    Raises:
        ValueError: for an unknown kind or fewer than 1 probe.
    """

    KINDS = ("ivf", "hnsw", "flat")

    def __init__(self, kind: str = "ivf", probes: int = 16):
        checks.one_of("kind", kind, self.KINDS)
        checks.whole("probes", probes, 1)
        self.kind = kind
        self.probes = probes
        self.index: faiss.Index | None = None

    def build(self, weight: Tensor, bias: Tensor | None, seed: int = 0) -> None:
        """Replace the contents by the rows ``[weight, bias]``.

        Args:
            weight: ``(N, D)`` floats.
            bias: ``(N,)`` or None.
            seed: of the clustering.
        """
        faiss.omp_set_num_threads(num_threads())
        num_rows, width = weight.shape
        rows = np.zeros((num_rows, width + 1), np.float32)
        rows[:, :width] = weight.detach().float().numpy()
        if bias is not None:
            rows[:, width] = bias.detach().float().numpy()
        inner = faiss.METRIC_INNER_PRODUCT
        if self.kind == "ivf":
            lists = max(1, min(4096, round(4 * num_rows**0.5), num_rows // 39))
            index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width + 1), width + 1, lists, inner)
            index.nprobe = min(self.probes, lists)
            index.cp.seed = 1 + seed % (2**31 - 1)
            index.cp.niter = 5
            index.train(rows)  # pyright: ignore[reportCallIssue]
        elif self.kind == "hnsw":
            index = faiss.IndexHNSWFlat(width + 1, 16, inner)
            index.hnsw.efConstruction = 40
            index.hnsw.efSearch = self.probes
        else:
            index = faiss.IndexFlatIP(width + 1)
        index.add(rows)  # pyright: ignore[reportCallIssue]
        self.index = index

    def search(self, queries: Tensor, k: int) -> np.ndarray:
        """Ids ``(B, k)`` int64 of large inner products with ``[query, 1]``, best first; -1: none.

        Raises:
            RuntimeError: before the first `build`.
        """
        if self.index is None:
            raise RuntimeError("the index is empty: build it first")
        faiss.omp_set_num_threads(num_threads())
        ones = torch.ones(len(queries), 1)
        augmented = array_view(torch.cat([queries.detach().float(), ones], 1))
        return self.index.search(augmented, k)[1]  # pyright: ignore[reportCallIssue]

    def state_dict(self) -> dict[str, np.ndarray]:
        """The index as bytes."""
        return {} if self.index is None else {"index": faiss.serialize_index(self.index)}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Put back what `state_dict` gave."""
        self.index = faiss.deserialize_index(state["index"]) if "index" in state else None
