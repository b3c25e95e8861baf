"""Rows, and a network for them."""

import pytest
import torch
from helpers import job

from slide.data import write_xmc


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return job.make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def network(data):
    torch.manual_seed(0)
    return job.make_network(data)


@pytest.fixture(scope="module")
def files(data, tmp_path_factory):
    """A folder with the rows in the two text formats; tests add models to it."""
    folder = tmp_path_factory.mktemp("model")
    write_xmc(folder / "rows.txt", data.test)
    write_xmc(folder / "rows.svm", data.test, format="svmlight")
    return folder


@pytest.fixture(autouse=True)
def _no_lines_of_bars(monkeypatch):
    """A phase writes none, however slow the machine is: what a command says is compared."""
    monkeypatch.setattr("slide.utils.progress_bar.LINE_EVERY", 1e9)
