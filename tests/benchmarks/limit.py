"""What limits precision: what the default call would gain if its judge saw omikuji's scores, too.

    pip install -e '.[bench]'
    python tests/benchmarks/limit.py --root path/to/data

Network, re-ranker and omikuji learn from the same training rows. One judge sees the evidence of
the default call, another one also the score and the rank that omikuji gives a candidate; both learn
from the rows that the run holds out. All are judged on other training rows, which nothing learnt
from; the test rows are not touched. Writes results/limit.{json,md} after each row; rows that there
are for this commit and machine are not measured again (rows.py).
"""

import argparse
import os
from typing import Any, NamedTuple

import numpy as np
import omikuji as trees  # tests/benchmarks/omikuji.py
from hydra.utils import instantiate
from report import table
from rows import Row, Store, add_options, numbers, origin, parse, spread
from runs import trained
from sets import HELD_OUT, place
from train_process import ROOT

from slide import runtime
from slide.config import read_config
from slide.data import Split
from slide.ranking import EnsembleRanker
from slide.ranking.evidence import COLUMNS, Evidence, join
from slide.ranking.judge import Judge
from slide.sparse import hits
from slide.training import Trainer
from slide.training.metrics import precision_at_k

# Labels that omikuji names for a row; rows that are judged, and that judges learn from, at most.
NAMED, ROWS = 10, 8192
OURS, OMIKUJI, BOTH = "the default call", "omikuji", "its judge sees omikuji's scores, too"
BEST, BEST_OF_BOTH = "the best order of its candidates", "the best order of these and omikuji's"
METHODS = [OMIKUJI, OURS, BOTH, BEST, BEST_OF_BOTH]


class Rows(NamedTuple):
    """Rows, the evidence of their candidates, and what omikuji says of them.

    Attributes:
        split: the rows.
        evidence: see `slide.ranking.evidence.Evidence`.
        named: ``(B, NAMED)`` labels that omikuji names, best first; -1: no more.
        scores: ``(B, NAMED)`` its scores, 0 where it names no more.
    """

    split: Split
    evidence: Evidence
    named: np.ndarray
    scores: np.ndarray

    def right(self) -> np.ndarray:
        """``(pairs,)`` whether a candidate is a label of its row."""
        ids = self.evidence.ids
        return hits(ids, self.split.labels)[ids >= 0]

    def columns(self) -> np.ndarray:
        """The evidence ``(pairs, C + 2)``, with the score and the rank that omikuji gives."""
        ids, score, rank = self.evidence.ids, [], []
        for names, scores, candidates in zip(self.named, self.scores, ids, strict=True):
            same = candidates[candidates >= 0][:, None] == names
            score.append((same * scores).sum(1))
            rank.append(np.where(same.any(1), same.argmax(1), NAMED))
        more = np.stack([np.concatenate(score), np.concatenate(rank)], 1)
        return np.concatenate([self.evidence.columns, more.astype(np.float32)], 1)


def gathered(trainer: Trainer, ranker: EnsembleRanker, model: Any, split: Split) -> Rows:
    """What all say of some rows; of many rows, every so many."""
    chosen = np.linspace(0, len(split) - 1, min(ROWS, len(split))).astype(np.int64)
    split = split.take(chosen)
    evidence = ranker.evidence(trainer.network, split.features, 1, trainer.options.evaluation)
    named, scores, _ = trees.predict(model, split, np.full(len(split), NAMED))
    return Rows(split, evidence, named, scores)


def ranked(rows: Rows, score: np.ndarray) -> np.ndarray:
    """The candidates ``(B, K)`` by a score of each pair, best first."""
    ids = rows.evidence.ids
    scores = np.full(ids.shape, -np.inf)
    scores[ids >= 0] = score
    return np.take_along_axis(ids, np.argsort(-scores, 1, kind="stable"), 1)


def right_first(ids: np.ndarray, rows: Rows) -> np.ndarray:
    """Candidates with the right ones before all others."""
    right = hits(ids, rows.split.labels)
    return np.take_along_axis(ids, np.argsort(~right, 1, kind="stable"), 1)


def measure(package: Any, overrides: list[str]) -> list[Row]:
    """All methods on a data set under one seed."""
    trainer, _ = trained([*overrides, "ranker=none"])
    train, held, judged = trainer.train_split, trainer.held_split, trainer.eval_split
    assert held is not None
    search = trainer.options.evaluation
    # It takes no held-out rows as neighbours in the end, so they can teach judges afterwards.
    ranker = instantiate(read_config(overrides).ranker)
    ranker.fit(trainer.network, train, held, trainer.inverse, search)
    model, _ = trees.train(package, train, runtime.num_threads())
    learnt, asked = (gathered(trainer, ranker, model, split) for split in (held, judged))
    found = {OMIKUJI: asked.named}
    seen = {OURS: (learnt.evidence.columns, asked.evidence.columns)}
    seen[BOTH] = learnt.columns(), asked.columns()
    for method, (columns, others) in seen.items():
        signs = [*COLUMNS.values(), 1, -1][: columns.shape[1]]
        judge = Judge(signs).fit(columns, learnt.right())
        found[method] = ranked(asked, judge.probabilities(others))
    found[BEST] = right_first(asked.evidence.ids, asked)
    found[BEST_OF_BOTH] = right_first(join(asked.evidence.ids, asked.named), asked)
    return [{"method": name} | precision(ids, asked.split) for name, ids in found.items()]


def precision(ids: np.ndarray, judged: Split) -> Row:
    """P@1, P@3 and P@5 of answers."""
    return {f"p_at_{k}": round(precision_at_k(ids, judged.labels, k), 6) for k in (1, 3, 5)}


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    names = list(dict.fromkeys(row["dataset"] for row in found["rows"]))
    return (
        "# What limits precision\n\n"
        "Does the re-ranker of the default call lack what omikuji knows? "
        "Here network, re-ranker and omikuji (default settings) learn from the "
        "same training rows, and a second judge of the re-ranker also sees the score and the rank "
        f"that omikuji gives each candidate (of its best {NAMED} labels). The judges learn from "
        f"the training rows that a run holds out (at most {ROWS:,}), and all methods are judged on "
        f"other held-out training rows (at most {ROWS:,}). In points: the mean of the seeds, and "
        "half the range. The last two lines say what a judge without error would reach with our "
        "candidates, and with these and omikuji's. It knows the answers, so nobody reaches that: "
        "the two lines show whether candidates are missing.\n"
        + "".join(section(name, found["rows"]) for name in names)
        + origin(found["rows"])
    )


def section(name: str, rows: list[Row]) -> str:
    """A data set in words."""
    here = [row for row in rows if row["dataset"] == name]
    lines = []
    for method in METHODS:
        same = [row for row in here if row["method"] == method]
        cells = {f"P@{k}": spread([row[f"p_at_{k}"] for row in same]) for k in (1, 3, 5)}
        lines.append({"": method} | cells)
    seeds = numbers(row["seed"] for row in here)
    return f"\n## {name}\n\nSeeds {seeds}.\n\n{table(lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, ["debian", "files"], [0])
    arguments = parse(parser)
    runtime.set_threads(0)
    store = Store("limit", ("dataset", "seed", "method"), page, arguments)
    if arguments.render:
        return store.render()
    package = trees.import_omikuji()
    os.chdir(ROOT)  # Caches lie in its datasets/.
    for name in arguments.datasets:
        for seed in arguments.seeds:
            case = {"dataset": name, "seed": seed}
            overrides = [*place(name, arguments.root), f"seed={seed}"]
            overrides.append(f"dataset.holdout={HELD_OUT.get(name, 0.1)}")
            for _ in store.missing([case | {"method": OURS}]):
                store.add([case | row for row in measure(package, overrides)])
    return store.report()


if __name__ == "__main__":
    main()
