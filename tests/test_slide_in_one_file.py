"""SLIDE in one file of NumPy: gradients, sparse Adam, hash tables, and what they are worth."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

PROGRAM = Path(__file__).parents[1] / "examples" / "slide_in_one_file.py"
SPEC = importlib.util.spec_from_file_location("slide_in_one_file", PROGRAM)
one = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(one)
NONE = np.empty(0, int)


@pytest.fixture(autouse=True)
def one_blas_thread():
    """The products are so small that waking threads would take longer."""
    with threadpool_limits(1):
        yield


def differences(loss, weight):
    """The gradient of a loss in a weight, by central differences."""
    found = np.zeros_like(weight)
    for place in np.ndindex(weight.shape):
        kept, ends = weight[place], []
        for moved in (kept + 1e-6, kept - 1e-6):
            weight[place] = moved
            ends.append(loss())
        weight[place] = kept
        found[place] = (ends[0] - ends[1]) / 2e-6
    return found


@pytest.mark.parametrize("active", [None, [[1, 0, 4], [2, 6, 4], [4, 5, 0]]])
def test_gradients(active):
    """Of float64 weights; rows share features and outputs, and a label is not in its active set."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(6, 4)), rng.normal(size=(7, 5))
    features = [np.array([0, 3]), np.array([3, 4]), NONE]
    labels = [np.array([1, 4]), np.array([2]), np.array([4, 3])]
    batch = [(own, ids, rng.random(len(ids))) for own, ids in zip(labels, features, strict=True)]
    active = None if active is None else np.array(active)

    def results():
        columns, x, hidden = one.hidden_layer(first, batch)
        return columns, *one.gradients(second, x, hidden, active, labels)

    columns, loss, rows, outer, inner = results()
    for weight, used, gradient in ((first, columns, inner), (second, rows, outer)):
        expected = np.zeros_like(weight)
        expected[used] = gradient
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(
            differences(lambda: results()[1], weight), expected, rtol=1e-6, atol=1e-8
        )
    scores = one.hidden_layer(first, batch)[2] @ second.T
    some = [np.arange(7)] * 3 if active is None else active
    by_hand = [
        torch.logsumexp(torch.tensor(line[ids]), 0) - line[np.intersect1d(own, ids)].mean()
        for line, ids, own in zip(scores, some, labels, strict=True)
    ]
    assert loss == pytest.approx(float(np.mean(by_hand)), rel=1e-12)


def test_adam_updates_rows_of_a_step_and_no_others():
    rng = np.random.default_rng(0)
    weight = np.array([rng.normal(size=(6, 3)), rng.normal(size=(6, 3)), rng.random((6, 3))])
    rows, others = np.array([4, 1]), [0, 2, 3, 5]
    weight[1:, rows] = 0
    before = weight.copy()
    dense = torch.nn.Parameter(torch.tensor(weight[0, rows]))
    optimizer = torch.optim.Adam([dense], lr=0.1)
    for step in (1, 2, 3):
        gradient = rng.normal(size=(2, 3))
        dense.grad = torch.tensor(gradient)
        optimizer.step()
        one.adam(weight, rows, gradient, rate=0.1, step=step)
    np.testing.assert_allclose(weight[0, rows], dense.detach().numpy(), rtol=1e-12)
    np.testing.assert_array_equal(weight[:, others], before[:, others])


def test_collisions_are_as_frequent_as_angles_say():
    tables = one.HashTables(3, K=4, L=20_000, rng=np.random.default_rng(0))
    vectors = np.array([[1, 0, 0], [2, 1e-3, 0], [1, np.sqrt(3), 0], [0, 0, 5], [-1, 0, 0]])
    first, *others = tables.codes(vectors)
    same, near, third, right, opposite = ((first == codes).mean() for codes in (first, *others))
    assert same == 1
    assert near > 0.99
    assert third == pytest.approx((2 / 3) ** 4, abs=0.02)  # 60 degrees: a third of the signs.
    assert right == pytest.approx(1 / 16, abs=0.01)
    assert opposite == 0


def test_every_row_is_in_its_bucket_of_each_table():
    rng, half = np.random.default_rng(0), 150
    weight = rng.normal(size=(half, 9)).astype(np.float32)
    weight[:, -1] = 1
    weight = np.concatenate([weight, -weight])  # Their mean is 0, so rows are hashed as they are.
    hidden = np.pad(np.array([[3.0], [-3]]).repeat(8, 1), ((0, 0), (0, 1)), constant_values=1)
    tables = one.HashTables(9, K=8, L=16, rng=rng)
    tables.rebuild(weight, hidden)
    members = tables.members.reshape(16, -1)
    np.testing.assert_array_equal(np.sort(members, 1), np.tile(np.arange(2 * half), (16, 1)))
    for row, codes in enumerate(tables.codes(weight)):
        for code in codes:
            assert row in tables.members[tables.starts[code] : tables.starts[code + 1]]
    active = tables.active_sets(weight[:half], [NONE] * half, A=4, N=2 * half)
    np.testing.assert_array_equal(active[:, 0], np.arange(half))  # In all of its buckets.


def test_shared_means_hide_nothing():
    """Rows of large scores are found though all hidden vectors point one way, all rows another."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(500, 17)).astype(np.float32)
    hidden = np.float32(rng.normal(size=(64, 17)) + 20)
    hidden[:, -1] = 1
    weight[:, :-1] -= weight[:, :-1].mean(1, keepdims=True)  # So the mean adds nothing.
    weight += 20 * rng.normal(size=17)
    tables = one.HashTables(17, K=6, L=32, rng=rng)
    tables.rebuild(weight, hidden)
    active = tables.active_sets(hidden, [NONE] * 64, A=50, N=500)
    best = np.argsort(-hidden @ weight.T)[:, :10]
    assert np.mean([np.isin(*pair).mean() for pair in zip(best, active, strict=True)]) > 0.4


def test_active_sets():
    """Labels come first, in at most a half; no output comes twice; random ones fill the set."""
    rng = np.random.default_rng(0)
    tables = one.HashTables(5, K=3, L=4, rng=rng)
    tables.rebuild(rng.normal(size=(40, 5)), rng.normal(size=(8, 5)))
    labels = [np.array([7, 3]), np.arange(20, 32)]
    hidden = rng.normal(size=(2, 5))
    active = tables.active_sets(hidden, labels, A=10, N=40)
    assert [len(set(ids)) for ids in active] == [10, 10]
    assert active[0, :2].tolist() == [7, 3]
    assert active[1, :5].tolist() == [20, 21, 22, 23, 24]
    assert not set(active[1]) <= set(labels[1])
    assert tables.active_sets(hidden, labels, A=40, N=40) is None
    nothing = one.HashTables(5, K=3, L=0, rng=rng)
    nothing.rebuild(rng.normal(size=(40, 5)), hidden)
    drawn = nothing.active_sets(np.ones((2000, 5)), [NONE] * 2000, A=10, N=40)
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=40) / 2000, 0.25, atol=0.05)


def test_intervals_of_rebuilds_grow():
    rng, due = np.random.default_rng(0), [0.0]
    tables = one.HashTables(5, K=3, L=4, rng=rng)
    for _ in range(20):
        tables.rebuild(rng.normal(size=(40, 5)), rng.normal(size=(8, 5)))
        due.append(tables.due)
    np.testing.assert_allclose(np.diff(due), 10 * np.exp(0.05 * np.arange(20)))


def test_tables_are_worth_more_than_random_sets():
    size, A = 600, 16
    made = list(one.made_up(3500, size, np.random.default_rng(0)))
    found = {}
    for L in (32, 0):
        tables = one.HashTables(one.HIDDEN + 1, K=6, L=L, rng=np.random.default_rng(0))
        weights = one.train(made[1000:], [size, size], A=A, tables=tables, epochs=8)
        found[L] = one.score(made[:1000], *weights, A=A, tables=tables)
    (precision, recall), (uniform, chance) = found[32], found[0]
    assert precision > uniform + 0.02
    assert recall > 0.15
    assert chance == pytest.approx(A / size, abs=0.01)


def test_a_folder_of_files(tmp_path, capsys):
    """A row without labels is left out, one without features is not; the table is returned, too."""
    lines = [f"{i % 12},12 {i % 12}:2.5 {i % 5 + 12}:0.5\n" for i in range(120)]
    for name in ("train.txt", "test.txt"):
        text = f"{len(lines) + 2} 17 13\n{''.join(lines)} 3:1\n12 \n"
        (tmp_path / name).write_text(text)
    rows, *sizes = one.read_xmc(tmp_path / "train.txt")
    assert (len(rows), sizes) == (121, [17, 13])
    assert [part.tolist() for part in rows[13]] == [[1, 12], [1, 15], [2.5, 0.5]]
    assert [part.tolist() for part in rows[-1]] == [[12], [], []]
    arguments = ["--data", str(tmp_path), "--active", "4", "--epochs", "20", "--L", "4"]
    dense, lsh, uniform = one.main([*arguments, "--K", "3"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == " ".join(one.TITLES).split()
    for row, line in zip((dense, lsh, uniform), lines, strict=True):
        assert line.split()[:2] == [row["method"], f"{row['P@1']:.4f}"]
        assert row["P@1"] > 0.9
    assert [row["outputs a sample"] for row in (dense, lsh, uniform)] == [13, 4, 4]
    assert dense["top 10 found"] == 1
