"""Active sets and scratch arrays."""

import copy
import pickle
import threading

import numpy as np
import pytest

from slide.active_set import ActiveSet, Groups
from slide.ops.scratch import Scratch
from slide.sparse import Pattern


class TestActiveSet:
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

    def test_sizes(self):
        """Of a group the set is computed once, and each of its samples has all of it."""
        ids = np.array([4, 1, 5], np.int32)
        alone, shared = ActiveSet(6, ids, np.array([0, 2, 2, 3])), ActiveSet(6, ids)
        assert (alone.computed, alone.mean_size()) == (3, 1)
        assert (shared.computed, shared.mean_size()) == (3, 3)
        groups = Groups(np.array([2, 0, 1]), np.array([0, 2, 3]), ids, np.array([0, 2, 3]))
        several = np.array([4, 1, 5, 4, 1], np.int32)
        grouped = ActiveSet(6, several, np.array([0, 2, 3, 5]), groups=groups)
        assert (grouped.computed, grouped.mean_size()) == (3, 5 / 3)
        assert [grouped.row(b).tolist() for b in range(3)] == [[4, 1], [5], [4, 1]]
        assert not grouped.shared
        nobody = ActiveSet(6, ids[:0], np.array([0]))
        assert (nobody.computed, nobody.mean_size()) == (0, 0)


# Scratch arrays: made once, clean, and not shared by copies.


def marks(scratch, runs):
    return scratch.filled("marks", (runs, 3), np.uint8)


class TestScratch:
    def test_fills_and_shapes(self):
        scratch = Scratch()
        assert (scratch.filled("slots", (3,), np.int32, -1) == -1).all()
        for array, shape in (
            (marks(scratch, 2), (2, 3)),
            (marks(scratch, 1), (1, 3)),
            (scratch.filled("votes", (2, 3), np.uint8), (2, 3)),
            (scratch.filled("ids", (2, 6), np.int32), (2, 6)),
        ):
            assert array.shape == shape
            assert not array.any()

    def test_fewer_threads_use_a_part(self):
        """Training that gives cores back, and takes them again, must not keep arrays for each."""
        scratch = Scratch()
        whole = marks(scratch, 4)
        assert marks(scratch, 2).base is whole
        assert marks(scratch, 4) is whole

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
    def test_copies_have_memory_of_their_own(self, duplicate):
        scratch = Scratch()
        marks(scratch, 1)[0] = 9
        other = duplicate(scratch)
        assert not marks(other, 1).any()


class TestTurns:
    def test_searches_run_beside_each_other(self):
        scratch = Scratch()
        with scratch.beside():
            assert in_thread(lambda: searched(scratch)).wait(30)

    def test_a_change_that_waits_comes_before_later_searches(self):
        scratch = Scratch()
        with scratch.beside():
            changed = in_thread(lambda: changes(scratch))
            assert not changed.wait(0.05)
            found = in_thread(lambda: searched(scratch))
            assert not found.wait(0.05)
        assert changed.wait(30)
        assert found.wait(30)

    def test_after_an_error_others_go_on(self):
        scratch = Scratch()
        with pytest.raises(ValueError, match="wrong"), scratch.beside():
            raise ValueError("wrong")
        assert in_thread(lambda: changes(scratch)).wait(30)

    def test_searches_wait_for_a_change(self):
        scratch = Scratch()
        with scratch.in_turn():
            found = in_thread(lambda: searched(scratch))
            assert not found.wait(0.05)
        assert found.wait(30)


def searched(scratch):
    with scratch.beside():
        pass


def changes(scratch):
    with scratch.in_turn():
        pass


def in_thread(call):
    """An event that is set when another thread has done something."""
    done = threading.Event()
    threading.Thread(target=lambda: call() or done.set(), daemon=True).start()
    return done
