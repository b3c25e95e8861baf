"""What a checkpoint and the run that reads it must agree on."""

from typing import Any

from slide.data import SparseDataset, Split, fingerprint
from slide.nn import SlideNetwork
from slide.training.options import TrainingOptions


def run_facts(
    network: SlideNetwork,
    data: SparseDataset,
    splits: tuple[Split, Split],
    options: TrainingOptions,
) -> dict[str, Any]:
    """JSON values by names that people understand.

    Args:
        network: the network.
        data: the data set.
        splits: rows that the run trains on, and rows that it is evaluated on.
        options: of the run.
    """
    train, judged = splits
    return {
        "data set": data.name,
        "number of features": data.num_features,
        "number of labels": data.num_labels,
        "number of training rows": len(train),
        "number of evaluation rows": len(judged),
        "checksum of the training rows": fingerprint(train),
        "checksum of the evaluation rows": fingerprint(judged),
        "widths of layers": [layer.out_features for layer in network.layers()],
        "samplers": [type(layer.sampler).__name__ for layer in network.layers()],
        "batch size": options.batch_size,
        "seed": options.seed,
        "trainer.epochs=auto": options.auto,
    }
