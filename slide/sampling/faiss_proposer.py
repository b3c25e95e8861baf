"""Candidates by FAISS: rows with large inner products."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view, check_on_cpu
from slide.kernels.votes import RankedIds
from slide.runtime import library_threads
from slide.sampling.best_ids import dense, ranked
from slide.sampling.protocol import Proposer, Queries
from slide.sparse import Pattern
from slide.utils import checks

KINDS = ("ivf", "hnsw", "flat")


class FaissProposer(Proposer):
    """Proposes the rows that a FAISS index finds, with the bias as one more coordinate.

    A row with a NaN or an infinite number is not found; a bias of -inf masks an output.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        kind: ``"ivf"`` (inverted lists; fast to build), ``"hnsw"`` (a graph; slow to build, fast to
            search) or ``"flat"`` (exact).
        probes: number of inverted lists (ivf) or candidates (hnsw) that a search visits.
        neighbours: number of candidates of each sample, for shared sets and for prediction.
        seed: seed of the clustering.

    Raises:
        ValueError: for an unknown kind or a number below 1.

    Example:
        >>> import slide, torch
        >>> weight = torch.randn(100, 8)
        >>> proposer = slide.FaissProposer(8, 100, kind="flat", neighbours=3)
        >>> proposer.rebuild(weight, None)
        >>> proposer.candidates(10 * weight[:1]).indices.shape
        (3,)
    """

    sparse_inputs = False
    cpu_only = holds_vectors = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        kind: str = "ivf",
        probes: int = 16,
        neighbours: int = 32,
        seed: int = 0,
    ):
        super().__init__(in_features, out_features, seed=seed)
        checks.one_of("kind", kind, KINDS)
        probes = checks.whole("probes", probes, 1)
        neighbours = checks.whole("neighbours", neighbours, 1)
        self.kind = kind
        self.probes = probes
        self.neighbours = neighbours
        self.rebuilds = 0
        self.index: Any = None

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """Replace the index by one over the rows ``[weight, bias]``."""
        import faiss  # Imported here: it loads slowly, and few runs use it.

        check_on_cpu("searches of FAISS (LSHProposer and uniform draws work elsewhere)", weight)
        faiss.omp_set_num_threads(library_threads())
        num_rows, width = weight.shape
        rows = np.zeros((num_rows, width + 1), np.float32)
        rows[:, :width] = weight.detach().float().numpy()
        if bias is not None:
            rows[:, width] = bias.detach().float().numpy()
        ids = np.flatnonzero(np.isfinite(rows).all(1))
        if len(ids) < num_rows:
            num_rows, rows = len(ids), rows[ids]
        inner = faiss.METRIC_INNER_PRODUCT
        if self.kind == "ivf" and num_rows:  # Of no rows there are no lists.
            lists = max(1, min(4096, round(4 * num_rows**0.5), num_rows // 39))
            index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width + 1), width + 1, lists, inner)
            index.nprobe = min(self.probes, lists)
            index.cp.seed = 1 + (self.seed + self.rebuilds) % (2**31 - 1)
            index.cp.niter = 5
            index.train(rows)  # pyright: ignore[reportCallIssue]
        elif self.kind == "hnsw":
            graph = faiss.IndexHNSWFlat(width + 1, 16, inner)
            graph.hnsw.efConstruction = 40
            graph.hnsw.efSearch = self.probes
            index = faiss.IndexIDMap(graph)
        else:
            index = faiss.IndexIDMap(faiss.IndexFlatIP(width + 1))
        index.add_with_ids(rows, ids)  # pyright: ignore[reportCallIssue]
        self.index = index
        self.rebuilds += 1

    def search(self, queries: Queries, k: int) -> np.ndarray:
        """Ids ``(B, k)`` int32 of large inner products with ``[query, 1]``, best first; -1: none.

        Raises:
            RuntimeError: before the first `rebuild`.
            TypeError: for inputs in CSR form.
        """
        queries = dense(queries, type(self).__name__)
        if self.index is None:
            raise RuntimeError("the index is empty; call rebuild first")
        import faiss

        faiss.omp_set_num_threads(library_threads())
        ones = torch.ones(len(queries), 1)
        augmented = array_view(torch.cat([queries.detach().float(), ones], 1))
        return self.index.search(augmented, k)[1].astype(np.int32)

    def candidates(self, queries: Queries) -> Pattern:
        """The ``neighbours`` best ids of each input, best first."""
        return Pattern.from_padded(self.search(queries, min(self.neighbours, self.out_features)))

    def propose(
        self, queries: Queries, labels: Pattern, places: np.ndarray, key: np.uint64
    ) -> RankedIds:
        """See `Proposer.propose`; looks up as many ids as there are places."""
        return ranked(self.search(queries, int(places.max(initial=1))), places)

    def state_dict(self) -> dict[str, Any]:
        """The index as bytes, and the number of rebuilds."""
        import faiss

        index = {} if self.index is None else {"index": faiss.serialize_index(self.index)}
        return {"rebuilds": self.rebuilds} | index

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        import faiss

        self.rebuilds = int(state["rebuilds"])
        self.index = faiss.deserialize_index(state["index"]) if "index" in state else None
