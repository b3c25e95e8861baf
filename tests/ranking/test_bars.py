"""The long phases of a re-ranker have bars."""

import pytest
from helpers import job

from slide.data import holdout
from slide.ranking import EnsembleRanker, row_blocks
from slide.ranking.item_regressions import item_regressions
from slide.utils import progress_bar

pytestmark = pytest.mark.usefixtures("one_thread")


def test_bars_of_long_phases(tmp_path, monkeypatch, capsys):
    data = job.make_data(tmp_path, train_samples=300)
    train, held = holdout(data.train, 0.5, seed=0)
    network = job.make_network(data)
    before = EnsembleRanker().fit(network, train, held)
    assert capsys.readouterr().err == "", "short phases have none"
    monkeypatch.setattr(progress_bar, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress_bar, "LINE_EVERY", 0.0)
    monkeypatch.setattr(row_blocks, "MOST_ROOM", 70)
    found = EnsembleRanker().fit(network, train, held)
    said = capsys.readouterr().err
    for name in ("candidates", "associations", "classifiers", "evidence"):
        assert f"{name}: " in said
    # Some labels at a time, the classifiers are the same.
    assert (found.classifiers.weights.values == before.classifiers.weights.values).all()
    item_regressions(data.train.labels, data.num_labels, data.num_labels)
    said = capsys.readouterr().err
    assert "items that go together: " in said
    assert "regressions of items: " in said
