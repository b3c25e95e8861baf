"""What a checkpoint and the run that reads it must agree on."""

from typing import Any

from slide.data import SparseDataset, Split, fingerprint
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim import RowSparseAdam
from slide.training.options import TrainingOptions


def run_facts(
    network: SlideNetwork,
    optimizer: RowSparseAdam,
    loss: ActiveLoss,
    data: SparseDataset,
    splits: tuple[Split, Split],
    options: TrainingOptions,
) -> dict[str, Any]:
    """JSON values by names that people understand.

    Args:
        network: the network.
        optimizer: of its parameters.
        loss: of the output layer; any function of values and active set.
        data: the data set.
        splits: rows that the run trains on, and rows that it is evaluated on.
        options: of the run.
    """
    train, judged = splits
    return {
        "data set": data.name,
        "trainer.kind": options.kind,
        "number of features": data.num_features,
        "number of labels": data.num_labels,
        "number of training rows": len(train),
        "number of evaluation rows": len(judged),
        "checksum of the training rows": fingerprint(train),
        "checksum of the evaluation rows": fingerprint(judged),
        "widths of layers": [layer.out_features for layer in network.layers()],
        "samplers": [type(layer.sampler).__name__ for layer in network.layers()],
        "modes of samplers": [getattr(layer.sampler, "mode", None) for layer in network.layers()],
        "loss": _loss_name(loss),
        "share of hard samples": getattr(loss, "hard_fraction", None),
        **{
            f"{name} of the optimizer": [_plain(group[name]) for group in optimizer.param_groups]
            for name in ("betas", "eps", "weight_decay", "correct_skipped", "rowwise")
            if name in optimizer.defaults
        },
        "batch size": options.batch_size,
        "seed": options.seed,
        "trainer.epochs=auto": options.auto,
    }


def _loss_name(loss: Any) -> str:
    if hasattr(loss, "record"):
        return loss.record.name
    named = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{named.__module__}.{named.__qualname__}"


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value
