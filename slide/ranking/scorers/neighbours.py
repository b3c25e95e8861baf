"""The training rows nearest to a row by cosine, and the votes of their labels."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from slide.data import Split, labels_and_items
from slide.data.kind import DENSE, MOSTLY_NONZERO, nonzero_share
from slide.data.row_transform import keep_labels
from slide.ops.base_scorers import look_up_lists
from slide.ops.ragged import select_rows
from slide.ranking import base_scorer as base
from slide.runtime import openmp_threads
from slide.search import column_lists, sparse_top_k
from slide.search.row_blocks import ones_of
from slide.search.sparse_top_k import shortened, top_votes
from slide.sparse import CSR, Pattern, check_pattern, stacked
from slide.utils import checks
from slide.utils.array_checks import Expected, Stored
from slide.utils.progress_bar import ProgressBar
from slide.utils.sizes import mean_name

# 10,000 labels or more with fewer than 10 training rows on average: only the nearest rows have such
# labels. Of fewer labels or rows, all neighbours are needed for enough candidates.
RARE, MANY = 10, 10_000
# 20 neighbours where labels are rare, otherwise 50.
RARE_NEAR, USUAL_NEAR = 20, 50
# 16,384 list entries are read for a row on average; longer lists are cut off.
WORK = 16_384
# 8,192 for negatives: they need not be as exact, and there is a search for each training row.
_OWN_WORK = 8192
# 65,536 neighbours at most, if there are not as many rows, in a model that is opened.
_MOST_NEAR = 65_536
# 8,192 training rows are searched for at a time.
BLOCK = 8192
# 2 sqrt(R) lists, as FAISS advises, which have at least 39 rows each.
_LISTS, _LIST_ROWS = 2, 39
# 32 lists are visited for a query, 4 for negatives.
_VISITED, _OWN_VISITED = 32, 4
# Rows of an index have the length 1, but for rounding.
_LENGTH = 1.01
# A deviation below a millionth of the mean may come from rounding.
_ROUNDING = 1e-6
# A millionth is added to squared distances, which are rounded to as much.
_NO_DISTANCE = np.float32(1e-6)
# 5 passes of k-means over 39 rows a list; 8 million numbers are made dense at a time.
_PASSES, _SAMPLE, _NUMBERS = 5, 39, 2**23


class Near(NamedTuple):
    """Cosines ``(B, count)`` above 0, largest first, and numbers of rows; 0 and -1: no more."""

    scores: np.ndarray
    ids: np.ndarray


class ListSearch:
    """Sparse rows in inverted lists, of which a search reads one for each feature of a row.

    The lists (Zobel and Moffat 2006, "Inverted files for text search engines") of frequent features
    are cut off, so that a search reads about 16,000 entries for a row. ``weighted``: features count
    by their inverse document frequency (Spärck Jones 1972, "A statistical interpretation of term
    specificity and its application in retrieval").
    """

    weighting = "weighted by idf"

    def __init__(self, features: CSR, num_features: int, weighted: bool):
        self.num_rows = features.num_rows
        counts = np.bincount(features.indices, minlength=num_features)
        self.weights = np.ones(num_features, np.float32)
        if weighted:
            self.weights = np.log((1 + self.num_rows) / (1 + counts)).astype(np.float32)
        self.rows: CSR | None = self._weighted(features)
        longest = longest_list(counts, self.num_rows, WORK)
        self.lists = shortened(column_lists(self.rows, num_features), longest)

    @classmethod
    def restored(cls, stored: Stored, num_features: int, num_rows: int) -> "ListSearch":
        """The search from its `state` and weights, without the rows themselves."""
        search = cls.__new__(cls)
        search.weights = stored.array("feature_weights", Expected((num_features,), "float32", 0))
        search.lists = stored.csr("search", num_features, num_rows)
        search.num_rows, search.rows = num_rows, None
        return search

    def state(self) -> dict[str, np.ndarray]:
        """Arrays for `restored`, beside ``weights``."""
        return self.lists._asdict()

    def grown(self, features: int, weighted: bool) -> "ListSearch":
        """The same search for rows with a number of features more, which come last."""
        other, unseen = copy.copy(self), np.log(1 + self.num_rows) if weighted else 1.0
        other.weights = base.padded(self.weights, features, unseen)
        other.lists, other.rows = base.more_rows(self.lists, features), None
        return other

    def nearest(self, features: CSR, count: int) -> Near:
        """The ``count`` nearest training rows of each of B rows."""
        rows = self._weighted(features)
        return Near(*sparse_top_k(rows, self.lists, self.num_rows, count))

    def vote_weights(self, scores: np.ndarray, near: np.ndarray) -> np.ndarray:
        """The weights of what `nearest` found when they vote: their cosines."""
        return scores

    def own_nearest(self, count: int) -> Iterator[Near]:
        """The nearest other rows of training rows, some at a time; shorter lists miss some."""
        assert self.rows is not None, "the training rows are not known"
        counts = np.bincount(self.rows.indices, minlength=len(self.weights))
        lists = shortened(self.lists, longest_list(counts, self.num_rows, _OWN_WORK))
        for begin in range(0, self.num_rows, BLOCK):
            part = self.rows.slice(begin, begin + BLOCK)
            rows = np.arange(begin, begin + part.num_rows, dtype=np.int32)
            itself = Pattern(np.arange(len(rows) + 1), rows)
            yield Near(*sparse_top_k(part, lists, self.num_rows, count, itself))

    def _weighted(self, features: CSR) -> CSR:
        """The rows with weighted features, at length 1."""
        found, bounds = np.empty(len(features.indices), np.float32), features.indptr
        for begin in range(0, features.num_rows, BLOCK):
            part = features.slice(begin, begin + BLOCK)
            values = part.values * self.weights[part.indices]
            owner = part.entry_rows()
            norms = np.sqrt(np.bincount(owner, values**2, minlength=part.num_rows))
            end = min(begin + BLOCK, features.num_rows)
            found[bounds[begin] : bounds[end]] = values / np.maximum(norms, 1e-9)[owner]
        return CSR(bounds, features.indices, found)


def longest_list(counts: np.ndarray, num_rows: int, work: int) -> int:
    """The greatest power of 2 for which a search reads at most ``work`` entries on average."""
    longest = 64
    while longest < num_rows and (counts * np.minimum(counts, 2 * longest)).sum() <= (
        work * num_rows
    ):
        longest *= 2
    return longest


def are_dense(features: CSR, num_features: int) -> bool:
    """Whether rows are for `DenseSearch`: lists would hold nearly all rows, or be cut off."""
    counts = np.bincount(features.indices, minlength=num_features).astype(np.float64)
    read = float(counts @ counts) / max(features.num_rows, 1)
    return count_as_dense(nonzero_share(features, num_features), read)


def count_as_dense(share: float, read: float) -> bool:
    """`are_dense` by the share of non-zero entries, and the list entries read for a row."""
    return share > MOSTLY_NONZERO or (share > DENSE and read > WORK)


class DenseSearch:
    """Dense rows in lists of near rows, of which a search visits the nearest.

    The lists are an index of FAISS (Johnson et al. 2021, "Billion-scale similarity search with
    GPUs"). Up to a thousand rows are all compared. ``weighted``: features are standardised.
    """

    weighting = "standardised"

    def __init__(self, features: CSR, num_features: int, weighted: bool):
        import faiss  # Imported here: it loads slowly, and few data sets need it.

        self.num_rows, self.features = features.num_rows, features
        self.means = np.zeros(num_features, np.float32)
        self.weights = np.ones(num_features, np.float32)
        if weighted:
            self.means, self.weights = _scaling(features, num_features)
        lists = min(round(_LISTS * self.num_rows**0.5), self.num_rows // _LIST_ROWS)
        faiss.omp_set_num_threads(openmp_threads())
        if lists <= _VISITED:
            self.index: Any = faiss.IndexFlatIP(num_features)
        else:
            self.index = _with_lists(lists, num_features)
            self.index.cp.niter = _PASSES
            rows = np.random.default_rng(0).permutation(self.num_rows)[: _SAMPLE * lists]
            sample = CSR(*select_rows(features.indptr, np.sort(rows), *features[1:]))
            self.index.train(np.concatenate([*self._blocks(sample)]))
        for part in self._blocks(features):
            self.index.add(part)

    @classmethod
    def restored(cls, stored: Stored, num_features: int, num_rows: int) -> "DenseSearch":
        """The search from its `state` and weights, without the rows themselves."""
        search = cls.__new__(cls)
        search.weights = stored.array("feature_weights", Expected((None,), "float32", 0))
        search.means = stored.array("search.means", Expected(search.weights.shape, "float32"))
        search.features, width = None, len(search.weights)
        if width > num_features:  # Features that came later do not count.
            stored.refuse_array("feature_weights", f"be {num_features} at most")
        if "search.index" in stored:  # Bytes of FAISS, in models of earlier versions.
            index = stored.array("search.index", Expected((None,), "uint8"))
            try:
                parts = _parts_of(_read(index, width, num_rows))
            except (ValueError, RuntimeError, MemoryError):
                stored.refuse_array(
                    "search.index", f"be an index that slide made of {num_rows} rows"
                )
            stored = stored.of({}, {f"search.{name}": each for name, each in parts.items()})
        rows = stored.array("search.rows", Expected((num_rows, width), "float32"))
        centres = stored.array("search.centres", Expected((None, width), "float32"))
        listed = num_rows if len(centres) else 0
        lists = stored.array("search.lists", Expected((listed,), "int32", 0, len(centres) - 1))
        for name, vectors in {"rows": rows, "centres": centres}.items():
            with np.errstate(over="ignore"):
                if (np.einsum("ij,ij->i", vectors, vectors) > _LENGTH**2).any():
                    stored.refuse_array(f"search.{name}", f"have a length of {_LENGTH} at most")
        search.index, search.num_rows = _made(rows, centres, lists), num_rows
        return search

    def state(self) -> dict[str, np.ndarray]:
        """Arrays for `restored`, beside ``weights``."""
        return {"means": self.means, **_parts_of(self.index)}

    def grown(self, features: int, weighted: bool) -> "DenseSearch":
        """The same search: a feature that no training row has does not count."""
        return self

    def nearest(self, features: CSR, count: int) -> Near:
        """The ``count`` nearest training rows of each of B rows; some may be missed."""
        parts = [self._search(rows, _VISITED, count) for rows in self._blocks(features)]
        if not parts:
            return Near(np.empty((0, count), np.float32), np.empty((0, count), np.int32))
        return Near(*map(np.concatenate, zip(*parts, strict=True)))

    def vote_weights(self, scores: np.ndarray, near: np.ndarray) -> np.ndarray:
        """Inverse squared distances, at most 1: cosines of measurements are all near 1."""
        squares = np.maximum(2 - 2 * scores, 0) + _NO_DISTANCE
        return np.where(near >= 0, squares[:, :1] / squares, 0)

    def own_nearest(self, count: int) -> Iterator[Near]:
        """The nearest other rows of all training rows, some at a time; few lists may miss some."""
        assert self.features is not None, "the training rows are not known"
        begin = 0
        for rows in self._blocks(self.features):
            near = self._search(rows, _OWN_VISITED, count + 1)
            itself = near.ids == np.arange(begin, begin + len(rows))[:, None]
            # A row that is not among its own nearest ones has one too many of them.
            itself[:, -1] |= ~itself.any(1)
            yield Near(*(each[~itself].reshape(-1, count) for each in near))
            begin += len(rows)

    def _search(self, rows: np.ndarray, visited: int, count: int) -> Near:
        """The nearest training rows of prepared rows."""
        import faiss

        faiss.omp_set_num_threads(openmp_threads())
        lists = hasattr(self.index, "nprobe")
        options = faiss.SearchParametersIVF(nprobe=visited) if lists else None  # pyright: ignore[reportCallIssue]
        scores, ids = self.index.search(rows, count, params=options)
        none = (scores <= 0) | (ids < 0)
        scores[none], ids[none] = 0, -1
        return Near(scores, ids.astype(np.int32))

    def _blocks(self, features: CSR) -> Iterator[np.ndarray]:
        """Rows as the index has them, some at a time."""
        width = len(self.weights)
        most = max(min(BLOCK, _NUMBERS // max(width, 1)), 1)
        for begin in range(0, features.num_rows, most):
            part = features.slice(begin, begin + most)
            part = part.keep(part.indices < width)
            rows = np.zeros((part.num_rows, width), np.float32)
            rows[part.entry_rows(), part.indices] = part.values
            rows = (rows - self.means) * self.weights
            yield rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def _with_lists(lists: int, width: int) -> Any:
    """An empty index of FAISS with inverted lists."""
    import faiss

    inner = faiss.METRIC_INNER_PRODUCT
    return faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, inner)


def _parts_of(index: Any) -> dict[str, np.ndarray]:
    """The rows of an index; the centres of its lists and the list of each row, if it has lists."""
    import faiss
    from faiss.contrib.inspect_tools import get_invlist

    if not hasattr(index, "nprobe"):
        rows = index.reconstruct_n(0, index.ntotal)
        return {"rows": rows, "centres": rows[:0], "lists": np.empty(0, np.int32)}
    found = [get_invlist(index.invlists, number) for number in range(index.nlist)]
    ids = np.concatenate([ids for ids, _ in found])
    lists = np.repeat(np.arange(index.nlist, dtype=np.int32), [len(ids) for ids, _ in found])
    rows = np.concatenate([codes.view(np.float32) for _, codes in found])
    order = np.argsort(ids)
    if not np.array_equal(ids[order], np.arange(index.ntotal)):
        raise ValueError("it does not name each row once")
    centres = faiss.downcast_index(index.quantizer).reconstruct_n(0, index.nlist)
    return {"rows": rows[order], "centres": centres, "lists": lists[order]}


def _made(rows: np.ndarray, centres: np.ndarray, lists: np.ndarray) -> Any:
    """The index that has these parts."""
    import faiss

    width = rows.shape[1]
    if not len(centres):
        index: Any = faiss.IndexFlatIP(width)
        index.add(rows)
        return index
    index, lists = _with_lists(len(centres), width), lists.astype(np.int64)
    index.quantizer.add(centres)
    index.is_trained = True
    index.add_core(len(rows), faiss.swig_ptr(rows), None, faiss.swig_ptr(lists))
    return index


def _read(data: np.ndarray, width: int, num_rows: int) -> Any:
    """The index of which ``faiss.serialize_index`` gave the bytes; ValueError for another kind."""
    import faiss

    index: Any = faiss.deserialize_index(data)
    listed = type(index) is faiss.IndexIVFFlat
    flat = faiss.downcast_index(index.quantizer) if listed else index
    found = [type(flat), index.d, flat.d, index.ntotal, flat.ntotal]
    centres = index.nlist if listed else num_rows
    fits = found == [faiss.IndexFlatIP, width, width, num_rows, centres]
    if listed:
        lists: Any = index.invlists
        fits &= (lists.nlist, lists.code_size) == (index.nlist, 4 * width)
    if not fits:
        raise ValueError("it is another index than slide makes")
    return index


def _scaling(features: CSR, num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each feature, and 1 / its standard deviation; 0 where it never varies."""
    sums, squares = np.zeros((2, num_features))
    for begin in range(0, features.num_rows, BLOCK):
        part = features.slice(begin, begin + BLOCK)
        values = part.values.astype(np.float64)
        sums += np.bincount(part.indices, values, num_features)
        squares += np.bincount(part.indices, values**2, num_features)
    means, squares = sums / features.num_rows, squares / features.num_rows
    deviations = np.sqrt(np.maximum(squares - means**2, 0))
    # Rounding leaves a deviation to a feature that is always the same.
    varies = deviations > _ROUNDING * np.abs(means)
    factors = np.divide(1, deviations, where=varies, out=np.zeros(num_features))
    return means.astype(np.float32), factors.astype(np.float32)


class Votes(NamedTuple):
    """Labels of the nearest training rows.

    ``(B, k)`` ids with the most votes first, -1: there are no more; votes weighted by similarity,
    and by its fourth power, as shares of all votes of the row; ``(B,)`` similarity of the nearest
    row, and mean similarity of the neighbours.
    """

    ids: np.ndarray
    shares: np.ndarray
    sharp: np.ndarray
    nearest: np.ndarray
    mean: np.ndarray


class Neighbours(base.BaseScorer):
    """Finds the training rows that are nearest by cosine, and lets their labels vote.

    Args:
        count: number of neighbours of a row; None: see `num_near_rows`.
        weighted: whether features count by how rare they are, or in dense rows by how little they
            vary.
        proposed: number of labels with the most votes that are candidates.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        search: finds the nearest rows; None before `fit`.

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import Neighbours
        >>> indptr, ones = np.arange(4), np.ones(3, np.float32)
        >>> features = slide.CSR(indptr, np.array([0, 1, 1], np.int32), ones)
        >>> labels = slide.Pattern(indptr, np.array([5, 6, 7], np.int32))
        >>> model = Neighbours(count=2, weighted=False).fit(features, labels, 8, 8)
        >>> model.votes(features, k=2).ids.tolist()
        [[5, -1], [6, 7], [6, 7]]
    """

    name = "neighbours"
    features: ClassVar = {
        "neighbours": base.FOR,
        "neighbours_sharp": base.FOR,
        "neighbours_rank": base.RANK,
        "nearest": base.ANY,
        "mean_similarity": base.ANY,
    }
    numbers = "count", "weighted", "num_labels", "num_rows"

    def __init__(self, count: int | None = USUAL_NEAR, weighted: bool = True, proposed: int = 60):
        if count is not None:
            checks.whole("count", count, 1)
        checks.flag("weighted", weighted)
        self.set_counts(proposed=proposed)
        self._found, self.count, self.weighted = count is None, count or USUAL_NEAR, weighted
        self.search: ListSearch | DenseSearch | None = None
        self.labels, self.num_labels = base.NOTHING, 0

    def fit(
        self, features: CSR, labels: Pattern, num_features: int, num_labels: int
    ) -> "Neighbours":
        """Take ``(R, D)`` rows to search in, and their labels."""
        check_pattern("labels", labels, features.num_rows, num_labels)
        check_pattern("features", features, None, num_features)
        checks.finite("features", features.values)
        self.count = min(self.count, max(features.num_rows, _MOST_NEAR))
        self.search = None  # Before a new one is made, which takes as much memory.
        search = DenseSearch if are_dense(features, num_features) else ListSearch
        self.search = search(features, num_features, self.weighted)
        self.labels = ones_of(labels)
        self.num_labels = num_labels
        return self

    def votes(self, features: CSR, k: int, left_out: Pattern | None = None) -> Votes:
        """The k labels that the nearest rows of each row name most often, without ``left_out``."""
        scores, near = self.fitted().nearest(features, self.count)
        labels = Pattern(self.labels.indptr, self.labels.indices)
        weights = self.fitted().vote_weights(scores, near)
        ids, votes, sharp = top_votes(near, weights, labels, self.num_labels, k, left_out)
        sums = weights.sum(1, keepdims=True), (weights**4).sum(1, keepdims=True)
        return Votes(
            ids,
            votes / np.maximum(sums[0], 1e-9),
            sharp / np.maximum(sums[1], 1e-9),
            scores[:, 0],
            scores.sum(1) / np.maximum((near >= 0).sum(1), 1),
        )

    def own_candidates(
        self,
        k: int,
        left_out: Callable[[int, int], Pattern] | None = None,
    ) -> Pattern:
        """For each training row the k labels with the most votes of its other neighbours.

        The search is quicker than in `votes`, so some of the nearest rows may be missing.
        ``left_out(begin, end)``: labels that are no candidates of rows ``begin`` to ``end``.
        """
        search, begin, parts = self.fitted(), 0, [Pattern.from_lists([])]
        with ProgressBar(total=search.num_rows, desc="candidates", leave=False) as bar:
            for scores, near in search.own_nearest(self.count):
                end = begin + len(near)
                without = None if left_out is None else left_out(begin, end)
                weights = search.vote_weights(scores, near)
                rows = CSR(*Pattern.from_padded(near), weights[near >= 0])
                _, found = sparse_top_k(rows, self.labels, self.num_labels, k, without)
                parts.append(Pattern.from_padded(found))
                bar.update(end - begin)
                begin = end
        return stacked(parts)

    def fitted(self) -> ListSearch | DenseSearch:
        """What finds the nearest rows, or a RuntimeError before `fit`."""
        if self.search is None:
            raise RuntimeError("there are no training rows: call fit first")
        return self.search

    def learn(self, training: base.Training) -> None:
        """Take rows to search in; with held-out rows, choose how features are weighted."""
        train, held = training.train, training.held
        # What a nearest row of items holds is as good an answer as what it asks for.
        labels = labels_and_items(train) if training.kind == "items" else train.labels
        rows = train.features, labels, train.num_features, train.num_labels
        if held is None:
            self.fit(*rows)
            return
        self.search = None  # Before new ones are made, which take as much memory.
        if self._found:
            self.count = num_near_rows(train, training.kind)
        found = []
        for weighted in (False, True):
            model = self.with_(weighted=weighted).fit(*rows)
            found.append((training.precision(lambda *query, m=model: m.votes(*query).ids), model))
        (better, model), (worse, _) = sorted(found, key=lambda pair: -pair[0])
        vars(self).update(vars(model))
        how = self.fitted().weighting if self.weighted else "as they are"
        training.notes.append(
            f"features of the nearest rows: {how}, "
            f"{mean_name(training.cut_offs)} {better / 100:.3f} against {worse / 100:.3f} on "
            f"{len(training.trial):,} held-out rows"
        )

    def propose(self, queries: base.Queries) -> base.Named:
        votes = self.votes(queries.features, min(self.proposed, queries.num_labels), queries.seen)
        return base.Named(votes.ids, votes)

    def score(self, queries: base.Queries, candidates: base.Candidates, more: Any) -> base.Scores:
        found = np.empty((candidates.starts[-1], 2), np.float32)
        look_up_lists(*candidates, more.ids, (more.shares, more.sharp), found)
        return {
            "neighbours": found[:, 0],
            "neighbours_sharp": found[:, 1],
            "nearest": candidates.of_rows(more.nearest),
            "mean_similarity": candidates.of_rows(more.mean),
        }

    @property
    def num_rows(self) -> int:
        return self.fitted().num_rows

    def arrays(self) -> dict[str, np.ndarray]:
        search = self.fitted()
        found = {f"search.{name}": array for name, array in search.state().items()}
        found |= {"feature_weights": search.weights}
        return found | base.named_arrays("labels", Pattern(*self.labels[:2]))

    def restore(self, stored: Stored, num_labels: int, num_features: int) -> None:
        super().restore(stored, num_labels, num_features)
        num_rows, self._found = stored.count("num_rows", 1), False
        # Each neighbour takes memory in an answer; there may be fewer rows than neighbours.
        self.count = stored.count("count", 1, max(num_rows, _MOST_NEAR))
        self.weighted = stored.flag("weighted")
        self.num_labels = stored.exactly("num_labels", num_labels)
        dense = "search.index" in stored or "search.centres" in stored
        search = DenseSearch if dense else ListSearch
        self.search = search.restored(stored, num_features, num_rows)
        self.labels = ones_of(stored.pattern("labels", num_rows, num_labels))

    def grown(self, labels: int, features: int) -> "Neighbours":
        search = self.fitted().grown(features, self.weighted)
        return self.with_(num_labels=self.num_labels + labels, search=search)

    def selected(self, kept: np.ndarray, num_labels: int) -> "Neighbours":
        return self.with_(labels=keep_labels(self.labels, kept, num_labels), num_labels=len(kept))


def num_near_rows(train: Split, kind: str) -> int:
    """How many nearest rows vote: `RARE_NEAR` where labels are rare, or else `USUAL_NEAR`.

    In a recommender or a graph they are never taken for rare.
    """
    rare = len(train.labels.indices) < RARE * train.num_labels and train.num_labels >= MANY
    return RARE_NEAR if rare and kind not in ("graph", "items") else USUAL_NEAR
