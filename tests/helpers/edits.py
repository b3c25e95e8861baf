"""Edits of model folders with correct hashes, and what a process that opens them sees.

``python -m helpers.edits COUNT SEED FOLDER ...`` makes the edits, each of a folder as it is, opens
the edited folders, asks them for answers to the rows in ``FOLDER.npy``, and prints a line of JSON
for each.
"""

import json
import os
import shutil
import sys
import warnings
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch

import slide
from helpers.damage import rng_of
from helpers.limits import more_memory, wait_for_no_disk
from slide.model.folder import MODEL_FOLDER
from slide.utils.tensor_folder import Written, read_folder, read_tensors, write_folder

# What an edited model may take beside what this process has.
MEMORY = 3 << 30


def one(change):
    """The same change of a single entry."""

    def changed(rng, array):
        found = array.copy()
        at = rng.randrange(len(found.reshape(-1))) if found.size else 0
        found.reshape(-1)[at : at + 1] = change(rng, found.reshape(-1)[at : at + 1])
        return found

    changed.__name__ = f"{change.__name__} of one"
    return changed


def larger(rng, array):
    wide = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    return (wide + 1_000_000).astype(array.dtype)


def negative(rng, array):
    return (-1 - np.abs(array.astype(np.float64))).astype(array.dtype)


def huge(rng, array):
    limits = np.finfo if array.dtype.kind == "f" else np.iinfo
    return np.full_like(array, limits(array.dtype).max)


def zero(rng, array):
    return np.zeros_like(array)


def nothing(rng, array):
    return np.full_like(
        array, np.nan if array.dtype.kind == "f" else np.int64(-1).astype(array.dtype)
    )


def cut(rng, array):
    return array[: rng.randrange(len(array))] if len(array) else array


def empty(rng, array):
    return array[:0]


def longer(rng, array):
    return np.concatenate([array, array[-1:]])


def shuffled(rng, array):
    return np.random.default_rng(rng.randrange(1 << 30)).permutation(array)


def other_type(rng, array):
    return array.astype(rng.choice([np.float64, np.float32, np.int64, np.int32, np.int8, np.bool_]))


def flat(rng, array):
    return array[None]


WAYS = [larger, negative, huge, zero, nothing, cut, empty, longer, shuffled, other_type, flat]
WAYS += [one(change) for change in (larger, negative, huge, zero, nothing)]
VALUES = [-1, 0, 1, 0.5, 7, 1_000_000, 1e300, 2**40, 2**70, True, None, "text", [], {}, [1, 2]]
# What a model is made of, in ``model.json``.
PARTS = ("network", "index", "ranker", "steps", "label_names", "feature_names", "vectorizer")


def leaves(value, path=()):
    """The paths of all numbers and names in JSON values."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        if isinstance(each, dict | list) and each:
            yield from leaves(each, (*path, key))
        else:
            yield (*path, key)


def edit_list(rng, content, parts=PARTS):
    """Another value, or none, for one number in some parts of a list; what it was and is."""
    path = rng.choice([p for p in leaves(content) if p[0] in parts])
    owner = content
    for key in path[:-1]:
        owner = owner[key]
    was = owner.pop(path[-1])
    if rng.random() < 0.9:
        now = was + 1_000_000 if type(was) in (int, float) and rng.random() < 0.2 else None
        now = rng.choice(VALUES) if now is None else now
        owner.insert(path[-1], now) if isinstance(owner, list) else owner.update({path[-1]: now})
        return ".".join(map(str, path)), f"{was!r} -> {now!r}"
    return ".".join(map(str, path)), "removed"


def edit_array(rng, files):
    """Another array in place of one; its name, and the edit."""
    file = rng.choice([name for name in files for _ in range(8 if name == "ranker" else 1)])
    name = rng.choice(list(files[file]))
    array, way = files[file][name].numpy(), rng.choice(WAYS)
    if not array.ndim:  # There is nothing to cut.
        way = rng.choice([larger, negative, huge, zero, nothing])
    elif array.dtype == np.bool_:
        way = cut
    with np.errstate(all="ignore"):
        found = np.asarray(way(rng, array), order="C")
    files[file][name] = torch.from_numpy(found)
    how = f"{array.dtype} {way.__name__}"
    return f"{file}:{name}", f"{how}, in range" if in_range(array, found) else how


def in_range(array, edited):
    """Whether the edited array might be one of another model: finite, or integers as before."""
    if (array.shape, array.dtype) != (edited.shape, edited.dtype):
        return False
    if array.dtype.kind == "f":
        return bool(np.isfinite(edited).all())
    return not array.size or bool(array.min() <= edited.min() and edited.max() <= array.max())


class EditedCopy:
    """A copy of a folder of tensors for one edit after the other; unedited files are hard links."""

    def __init__(self, kind, whole, folder):
        self.kind, self.whole, self.folder = kind, whole, folder
        self.content = read_folder(kind, whole)
        self.there = [Written(name, **each) for name, each in self.content.pop("files").items()]
        names = [Path(each.name).stem for each in self.there]
        self.files = {name: read_tensors(whole, name) for name in names}
        shutil.copytree(whole, folder, copy_function=os.link)

    def parts(self):
        """The list and the tensors by file, for an edit."""
        return deepcopy(self.content), {name: dict(each) for name, each in self.files.items()}

    def write(self, what, content, files):
        """Write a list, and the file that ``what`` names, if any; the edit before it is undone."""
        for each in self.there:
            path = self.folder / each.name
            if not path.samefile(self.whole / each.name):
                path.unlink()
                path.hardlink_to(self.whole / each.name)
        edited = what.partition(":")[0]
        same = [each for each in self.there if Path(each.name).stem != edited]
        changed = {edited: files[edited]} if len(same) < len(self.there) else {}
        write_folder(self.kind, self.folder, content, changed, same)


def answers(folder, rows):
    """Labels and scores of a model by each search that it has, or the sentence of its error."""
    try:
        model = slide.load(folder)
        has_index = hasattr(model.network.output.sampler, "proposer")
        searches = ["exact", "index", "sampler"] if has_index else ["exact", "index"]
        found = [model.predict_ids(rows, 3, search) for search in searches]
    except ValueError as error:
        return None, str(error)
    for labels, scores in found:
        assert labels.min() >= -1
        assert labels.max() < model.num_labels
        assert np.isfinite(scores).all()
        if model.label_names is not None:
            model.label_names.take(labels)
    return [np.concatenate([*map(np.ravel, each)]) for each in found], None


def main(count, seed, *folders):
    warnings.simplefilter("ignore")
    wait_for_no_disk()
    for folder in folders:
        edit_folder(Path(folder), np.load(f"{folder}.npy"), count, seed)


def edit_folder(folder, rows, count, seed):
    expected, said = answers(folder, rows)
    assert said is None, said
    copy = EditedCopy(MODEL_FOLDER, folder, folder.parent / f"{folder.name}-edited")
    for number in range(int(count)):
        rng = rng_of(folder.name, seed, number)
        content, files = copy.parts()
        if rng.random() < 0.3:
            what, how = edit_list(rng, content)
        else:
            what, how = edit_array(rng, dict(sorted(files.items())))
        # Before it is opened: a process that dies has said of what.
        print(json.dumps([what, how]), file=sys.stderr, flush=True)
        copy.write(what, content, files)
        with more_memory(MEMORY):
            found, said = answers(copy.folder, rows)
        same = found is not None and all(map(np.array_equal, found, expected))
        print(json.dumps([what, how, "same" if same else said or "other"]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
