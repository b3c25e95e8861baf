"""Rows that the models of these tests learn from."""

import pytest
from helpers import job


@pytest.fixture(scope="session")
def raw(tmp_path_factory):
    return job.make_data(tmp_path_factory.mktemp("data"), train_samples=400, test_samples=30)
