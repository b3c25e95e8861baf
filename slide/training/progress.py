"""How far a run has come: its counters, what the log says of them, and the progress bar."""

from dataclasses import asdict, dataclass

from tqdm import tqdm


@dataclass
class Counters:
    """Sums since the start of a run, over interruptions.

    Attributes:
        step: steps done.
        samples: samples seen.
        active_total: sizes of the output layer's active sets, one a step.
        loss_total: losses, one a step.
        train_seconds: seconds of training of the network, rebuilds included, evaluation not.
        rebuild_seconds: of these, seconds in which samplers brought their indexes up to date.
        eval_seconds: seconds of evaluation.
        ranker_seconds: seconds of training of the ranker.
    """

    step: int = 0
    samples: int = 0
    active_total: float = 0.0
    loss_total: float = 0.0
    train_seconds: float = 0.0
    rebuild_seconds: float = 0.0
    eval_seconds: float = 0.0
    ranker_seconds: float = 0.0

    def __sub__(self, before: "Counters") -> "Counters":
        earlier = asdict(before)
        return Counters(**{name: value - earlier[name] for name, value in asdict(self).items()})


def log_scalars(
    now: Counters, before: Counters, rate: float, steps_per_epoch: int
) -> dict[str, float]:
    """Scalars for the log.

    Args:
        now: the counters as they are.
        before: as they were when the log was last written.
        rate: learning rate of the last step.
        steps_per_epoch: number of batches in a pass over the rows.
    """
    part = now - before
    return {
        "train/loss": part.loss_total / part.step,
        "train/learning_rate": rate,
        "train/epoch": now.step / steps_per_epoch,
        "train/seconds": now.train_seconds,
        "speed/samples_per_second": part.samples / part.train_seconds,
        "speed/rebuild_share": part.rebuild_seconds / part.train_seconds,
        "selection/active_mean": part.active_total / part.step,
    }


def progress_bar(total_steps: int, step: int) -> tqdm:
    """A bar of steps that begins at ``step``; it is not shown where nobody would see it."""
    return tqdm(total=total_steps, initial=step, unit="step", disable=None)


def bar_values(scalars: dict[str, float], scores: dict[str, float]) -> dict[str, str]:
    """What stands beside the bar: the last mean loss, and P@1 once there is one."""
    shown = {"loss": f"{scalars['train/loss']:.3f}"}
    return shown | {"P@1": f"{scores['p_at_1']:.3f}"} if scores else shown
