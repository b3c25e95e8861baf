"""Every file of cache folders, damaged without a change of its time: noticed, and written again."""

import json
import os

import pytest
from helpers.caches import leftovers
from helpers.damage import REPEAT, flip, rng_of
from helpers.splits import rows

from slide.data import documents, text, transform

LINES = [
    {"text": f"the {animal} {verb}s {often}", "labels": [animal, verb]}
    for animal in ("cat", "dog", "owl", "fox")
    for verb in ("eat", "sleep", "run")
    for often in ("daily", "twice")
]


def texts(folder):
    """Rows of texts, and what was made from them; a cache folder for each."""
    for part in ("train", "test"):
        (folder / f"{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in LINES))
        os.utime(folder / f"{part}.jsonl", ns=(10**18, 10**18))
    data = documents(name="mine", root=folder, cache=folder / "cache")
    return transform(data, tf_idf=True, min_label_count=7)


def skip_grams(folder):
    """Rows with a list of words beside them."""
    (folder / "some.txt").write_text("a rose is a rose is a rose " * 9)
    os.utime(folder / "some.txt", ns=(10**18, 10**18))
    return text(name="rose", root=folder, file="some.txt", cache=folder / "cache", subsample=0)


def content(data):
    """All that a run takes from a data set."""
    found = [rows(data.train), rows(data.test), data.num_features, data.num_labels]
    found += [(step.settings(), step.num_columns) for step in data.steps]
    found += [array.tolist() for step in data.steps for array in step.arrays().values()]
    if data.vectorizer is not None:
        found += [list(data.vectorizer.terms), data.vectorizer.idf.tolist()]
        found.append(list(data.label_names))
    return found


def cut(rng, whole):
    return whole[: rng.randrange(len(whole))]


def empty(rng, whole):
    return b""


def longer(rng, whole):
    return whole + b"0"


SOURCES = {"texts": texts, "skip_grams": skip_grams}


@pytest.mark.parametrize("damage", [flip, cut, empty, longer, None])
@pytest.mark.parametrize("source", SOURCES)
def test_each_damaged_file_is_noticed_and_written_again(tmp_path, source, damage, capsys):
    expected = content(SOURCES[source](tmp_path))
    paths = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix]
    paths = sorted(path for path in paths if path.suffix != ".lock")
    assert len(paths) == {"texts": 29, "skip_grams": 12}[source]
    kept = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}
    rng = rng_of(source)
    for path, (whole, time) in kept.items():
        for _ in range(max(1, int(2 * REPEAT)) if damage in (flip, cut) else 1):
            capsys.readouterr()
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage(rng, whole))
                os.utime(path, ns=(time, time))
            assert content(SOURCES[source](tmp_path)) == expected, path
            said = capsys.readouterr().err
            if path.name == "meta.json":
                continue  # Its white space may be damaged.
            assert f"{path}" in said
            assert path.read_bytes() == whole
            os.utime(path, ns=(time, time))
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("key", ["num_features", "num_labels", "format"])
@pytest.mark.parametrize("change", [-10, -1, 1])
def test_each_number_of_the_list_counts(tmp_path, key, change):
    expected = content(skip_grams(tmp_path))
    (path,) = tmp_path.glob("cache/*/meta.json")
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | {key: meta[key] + change}, indent=2) + "\n")
    assert content(skip_grams(tmp_path)) == expected
    assert json.loads(path.read_text()) == meta
