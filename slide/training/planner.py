"""Looks at precision on held-out training rows while a run with a `Plan` goes on."""

import numpy as np

from slide.backend import on_host
from slide.bars import Bar, say
from slide.compilation import clock
from slide.data import Batches, Split, find_known, first_unknown
from slide.distributed import Group
from slide.nn import SlideNetwork
from slide.sizes import judged_places
from slide.sparse import Pattern
from slide.training.metrics import precision_at_k
from slide.training.monitor import Monitor
from slide.training.plan import Plan
from slide.training.progress import Counters
from slide.training.together import Together

_ROWS, _BATCH = 2000, 512


class HeldRows:
    """Some held-out rows, and what training rows say of them.

    Args:
        train: the rows that the network learns from.
        held: rows that it does not learn from; at most 2,000 of them are used.
        kind: `slide.data.kind_of` all of these rows: a part of them can look like another kind.
    """

    def __init__(self, train: Split, held: Split, kind: str):
        # Files may be sorted, so the rows come from all of them.
        rows = np.linspace(0, len(held) - 1, min(_ROWS, len(held))).astype(np.int64)
        self.split = held.take(rows)
        self.known: Pattern | None = None
        if kind in ("graph", "items"):
            self.known = find_known(train, kind).of(self.split.features)
        self.places = judged_places(train.num_labels)
        self.baseline = self._judge(self._frequent(train), self.known)

    def precision(self, network: SlideNetwork) -> float:
        """The mean of P@1, P@3 and P@5 by exact search, in [0, 1]; at fewer places than labels.

        In a knowledge graph, the predictions for a row leave out the labels of the equal training
        row; in a recommender, its own items (`slide.data.kind_of`).
        """
        labels, found = network.output.out_features, []
        for batch in Batches(self.split, _BATCH, seed=0, shuffle=False).epoch(0):
            known = self._known_of(batch.rows)
            depth = min(self.places[-1] + _most(known), labels)
            ids = on_host(network.predict(batch.features, depth)[1])
            found.append(ids if known is None else first_unknown(ids, known, self.places[-1]))
        return self._judge(np.concatenate(found))

    def _judge(self, ids: np.ndarray, known: Pattern | None = None) -> float:
        """The precision of answers ``(rows, k)``, without known ones."""
        best = ids if known is None else first_unknown(ids, known, self.places[-1])
        return float(np.mean([precision_at_k(best, self.split.labels, k) for k in self.places]))

    def _frequent(self, train: Split) -> np.ndarray:
        """The same answers for each row: the most frequent labels, as many as are needed."""
        counts = np.bincount(train.labels.indices, minlength=train.num_labels)
        ids = np.argsort(-counts, kind="stable")[: self.places[-1] + _most(self.known)]
        return np.broadcast_to(ids, (len(self.split), len(ids)))

    def _known_of(self, rows: np.ndarray) -> Pattern | None:
        return None if self.known is None else self.known.slice(rows[0], rows[-1] + 1)


def _most(known: Pattern | None) -> int:
    """The most labels of a row; None has none."""
    return 0 if known is None else int(np.diff(known.indptr).max(initial=0))


class Planner:
    """Evaluates a network for its plan, and says what the run is waiting for.

    Args:
        plan: the plan to carry on.
        held: the rows that judge.
        together: the processes of the run; None: this one alone.
    """

    def __init__(self, plan: Plan, held: HeldRows, together: Together | None = None):
        self.plan, self.together = plan, together or Together(Group.alone())
        self.held = None if plan.decay_from else held

    def look(self, network: SlideNetwork, counters: Counters, monitor: Monitor, bar: Bar) -> None:
        """After a step: evaluate the network if that is due, and decide whether the rate falls.

        Args:
            network: the network.
            counters: counters of the run; the seconds of the evaluation are added.
            monitor: the log; takes the precision as ``held/precision``.
            bar: says what the run is waiting for.
        """
        plan, step = self.plan, counters.step
        if self.held is None or plan.decay_from:
            return
        if plan.wants_score(step):
            begin = clock()
            score = self.held.precision(network)
            counters.held_seconds += clock() - begin
            monitor.write(step, {"held/precision": score})
            plan.note_score(step, score, self.held.baseline)
            bar.set_description_str(plan.sentence())
        plan.check_limits(step, self.together.seconds(counters.train_seconds))
        if plan.decay_from:
            bar.total = plan.total
            bar.set_description_str(plan.sentence())
            say(f"step {step}: {plan.sentence()}")
