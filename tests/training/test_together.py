"""Decisions that all processes of a run make in the same step."""

from types import SimpleNamespace

import torch

from slide.distributed import Group
from slide.training.coordination import Terminated, Together


class Hall:
    """Two processes that speak in turn: each all-reduce of the second one adds the first one's."""

    def __init__(self):
        self.said = []

    def group(self, rank):
        return SimpleNamespace(rank=rank, size=2, all_reduce=lambda own: self._sum(rank, own))

    def _sum(self, rank, own):
        self.said.append(own.clone())
        # The first one leads, and is asked twice: to speak, and to hear what came of it.
        return own if rank == 0 else own + self.said[-2]


def test_one_process_decides_alone():
    together, error = Together(Group.alone()), KeyboardInterrupt()
    assert together.look(1, 0.5, None) is None
    assert together.look(2, 0.5, error) is error
    assert together.seconds(7.0) == 7.0


def test_time_is_that_of_the_first_process():
    hall = Hall()
    first, second = (Together(hall.group(rank)) for rank in (0, 1))
    for together, seconds in ((first, 0.1), (second, 9.9)):
        assert together.look(1, seconds, None) is None
        assert together.seconds(99.0) == 0.1
    # A step of 0.1 s: they agree again after 5 steps, and not before.
    assert len(hall.said) == 2
    for together in (first, second):
        assert together.look(5, 0.5, KeyboardInterrupt()) is None
    assert len(hall.said) == 2
    first.look(6, 0.6, None)
    second.look(6, 55.0, None)
    assert first.seconds(0.0) == second.seconds(0.0) == 0.6


def test_a_signal_that_one_process_gets_ends_both():
    hall = Hall()
    first, second = (Together(hall.group(rank)) for rank in (0, 1))
    own = Terminated()
    assert first.look(1, 0.1, own) is own
    assert isinstance(second.look(1, 0.1, None), Terminated)


def test_a_resumed_run_agrees_after_its_first_step():
    hall = Hall()
    together = Together(hall.group(0), step=70)
    assert together.look(71, 0.1, None) is None
    assert len(hall.said) == 1
    assert torch.is_tensor(hall.said[0])
