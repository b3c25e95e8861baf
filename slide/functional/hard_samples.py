"""The samples of a batch with the largest losses (online hard example mining).

Source: Shrivastava, Gupta and Girshick 2016, "Training region-based object detectors with online
hard example mining".
"""

import numpy as np
import torch

from slide.utils import checks


def check_fraction(name: str, fraction: float) -> None:
    """Raise ValueError unless ``fraction`` lies in (0, 1]."""
    checks.positive(name, fraction)
    checks.share(name, fraction, with_one=True)


def hardest_count(fraction: float, num_samples: int) -> int:
    """The number of samples in a ``fraction`` of them, rounded; at least one."""
    return min(num_samples, max(1, round(fraction * num_samples)))


def hardest_first(losses: np.ndarray) -> np.ndarray:
    """Sample numbers by falling loss; NaN counts as the largest loss."""
    return torch.from_numpy(losses).argsort(descending=True).numpy()
