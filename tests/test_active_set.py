"""Active sets of both kinds."""

import numpy as np

from slide.active_set import ActiveSet
from slide.sparse import Pattern


class TestActiveSet:
    def test_per_sample(self):
        active = ActiveSet(6, np.array([4, 1, 5], np.int32), np.array([0, 2, 2, 3]))
        assert not active.shared
        assert not active.complete
        assert [active.row(b).tolist() for b in range(3)] == [[4, 1], [], [5]]
        assert active.mean_size() == 1
        assert active.transposed is active.transposed

    def test_shared(self):
        active = ActiveSet(6, np.array([4, 1], np.int32))
        assert active.shared
        assert not active.complete
        assert active.row(17).tolist() == [4, 1]
        assert active.mean_size() == 2

    def test_labels(self):
        ids, targets = np.array([4, 1, 5], np.int32), Pattern.from_lists([[1, 0], [], [0]])
        active = ActiveSet(6, ids, np.array([0, 2, 2, 3]), targets)
        assert active.label_ids().tolist() == [1, 4, 5]
        assert ActiveSet(6, ids, None, targets).label_ids().tolist() == [1, 4, 4]
        assert ActiveSet(6, ids).label_ids().tolist() == []

    def test_complete_means_in_order(self):
        assert ActiveSet(3, np.arange(3, dtype=np.int32)).complete
        assert not ActiveSet(3, np.array([2, 0, 1], np.int32)).complete
        assert not ActiveSet(3, np.arange(3, dtype=np.int32), np.array([0, 3])).complete
