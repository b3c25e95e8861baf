"""What each part of the default recipe is worth: precision on held-out rows when it is left out.

    python benchmarks/ablation.py --root path/to/data
    python benchmarks/ablation.py --root path/to/data --datasets files --seeds 0 --only ranker

A seed chooses the training rows that are held out, and the recipe and its variants see the same
rows. All variants of the re-ranker learn from one network. Writes results/ablation.{json,md}.
"""

import argparse
from collections.abc import Iterable
from typing import Any, ClassVar

import harness
from harness import HELD_OUT, SCORES, Row, Store, grid, numbers, of, origin, spread, table, trained
from hydra.utils import instantiate

from slide.config import read_config, user_errors
from slide.ranking import EnsembleRanker, choose_kind
from slide.ranking.base_scorer import RankingFeatures
from slide.ranking.scorers import SCORERS
from slide.training import Trainer
from slide.training.evaluation import evaluate

DEFAULT = "default recipe"
ALONE = "network alone"
KEEP = "known labels are answers, too"
UNASKED = "no answers to similar questions"
# Base scorers of some kinds of rows, by variant.
LEFT_OUT = {
    "no tree of labels": "label_tree",
    "no similarity of items": "item_similarity",
}
# In a recommender, regressions of items replace the classifiers.
C_OF_ONE, FEW_NEGATIVES = "classifiers with C = 1", "ten negatives of a row"
# Overrides of the re-ranker, which learns from one and the same network.
RANKER = {
    DEFAULT: [],
    ALONE: ["ranker=none"],
    "no network": ["ranker.depth=1"],
    "no linear classifiers": [],
    C_OF_ONE: ["ranker.classifiers.C=1"],
    "no nearest rows": ["ranker.voted=1"],
    "no labels of the features": ["ranker.associated=1"],
    UNASKED: [],
    **{variant: [] for variant in LEFT_OUT},
    "15, 30 and 10 candidates": ["ranker.depth=15", "ranker.voted=30", "ranker.associated=10"],
    "60, 120 and 40 candidates": ["ranker.depth=60", "ranker.voted=120", "ranker.associated=40"],
    FEW_NEGATIVES: ["ranker.negatives=10"],
    "ten neighbours of a row": ["ranker.neighbours=10"],
    "objective: psp": ["ranker.objective=psp"],
    KEEP: ["ranker.known=keep"],
}
# What the final ranker does not see if a base scorer is left out.
UNSEEN = {
    "no network": ["network", "network_behind", "network_rank", "network_best"],
    "no linear classifiers": ["linear", "linear_behind", "linear_rank"],
    "no nearest rows": [
        *("neighbours", "neighbours_sharp", "neighbours_rank", "nearest", "mean_similarity")
    ],
    "no labels of the features": [
        *("cooccurrence", "cooccurrence_best", "cooccurrence_rank", "naive_bayes")
    ],
    UNASKED: ["analogous", "analogous_best"],
}
# Overrides of runs that train another network.
NETWORK = {
    "one learning rate for all layers": ["optimizer.input_rate=1"],
    "moments of the first layer as of the others": [
        *("optimizer.input_betas=[0,0.99]", "optimizer.input_rowwise=false")
    ],
    "usual first weights": ["network.init_scale=1"],
    "rows not brought to length 1": ["transform.l2_norm=false"],
    "no dropout": ["network.dropout=0"],
    "output biases from zero": ["network.prior_bias=false"],
    "six epochs, a rate that falls from the start": ["trainer.epochs=6"],
    "six epochs, a constant rate": ["trainer.epochs=6", "lr_schedule=constant"],
    "binary cross-entropy": ["loss=bce"],
    "sets of groups without look-ups": ["sampler=uniform"],
    "one set for the batch, uniform draws": ["sampler=uniform", "sampler.mode=shared"],
    "biases from the prior scores themselves": ["network.prior_margin=0"],
    "uniform draws stand for the rest": ["sampler.weighting=stratified"],
}
WITHOUT = RANKER | NETWORK
TITLES = {name: name.replace("_at_", "@").upper() for name in SCORES}


class PartlyBlind(EnsembleRanker):
    """A re-ranker that does not see some ranking features."""

    unseen: ClassVar[list[str]] = []

    def ranking_features(self, *arguments, **more) -> RankingFeatures:
        found = super().ranking_features(*arguments, **more)
        some = [column for column, name in enumerate(found.names) if name in self.unseen]
        found.columns[:, some] = 0
        return found


def ranker_of(variant: str) -> EnsembleRanker:
    ranker = instantiate(read_config(RANKER[variant]).ranker)
    if variant in UNSEEN:
        ranker.__class__, ranker.unseen = PartlyBlind, UNSEEN[variant]
    if variant in LEFT_OUT:
        del ranker.all_scorers[LEFT_OUT[variant]]
    return ranker


def scores_of(trainer: Trainer, variant: str) -> Row:
    """The scores of a variant of the re-ranker on a trained network."""
    network, train, held = trainer.network, trainer.train_split, trainer.held_split
    search, ranker = trainer.options.evaluation, None
    if variant != ALONE:
        rows = train, held, trainer.inverse, search, trainer.every_split
        ranker = ranker_of(variant).fit(network, *rows)
    scores = evaluate(network, trainer.eval_split, trainer.inverse, search, ranker)
    return {name: round(scores[name], 6) for name in SCORES}


def variants_of_ranker(overrides: list[str]) -> list[str]:
    """The variants of the re-ranker that differ from the recipe on a data set."""
    train = harness.opened(tuple(overrides)).train
    kind = choose_kind(train).kind
    same = {KEEP} if kind == "other" else set()
    for variant, name in LEFT_OUT.items():
        scorer = SCORERS[name]
        if not scorer().suits(train) or kind not in (scorer.kinds or [kind]):
            same.add(variant)
    same |= {UNASKED} if kind != "graph" else set()
    same |= {C_OF_ONE, FEW_NEGATIVES} if kind == "items" else set()
    return [name for name in RANKER if name not in same]


def measure_rankers(store: Store, overrides: list[str], cases: list[Row]) -> None:
    """Train a network, if rows are missing, and all missing re-rankers on it."""
    trainer = None
    for case in store.missing(cases):
        if trainer is None:
            trainer, _ = trained([*overrides, "ranker=none"])
        store.add([case | scores_of(trainer, case["variant"])])


def measure_networks(store: Store, overrides: list[str], cases: list[Row]) -> None:
    """Train missing networks with the default re-ranker."""

    for case in store.missing(cases):
        _, summary = trained([*overrides, *NETWORK[case["variant"]]])
        store.add([case | {n: summary[n] for n in (*SCORES, *(f"network_{n}" for n in SCORES))}])


def page(found: dict[str, Any]) -> str:
    text = harness.prose("ablation", "about")
    rows = found["rows"]
    for name in [*HELD_OUT, *sorted({row["dataset"] for row in rows} - set(HELD_OUT))]:
        if own := of(rows, dataset=name):
            text += section(name, own)
    return text + origin(rows)


def section(name: str, rows: list[Row]) -> str:
    """The tables of a data set: only variants whose recipe was measured of the same commit."""
    full = {row["seed"]: row for row in rows if row["variant"] == DEFAULT}
    base = {row["seed"]: row for row in rows if row["variant"] == ALONE}
    own = [row for row in rows if full.get(row["seed"], {}).get("code") == row["code"]]
    text = f"\n## {name}\n\n"
    if len(own) < len(rows):
        text += f"Rows without a row of the recipe of their commit: {len(rows) - len(own)}.\n\n"
    if not own:
        return text
    share = HELD_OUT.get(name)
    held = f"{100 * share:.0f} % of the training rows held out" if share else "rows held out"
    text += f"Seeds {numbers(row['seed'] for row in own)}; {held}.\n\n"
    if cells := lines(own, WITHOUT, full):
        text += table(cells)
    networks = [row for row in own if f"network_{SCORES[0]}" in row]
    networks = [row | {n: row[f"network_{n}"] for n in SCORES} for row in networks]
    if cells := lines(networks, NETWORK, base):
        text += "\nThe network alone, without a re-ranker:\n\n" + table(cells)
    return text


def lines(rows: list[Row], variants: Iterable[str], recipe: dict[int, Row]) -> list[dict[str, str]]:
    """A line a variant, after that of the recipe; no lines if there is only the recipe."""
    out = []
    for variant in variants:
        own = [row for row in rows if row["variant"] == variant and row["seed"] in recipe]
        if own and variant != DEFAULT:
            same = [recipe[row["seed"]] for row in own]
            out.append({"": variant} | {TITLES[n]: gain(own, same, n) for n in SCORES})
    if not out:
        return []
    first = {TITLES[n]: spread([row[n] for row in recipe.values()]) for n in SCORES}
    return [{"": DEFAULT} | first, *out]


def gain(rows: list[Row], recipe: list[Row], name: str) -> str:
    """A score of a variant in words, and its difference to that of the recipe of the same seeds."""
    gained = [row[name] - same[name] for row, same in zip(rows, recipe, strict=True)]
    agree = len(gained) > 1 and (min(gained) > 0 or max(gained) < 0)
    mark = "**" if agree else ""
    return f"{spread([row[name] for row in rows])} ({mark}{spread(gained, '+')}{mark})"


def measure(store: Store, arguments: argparse.Namespace) -> None:
    with user_errors():  # A misspelt setting is found before the first run.
        for variant in WITHOUT.values():
            read_config([*variant])
    for name in arguments.datasets:
        for seed in arguments.seeds:
            overrides = [*harness.overrides_of(name, arguments.root), "trainer.recall_every=0"]
            overrides += [f"dataset.holdout={HELD_OUT.get(name, 0.1)}", f"seed={seed}"]
            of_seed = {"dataset": [name], "seed": [seed]}
            if arguments.only in (None, "ranker"):
                cases = grid(**of_seed, variant=variants_of_ranker(overrides))
                measure_rankers(store, overrides, cases)
            if arguments.only in (None, "network"):
                measure_networks(store, overrides, grid(**of_seed, variant=NETWORK))


def main() -> None:
    parser = harness.options(__doc__, HELD_OUT, [0, 1, 2])
    parser.add_argument("--only", choices=("ranker", "network"), help="variants of one of them")
    harness.fill_page("ablation", ("dataset", "seed", "variant"), page, measure, parser)


if __name__ == "__main__":
    main()
