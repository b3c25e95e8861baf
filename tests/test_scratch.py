"""Scratch arrays: made once, clean, and not shared by copies."""

import copy
import pickle

import pytest

from slide.sampling.voting import voting_scratch
from slide.scratch import Scratch


class TestScratch:
    def test_is_made_once(self):
        scratch = Scratch(5)
        scratch.slots()[2] = 7
        assert scratch.slots().tolist() == [-1, -1, 7, -1, -1]

    def test_fills_and_shapes(self):
        scratch = Scratch(3)
        assert (scratch.slots() == -1).all()
        for array, shape in (
            (scratch.marks(2), (2, 3)),
            (scratch.marks(1), (1, 3)),
            (voting_scratch(scratch, 2, 5, 7, 4).hits, (2, 7)),
            (voting_scratch(scratch, 2, 6, 7, 4).weights, (2, 6)),
            (
                voting_scratch(scratch, 2, 5, 3, 4).ids,
                (2 * 3,),
            ),  # A table holds each of the 3 once.
        ):
            assert array.shape == shape
            assert not array.any()

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
    def test_copies_have_memory_of_their_own(self, duplicate):
        scratch = Scratch(3)
        scratch.marks(1)[0] = 9
        other = duplicate(scratch)
        assert other.out_features == 3
        assert not other.marks(1).any()
