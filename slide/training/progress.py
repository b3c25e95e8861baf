"""The progress of a run: its counters, their scalars for the log, and the progress bar."""

from dataclasses import asdict, dataclass

from slide.utils.progress_bar import ProgressBar


@dataclass
class Counters:
    """Sums since the start of a run; a resumed run continues them. They are in the checkpoint.

    Attributes:
        step: number of steps.
        samples: number of samples.
        active_total: sum over the steps of the mean size of the output layer's active sets.
        loss_total: sum over the steps of the loss.
        train_seconds: seconds of training of the network, with rebuilds and without evaluation.
        exchange_seconds: the part of ``train_seconds`` in which the processes of a run exchanged
            numbers and waited for each other.
        rebuild_seconds: the part of ``train_seconds`` in which samplers updated their indexes.
        held_seconds: seconds of evaluation on held-out rows, which decide how long to train.
        eval_seconds: seconds of evaluation on the rows that the run is evaluated on.
        ranker_seconds: seconds of training of the ranker.
        compile_seconds: seconds of the compilation of kernels, which are in none of the others.
    """

    step: int = 0
    samples: int = 0
    active_total: float = 0.0
    loss_total: float = 0.0
    train_seconds: float = 0.0
    exchange_seconds: float = 0.0
    rebuild_seconds: float = 0.0
    held_seconds: float = 0.0
    eval_seconds: float = 0.0
    ranker_seconds: float = 0.0
    compile_seconds: float = 0.0

    def __sub__(self, before: "Counters") -> "Counters":
        earlier = asdict(before)
        return Counters(**{name: value - earlier[name] for name, value in asdict(self).items()})


def log_scalars(
    now: Counters, before: Counters, rate: float, steps_per_epoch: int
) -> dict[str, float]:
    """Scalars for the log.

    Args:
        now: the present counters.
        before: the counters at the previous line of the log.
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


def progress_bar(total_steps: int | None, step: int) -> ProgressBar:
    """A bar of steps that begins at ``step``; see `slide.utils.progress_bar.ProgressBar`.

    Args:
        total_steps: number of steps of the run; None: it is not known yet.
        step: number of steps done.
    """
    return ProgressBar(desc="training", total=total_steps, initial=step, unit=" steps")


def bar_values(scalars: dict[str, float], scores: dict[str, float]) -> dict[str, str]:
    """The values beside the bar: the last mean loss, and P@1 after the first evaluation."""
    shown = {"loss": f"{scalars['train/loss']:.3f}"}
    return shown | {"P@1": f"{scores['p_at_1']:.3f}"} if scores else shown
