"""A feature whose value 0 is stored means the same as no entry, wherever rows come from."""

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from helpers import job

from slide import CSR, Model, SlideNetwork, as_csr
from slide.data import SparseDataset, holdout, kind_of, xmc
from slide.functional import sparse_linear
from slide.predict.rows import read_rows
from slide.ranking import EnsembleRanker
from slide.sampling import FullSampler

pytestmark = pytest.mark.usefixtures("one_thread")
STORED = CSR(np.array([0, 3, 3, 5]), np.array([0, 1, 2, 0, 3], np.int32), np.ones(5, np.float32))
STORED.values[[0, 3]] = 0
SCIPY = scipy.sparse.csr_array(STORED[::-1], shape=(3, 4))


def with_zeros(x):
    values = x.values.copy()
    values[::3] = 0
    return x._replace(values=values)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return job.make_data(tmp_path_factory.mktemp("data"), train_samples=300, test_samples=30)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "torch csr", "torch coo", "tiny", "dense"])
def test_matrices(form):
    indptr, columns, values = (torch.from_numpy(np.array(part)) for part in STORED)
    columns = columns.long()
    if form == "torch csr":
        x = torch.sparse_csr_tensor(indptr, columns, values, (3, 4), check_invariants=True)
    elif form == "torch coo":
        rows = torch.from_numpy(STORED.entry_rows())
        x = torch.sparse_coo_tensor(
            torch.stack([rows, columns]), values, (3, 4), check_invariants=True
        )
    elif form in ("tiny", "dense"):  # What is zero in float32 is none, either.
        x = SCIPY.astype(np.float64)
        x.data[x.data == 0] = 1e-60
        x = x.toarray() if form == "dense" else x
    else:
        x = SCIPY.asformat(form)
    found = as_csr(x, 4)
    assert found.indptr.tolist() == [0, 2, 2, 3]
    assert found.indices.tolist() == [1, 2, 3]
    assert found.values.tolist() == [1, 1, 1]
    assert SCIPY.nnz == 5, "the user's matrix has changed"


def test_a_csr_that_goes_to_a_layer_stays_as_it_is():
    assert as_csr(STORED) is STORED
    assert sparse_linear(STORED, torch.ones(4, 2), None).tolist() == [[2, 2], [0, 0], [1, 1]]


def test_rows_without_zeros_are_not_copied(data):
    x = STORED.without_zeros()
    assert x.without_zeros() is x
    assert data.train.without_zeros() is data.train
    assert SparseDataset("mine", data.train, data.test, 60, 80).train is data.train


def test_data_sets_in_memory(data):
    stored = replace(data.train, features=with_zeros(data.train.features))
    whole = replace(stored, features=stored.features.without_zeros())
    made = SparseDataset("mine", stored, data.test, 60, 80)
    assert made.train.features.indices.tolist() == whole.features.indices.tolist()
    assert kind_of(made.train) == kind_of(whole)


def test_files(tmp_path):
    names = {"train_file": "x.npz", "test_file": "x.npz"}
    names |= {"train_labels_file": "y.npz", "test_labels_file": "y.npz"}
    scipy.sparse.save_npz(tmp_path / "x.npz", SCIPY)
    scipy.sparse.save_npz(tmp_path / "y.npz", scipy.sparse.csr_array(np.eye(3)))
    found = xmc(name="mine", root=tmp_path, cache=tmp_path / "cache", format="npz", **names)
    for split in (found.train, found.test):
        assert split.features.indptr.tolist() == [0, 2, 2, 3]
        assert split.features.indices.tolist() == [1, 2, 3]
    stored = np.load(found.folder / "train" / "feature_values.npy")
    assert stored.tolist() == [1, 1, 1]


def test_a_model(data, tmp_path):
    torch.manual_seed(0)
    train, held = holdout(data.train, 0.5, seed=0)
    network = job.make_network(data)
    model = Model(network, EnsembleRanker().fit(network, train, held, every=data.train))
    stored = with_zeros(data.test.features)
    expected = model.predict(stored.without_zeros(), k=5)
    rows = [stored.slice(row, row + 1) for row in range(stored.num_rows)]
    pairs = [zip(map(str, row.indices), row.values.tolist(), strict=True) for row in rows]
    text = "\n".join(json.dumps({"features": dict(each)}) for each in pairs)
    (tmp_path / "rows.jsonl").write_text(text)
    (block,) = read_rows(str(tmp_path / "rows.jsonl"), model)
    for rows in (stored, block.features):
        labels, scores = model.predict(rows, k=5)
        np.testing.assert_array_equal(labels, expected.labels)
        np.testing.assert_allclose(scores, expected.scores, rtol=1e-6)


def test_a_model_that_learns():
    weights = []
    for x in (STORED, STORED.without_zeros()):
        torch.manual_seed(0)
        model = Model(SlideNetwork(4, [8], 2, FullSampler))
        model.partial_fit(x, [[0], [1], [1]])
        weights.append(model.network.first.weight.detach())
    assert torch.equal(*weights)
