"""The default recipe of ``conf/`` from plain arguments; a test compares the two."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slide.data import SparseDataset
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim import RowSparseAdam
from slide.ranking import EnsembleRanker
from slide.sampling import ActiveSampler, FullSampler, LSHProposer
from slide.training import Trainer, TrainingOptions, linear
from slide.training.loop import start_biases
from slide.utils import checks
from slide.utils.sizes import active_outputs, batch_size, default_search, hidden_width, output_scale

# Decay of the moments.
BETAS = (0.0, 0.99)
SAMPLERS = ("uniform", "lsh", "full")
RANKERS = ("ensemble", "none", None)


def given_weights(given: Any, num_labels: int) -> np.ndarray | None:
    """Weights of labels that were given as numbers."""
    if given is None or isinstance(given, str):
        return None
    weights = np.asarray(given, np.float64)
    if weights.shape != (num_labels,) or not np.isfinite(weights).all() or (weights <= 0).any():
        raise ValueError(
            f"label_weights must be None, propensity, or {num_labels} numbers above 0, not "
            f"{given!r}"
        )
    return weights


def without_numpy(value: Any) -> Any:
    """A scalar of numpy as Python's own, also in a list; anything else as it is."""
    if isinstance(value, np.generic):
        return value.item()
    return [without_numpy(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Recipe:
    """What a classifier is made of; `slide.SlideClassifier` explains the fields."""

    hidden: int | list[int] | None = None
    sampler: str = "uniform"
    active: int | None = None
    ranker: str | None = "ensemble"
    epochs: int | str = "auto"
    max_epochs: int | None = None
    max_minutes: float = 0.0
    batch_size: int | None = None
    lr: float = 0.002
    input_rate: float = 4.0
    dropout: float = 0.3
    search: str | None = None
    objective: str = "p"
    known: str = "auto"
    kind: str = "auto"

    def network(self, num_features: int, num_labels: int, seed: int) -> SlideNetwork:
        """A network with its first weights."""
        checks.one_of("sampler", self.sampler, SAMPLERS)
        hidden = hidden_width(num_labels) if self.hidden is None else self.hidden
        proposer = LSHProposer if self.sampler == "lsh" else None
        options = {"mode": "shared", "weighting": "none", "candidate_share": 0.25, "seed": seed}
        active = active_outputs(num_labels) if self.active is None else self.active
        sampler = partial(ActiveSampler, proposer=proposer, active=active, **options)
        return SlideNetwork(
            num_features,
            [hidden] if isinstance(hidden, int) else hidden,
            num_labels,
            FullSampler if self.sampler == "full" else sampler,
            dropout=self.dropout,
            precision="auto",
            init_scale=0.2,
            output_scale=output_scale(num_labels, shared=True),
        )

    def optimizer(self, network: SlideNetwork) -> RowSparseAdam:
        """The optimizer of all weights."""
        groups = network.parameter_groups(self.lr, self.input_rate)
        return RowSparseAdam(groups, self.lr, betas=BETAS)

    def loss(self) -> ActiveLoss:
        """The loss of the outputs."""
        return ActiveLoss("squared_hinge")

    def rows_in_step(self, num_rows: int) -> int:
        """Rows in a step."""
        return batch_size(num_rows) if self.batch_size is None else self.batch_size

    def trainer(self, data: SparseDataset, seed: int, folder: Path) -> Trainer:
        """A trainer of a new network, whose biases begin at the frequencies of the labels."""
        if self.ranker not in RANKERS:
            raise ValueError(f"ranker must be ensemble, none or None, not {self.ranker!r}")
        ranked = self.ranker == "ensemble"
        options = TrainingOptions(
            batch_size=self.rows_in_step(len(data.train)),
            epochs=self.epochs,
            max_epochs=self.max_epochs,
            max_minutes=self.max_minutes,
            kind=self.kind,
            evaluation=self.search or default_search(data.num_labels, ranked),
            recall_every=0,  # Nobody reads the log.
            seed=seed,
        )
        network = self.network(data.num_features, data.num_labels, seed)
        ranker = EnsembleRanker(objective=self.objective, known=self.known) if ranked else None
        parts = network, self.optimizer(network), self.loss(), data, options, folder
        trainer = Trainer(*parts, ranker=ranker, lr_schedule=linear)
        start_biases(network, self.loss(), trainer.train_split.labels)
        return trainer
