"""Active sets of both kinds."""

import numpy as np

from slide.active_set import ActiveSet


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

    def test_complete_means_in_order(self):
        assert ActiveSet(3, np.arange(3, dtype=np.int32)).complete
        assert not ActiveSet(3, np.array([2, 0, 1], np.int32)).complete
        assert not ActiveSet(3, np.arange(3, dtype=np.int32), np.array([0, 3])).complete
