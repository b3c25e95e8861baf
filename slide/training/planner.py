"""Looks at precision on held-out training rows while a run with a `Plan` goes on."""

import numpy as np

from slide.backend import on_host
from slide.data import Batches, Split, find_seen, first_unseen
from slide.data.dataset import take_labels
from slide.distributed import Group
from slide.nn import SlideNetwork
from slide.ranking.unknown_labels import best_unknown, rows_by_depth
from slide.sparse import Pattern
from slide.training.metrics import precision_at_k
from slide.training.monitor import Monitor
from slide.training.plan import Plan
from slide.training.progress import Counters
from slide.training.together import Together
from slide.utils.profiling import clock
from slide.utils.progress_bar import ProgressBar, log
from slide.utils.sizes import validation_cutoffs

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
            self.known = find_seen(train, kind).of(self.split.features)
        self.places = validation_cutoffs(train.num_labels)
        self.baseline = self._judge(self._frequent(train))

    def precision(self, network: SlideNetwork) -> float:
        """The mean of P@1, P@3 and P@5 by exact search, in [0, 1]; at fewer places than labels.

        In a knowledge graph, the predictions for a row leave out the labels of the equal training
        row; in a recommender, its own items (`slide.data.kind_of`).
        """
        found, count = [], self.places[-1]
        for batch in Batches(self.split, _BATCH, seed=0, shuffle=False).epoch(0):
            if self.known is None:
                found.append(on_host(network.predict(batch.features, count)[1]))
            else:
                known = self.known.slice(batch.rows[0], batch.rows[-1] + 1)
                hidden = network.embed(batch.features)
                found.append(best_unknown(network.output, hidden, known, count))
        return self._judge(np.concatenate(found))

    def _judge(self, ids: np.ndarray) -> float:
        """The precision of answers ``(rows, k)``."""
        return float(np.mean([precision_at_k(ids, self.split.labels, k) for k in self.places]))

    def _frequent(self, train: Split) -> np.ndarray:
        """The most frequent labels of all rows, as answers for each row: those not known."""
        rows, labels, count = len(self.split), train.num_labels, self.places[-1]
        ids = np.argsort(-np.bincount(train.labels.indices, minlength=labels), kind="stable")
        if self.known is None:
            return np.broadcast_to(ids[:count], (rows, count))
        found = np.empty((rows, count), np.int64)
        for part, depth in rows_by_depth(self.known, count, labels):
            same = np.broadcast_to(ids[:depth], (len(part), depth))
            found[part] = first_unseen(same, take_labels(self.known, part), count)
        return found


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

    def look(
        self, network: SlideNetwork, counters: Counters, monitor: Monitor, bar: ProgressBar
    ) -> None:
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
            log(f"step {step}: {plan.sentence()}")
