"""Settings that follow from the size of the training data."""

from slide import checks


def batch_size(num_rows: int) -> int:
    """Rows a step: a power of two in [64, 512], such that an epoch has 128 steps or more if it can.

    Small data sets need small batches, as it is steps that train; on large ones large batches save
    time.
    """
    checks.whole("num_rows", num_rows, 0)
    return min(max(1 << max(num_rows // 128, 1).bit_length() - 1, 64), 512)


def active_outputs(num_labels: int) -> int:
    """Outputs in an active set: a quarter of all, in [64, 2048]."""
    checks.whole("num_labels", num_labels, 1)
    return min(max(num_labels // 4, 64), 2048)


def output_scale(num_labels: int, shared: bool) -> float:
    """Size of the outputs' first weights, 1 as in ``nn.Linear``: 0.1 for more than 100,000 labels.

    Most of these are still at their first weights when the hidden layer has long learnt, and with
    thousands of them in each shared set it would learn to avoid their noise. Sets of the samples'
    own hold too few for that.
    """
    checks.whole("num_labels", num_labels, 1)
    return 0.1 if shared and num_labels > 100_000 else 1.0
