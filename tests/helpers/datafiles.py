"""Small files for each reader."""

import json

import numpy as np
from scipy import sparse

from helpers import idx_files
from slide.data import write_xmc

SEED = 0
WORDS = [f"word{i}" for i in range(40)]


def write_inputs(folder, data, config):
    """Writes the files that ``config``, the configuration of a data set, reads.

    They have the rows of ``data``, or rows of another kind if the reader can only read those.
    """
    WRITERS[config["_target_"]](folder, data, config)


def write_rows(folder, data, config):
    """The training and test rows in the format that ``config`` names."""
    format = config.get("format", "xmc")
    for part, split in (("train", data.train), ("test", data.test)):
        path = folder / config.get(f"{part}_file", f"{part}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        if format != "npz":
            first = {key: config.get(key) for key in ("first_feature", "first_label")}
            write_xmc(path, split, format=format, **first)
            continue
        for name, matrix in zip(
            (path.name, config[f"{part}_labels_file"]), matrices(split), strict=True
        ):
            with (folder / name).open("wb") as file:  # a path would get a suffix
                sparse.save_npz(file, matrix)


def matrices(split):
    """Features and labels."""
    rows = len(split)
    indptr, indices, values = split.features
    features = sparse.csr_matrix((values, indices, indptr), shape=(rows, split.num_features))
    indptr, indices = split.labels
    ones = np.ones(len(indices), np.float32)
    return features, sparse.csr_matrix((ones, indices, indptr), shape=(rows, split.num_labels))


def write_images(folder, data, config):
    """MNIST's four files, with images of noise."""
    idx_files.write(folder, rows=(len(data.train), len(data.test)))


def write_plain_text(folder, data, config):
    """Words at random."""
    words = np.random.default_rng(SEED).choice(WORDS, 4000)
    (folder / config["file"]).write_text(" ".join(words))


def write_documents(folder, data, config):
    """Texts of words at random, with names for the labels of the rows."""
    rng = np.random.default_rng(SEED)
    for part, split in (("train", data.train), ("test", data.test)):
        lines = []
        for begin, end in zip(split.labels.indptr[:-1], split.labels.indptr[1:], strict=True):
            labels = [f"label {each}" for each in split.labels.indices[begin:end]]
            text = " ".join(rng.choice(WORDS, 8))
            lines.append(json.dumps({"text": text, "labels": labels}) + "\n")
        (folder / config.get(f"{part}_file", f"{part}.jsonl")).write_text("".join(lines))


def write_table(folder, data, config):
    """A table of CSV with as many rows, of words at random."""
    rng, lines = np.random.default_rng(SEED), ["title,price,tags\n"]
    for number in range(len(data.train)):
        one, other = rng.choice(WORDS, 2, replace=False)
        lines.append(f"{one} {other},{number % 5},{one};{other}\n")
    (folder / "rows.csv").write_text("".join(lines))


WRITERS = {
    "slide.data.xmc": write_rows,
    "slide.data.mnist": write_images,
    "slide.data.text": write_plain_text,
    "slide.data.documents": write_documents,
    "slide.data.table": write_table,
}
