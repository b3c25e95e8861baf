"""Sets that are made of others, and their page."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern

from slide.data import Split, kind_of
from slide.sparse import CSR, Pattern

FOLDER = Path(__file__).parent / "benchmarks"
ENTITIES, RELATIONS = 40, 3


@pytest.fixture(scope="module")
def bench():
    """The modules of the benchmarks, which import each other by their plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield SimpleNamespace(**{n: importlib.import_module(n) for n in ("derived", "other_sets")})


def pairs(split):
    """The features and the labels of each row, as sets."""
    return [
        tuple(
            set(m.indices[m.indptr[row] : m.indptr[row + 1]].tolist())
            for m in (split.features, split.labels)
        )
        for row in range(len(split))
    ]


@pytest.fixture
def split():
    rng = np.random.default_rng(0)
    features = make_csr(rng, rng.integers(0, 5, 200), 30)
    return Split(features, make_pattern(rng, rng.integers(0, 4, 200), 30), 30, 30)


@pytest.fixture
def graph():
    """All triples of a small graph, in both directions."""
    rng = np.random.default_rng(1)
    triples = np.unique(rng.integers(0, [ENTITIES, RELATIONS, ENTITIES], (400, 3)), axis=0)
    rows: dict[tuple[int, int], list[int]] = {}
    for head, relation, tail in triples.tolist():
        rows.setdefault((head, relation), []).append(tail)
        rows.setdefault((tail, RELATIONS + relation), []).append(head)
    features = Pattern.from_lists([[head, ENTITIES + relation] for head, relation in rows])
    values = np.ones(len(features.indices), np.float32)
    sizes = ENTITIES + 2 * RELATIONS, ENTITIES
    return triples, Split(CSR(*features, values), Pattern.from_lists([*rows.values()]), *sizes)


def test_features_and_labels_change_places(bench, split):
    train, test = bench.derived.turned(split, np.random.default_rng(0))
    expected = [(labels, features) for features, labels in pairs(split) if labels and features]
    found = pairs(train) + pairs(test)
    assert len(test) == pytest.approx(bench.derived.TEST * len(found), abs=1)
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_a_quarter_of_the_items_is_to_be_predicted(bench, split):
    train, test = bench.derived.parted(split, np.random.default_rng(0))
    every = [features | labels for features, labels in pairs(split)]
    found = pairs(train) + pairs(test)
    assert len(found) == sum(len(own) >= 4 for own in every) > 50
    for known, asked in found:
        assert not known & asked
        assert len(asked) == (len(known) + len(asked)) // 4
        assert known | asked in every


def test_a_graph_is_made_of_its_triples_in_both_directions(bench, graph):
    triples, split = graph
    np.testing.assert_array_equal(bench.derived.triples_of(split), triples)
    train, test = bench.derived.thinned(0.5)(split, np.random.default_rng(0))
    left = [bench.derived.triples_of(part) for part in (train, test)]
    together = np.unique(np.concatenate(left), axis=0)
    assert len(together) == sum(map(len, left)), "a triple is in both parts"
    assert len(together) == pytest.approx(0.5 * len(triples), rel=0.2)
    assert len(left[1]) == pytest.approx(bench.derived.TEST * len(together), rel=0.6)
    assert {*map(tuple, together.tolist())} <= {*map(tuple, triples.tolist())}
    assert len(train.labels.indices) == 2 * len(left[0]), "one direction is missing"
    assert kind_of(train) == "graph"


def test_entities_that_are_left(bench, graph):
    triples, split = graph
    parts = bench.derived.among(20)(split, np.random.default_rng(0))
    left = np.concatenate([bench.derived.triples_of(part) for part in parts])
    kept = np.random.default_rng(0).permutation(ENTITIES)[:20]
    expected = triples[np.isin(triples[:, 0], kept) & np.isin(triples[:, 2], kept)]
    assert sorted(left.tolist()) == sorted(expected.tolist())
    assert len(expected) > 20


def test_a_set_is_written_once(bench, split, tmp_path, monkeypatch):
    made = bench.derived.Derived("a", "some rows", bench.derived.fewer(100))
    monkeypatch.setattr(bench.derived, "DERIVED", {"b": made})
    bench.derived.write("b", split, tmp_path)
    text = (tmp_path / "b/train.txt").read_text()
    counts = [int((tmp_path / f"b/{n}.txt").read_text().split()[0]) for n in ("train", "test")]
    assert counts[1] == pytest.approx(bench.derived.TEST * sum(counts), abs=1)
    bench.derived.write("b", split.take(np.arange(50)), tmp_path)
    assert (tmp_path / "b/train.txt").read_text() == text


def test_the_page(bench):
    scores = {f"{kind}_at_{k}": 0.5 for kind in ("p", "psp") for k in (1, 3, 5)}
    stamp = {"date": "2026-01-01", "commit": "c", "code": "d", "machine": "m", "threads": 1}
    row = {"dataset": "fb15k_tenth", "train_seconds": 1.0} | scores | stamp
    rows = [row | {"method": "slide", "seed": 0}, row | {"method": "omikuji", "seed": None}]
    text = bench.other_sets.page({"rows": rows})
    assert "| fb15k_tenth | fb15k | a tenth of the triples |" in text
    assert "| fb15k_tenth | 5 | 50.0 | 50.0 (omikuji) | +0.0 |" in text
    assert "### fb15k_tenth" in text
