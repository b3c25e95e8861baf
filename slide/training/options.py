"""The options of a trainer."""

from dataclasses import dataclass

import numpy as np

from slide.data.dataset import ROW_KINDS
from slide.nn.sampled_linear import SEARCHES
from slide.training.lr_schedules import evaluation_interval
from slide.utils import checks
from slide.utils.sizes import DEFAULTS

_MOST_EPOCHS = 20
# Steps between lines of the log and between measurements of recall, which compute all outputs of
# some samples; in a short run as many as give a curve this number of points.
_LOG_EVERY, _RECALL_EVERY, FEWEST_POINTS = 20, 100, 20


@dataclass(frozen=True)
class TrainingOptions:
    """How long a `slide.training.Trainer` trains, and when it logs, evaluates and saves.

    The fields are the keys of ``trainer`` in ``conf/train.yaml``, which explains them and has their
    defaults, and ``holdout`` of ``dataset``. Where a default is open there, steps have 256 samples
    and all outputs are scored.

    Example:
        >>> from slide.training import TrainingOptions
        >>> options = TrainingOptions(batch_size=64, epochs=3)
        >>> options.most_steps(steps_per_epoch=10)
        30
        >>> TrainingOptions(epochs=0)
        Traceback (most recent call last):
        ValueError: epochs must be auto or a whole number of at least 1, not 0
    """

    batch_size: int = 256
    epochs: int | str = DEFAULTS["trainer.epochs"]
    max_epochs: int | None = DEFAULTS["trainer.max_epochs"]
    max_minutes: float = DEFAULTS["trainer.max_minutes"]
    max_steps: int = DEFAULTS["trainer.max_steps"]
    patience: int = DEFAULTS["trainer.patience"]
    eval_every: int = DEFAULTS["trainer.eval_every"]
    eval_samples: int = DEFAULTS["trainer.eval_samples"]
    checkpoint_every: int = DEFAULTS["trainer.checkpoint_every"]
    keep_checkpoints: int = DEFAULTS["trainer.keep_checkpoints"]
    log_every: int | None = DEFAULTS["trainer.log_every"]
    recall_every: int | None = DEFAULTS["trainer.recall_every"]
    holdout: float = DEFAULTS["dataset.holdout"]
    evaluation: str = "exact"
    kind: str = DEFAULTS["trainer.kind"]
    seed: int = DEFAULTS["seed"]
    share_cores: bool = DEFAULTS["trainer.share_cores"]

    def __post_init__(self):
        for name, value in vars(self).items():
            if isinstance(value, np.generic):
                object.__setattr__(self, name, value.item())
        for name in ("batch_size", "keep_checkpoints"):
            checks.whole(name, getattr(self, name), 1)
        for name, least in (("max_epochs", 1), ("log_every", 1), ("recall_every", 0)):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), least)
        if not self.auto and (type(self.epochs) is not int or self.epochs < 1):
            said = f"auto or a whole number of at least 1, not {self.epochs!r}"
            raise ValueError(f"epochs must be {said}")
        for name in ("max_steps", "eval_every", "eval_samples", "checkpoint_every"):
            checks.whole(name, getattr(self, name), 0)
        checks.not_negative("max_minutes", self.max_minutes)
        for name in ("max_epochs", "max_minutes"):
            if (value := getattr(self, name)) and not self.auto:
                raise ValueError(f"{name}={value} needs epochs=auto, not {self.epochs}")
        checks.whole("patience", self.patience, 0)
        if self.patience and self.auto:
            raise ValueError(
                f"patience={self.patience} needs a number of epochs; epochs=auto stops by itself"
            )
        checks.whole("seed", self.seed, 0)
        checks.share("holdout", self.holdout)
        checks.one_of("evaluation", self.evaluation, SEARCHES)
        checks.one_of("kind", self.kind, ROW_KINDS)
        checks.flag("share_cores", self.share_cores)

    @property
    def auto(self) -> bool:
        """Whether precision on held-out rows tells how long to train."""
        return self.epochs == "auto"

    def fewest_steps(self, steps_per_epoch: int, most_steps: int) -> int:
        """The number of steps of a run that ends as early as it may."""
        if self.auto or self.patience:  # Two evaluations on held-out rows come before the end.
            return min(2 * evaluation_interval(steps_per_epoch), most_steps)
        return most_steps

    def intervals(self, fewest_steps: int) -> tuple[int, int]:
        """Steps between lines of the log, and between measurements; 0: never."""
        short = max(1, fewest_steps // FEWEST_POINTS)
        log = min(short, _LOG_EVERY) if self.log_every is None else self.log_every
        recall = min(short, _RECALL_EVERY) if self.recall_every is None else self.recall_every
        return log, recall

    def most_steps(self, steps_per_epoch: int, least: int = 0) -> int:
        """The largest number of steps of a run; without ``epochs="auto"``, the number of steps."""
        epochs = self.epochs if isinstance(self.epochs, int) else self.max_epochs
        if epochs is None:
            steps = max(_MOST_EPOCHS * steps_per_epoch, 2 * least)
        else:
            steps = epochs * steps_per_epoch
        return min(steps, self.max_steps) if self.max_steps else steps
