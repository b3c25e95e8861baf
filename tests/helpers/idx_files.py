"""Images and labels in MNIST's format, made up."""

import gzip

import numpy as np

from slide.data.sources.mnist import IDX_FILES


def idx(values, magic=None, shape=None):
    """Bytes of an idx file of an array of bytes."""
    header = bytes([0, 0, 8, values.ndim]) if magic is None else magic
    sizes = np.array(values.shape if shape is None else shape, ">u4")
    return header + sizes.tobytes() + values.astype(np.uint8).tobytes()


def make_images(rows, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (rows, 28, 28), np.uint8) * (rng.random((rows, 28, 28)) < 0.2)
    return images.astype(np.uint8), rng.integers(0, 10, rows).astype(np.uint8)


def write(folder, rows=(7, 3), packed=True):
    """A set under the usual names; returns its images and labels by split."""
    made = {}
    for split, count in zip(IDX_FILES, rows, strict=True):
        made[split] = make_images(count, seed=count)
        for name, values in zip(IDX_FILES[split], made[split], strict=True):
            data = idx(values)
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(data) if packed else data)
    return made
