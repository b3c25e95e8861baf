"""Channels taken out of images and put back, against the looped twins."""

import numpy as np
import pytest
from helpers import naive_channels

from slide.ops.kernels import layers as kernels


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_channels(kind):
    rng = np.random.default_rng(0)
    pixels, places = rng.standard_normal((12, 7)).astype(kind), np.array([5, 0, 3])
    found, wanted = np.empty((12, 3), kind), np.empty((12, 3), kind)
    kernels.take_pixels(pixels, places, found)
    naive_channels.take_pixels(pixels, places, wanted)
    np.testing.assert_array_equal(found, wanted)
    found, wanted = np.full((12, 7), 9, kind), np.full((12, 7), 8, kind)
    kernels.put_pixels(pixels[:, :3].copy(), places, found)
    naive_channels.put_pixels(pixels[:, :3], places, wanted)
    np.testing.assert_array_equal(found, wanted)
    values = pixels[:, :3].reshape(3, 4, 3).copy()
    found, wanted = np.full((3, 7, 4), 9, kind), np.full((3, 7, 4), 8, kind)
    kernels.put_planes(values, places, found)
    naive_channels.put_planes(values, places, wanted)
    np.testing.assert_array_equal(found, wanted)
