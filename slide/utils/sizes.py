"""Sizes of the default recipe: they follow from the numbers of rows and labels."""

from slide.utils import checks

_MANY_LABELS = 100_000
# A search by an index saves little for fewer labels.
_SEARCHED_LABELS = 20_000


def batch_size(num_rows: int) -> int:
    """Rows in a step: a power of two in [64, 512]; an epoch has at least 128 steps if it can.

    A network learns in steps, so small data sets need small batches. On large data sets, large
    batches save time.
    """
    checks.whole("num_rows", num_rows, 0)
    return min(max(1 << max(num_rows // 128, 1).bit_length() - 1, 64), 512)


def active_outputs(num_labels: int) -> int:
    """Outputs in an active set: a quarter of all, in [64, 2048]."""
    checks.whole("num_labels", num_labels, 1)
    return min(max(num_labels // 4, 64), 2048)


def hidden_width(num_labels: int) -> int:
    """Width of the hidden layer: 512, and 256 for more than 100,000 labels.

    With a re-ranker the wider one gains little, and with so many labels it takes twice the time
    and memory.
    """
    checks.whole("num_labels", num_labels, 1)
    return 256 if num_labels > _MANY_LABELS else 512


def default_search(num_labels: int, ranked: bool) -> str:
    """How the best outputs are found: by an index for more than 20,000 labels and a re-ranker.

    An index misses few of the best and is many times as fast. A network alone is scored exactly.
    """
    return "index" if ranked and num_labels > _SEARCHED_LABELS else "exact"


def output_scale(num_labels: int, shared: bool) -> float:
    """Size of the first weights of the outputs, 1 as in ``nn.Linear``.

    It is 0.1 for more than 100,000 labels and shared sets. Most of these labels still have their
    first weights when the hidden layer has already learnt. Each shared set has thousands of them,
    and the hidden layer would learn to avoid their noise. Sets per sample have only few of them.

    Args:
        num_labels: number of outputs.
        shared: whether a set is for a whole batch.
    """
    checks.whole("num_labels", num_labels, 1)
    return 0.1 if shared and num_labels > _MANY_LABELS else 1.0


def judged_places(num_labels: int) -> list[int]:
    """The places at whose precision held-out rows judge: 1, 3 and 5, if there are more labels.

    With as many places as labels, all answers are equally good.

    Example:
        >>> from slide.utils.sizes import judged_places
        >>> judged_places(1000), judged_places(4)
        ([1, 3, 5], [1, 3])
    """
    return [k for k in (1, 3, 5) if k == 1 or k < num_labels]
