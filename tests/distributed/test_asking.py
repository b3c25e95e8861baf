"""A network of several processes that the first one asks alone."""

import pytest
import torch
from helpers.ranks import run_ranks, several

from slide.distributed.asking import AskedNetwork, asked_by_first
from slide.distributed.group import Group
from slide.distributed.network import ShardedNetwork
from slide.sampling.sampler import FullSampler

WORK = """
import numpy as np
from slide import FullSampler
from slide.distributed import ShardedNetwork
from slide.distributed.asking import asked_by_first
from helpers.matrices import make_csr

def work(group):
    rng = np.random.default_rng(0)
    shape = 40, [8], 30, FullSampler, group
    network = ShardedNetwork(*shape, seed=3, label_counts=rng.zipf(1.5, 30))
    rows = make_csr(rng, [3, 1, 6, 2], 40)
    ids = np.array([[29, -1, 4], [-1, -1, -1], [0, 1, 2], [7, 8, -1]])
    # Alone, and then by the first one, with as many questions as it likes.
    hidden = network.embed(rows)
    direct = [network.output.top_k(hidden, 12)[1].tolist(),
              network.output.scores_of(hidden, ids).tolist()]
    with asked_by_first(network, group) as asked:
        if asked is None:
            assert group.rank > 0
            return direct
        assert asked.output.out_features == 30
        for _ in range(2):
            hidden = asked.embed(rows)
            scores, best = asked.output.top_k(hidden, 12)
            asked.output.top_k(hidden, k=3, search="index")
            found = [best.tolist(), asked.output.scores_of(hidden, ids).tolist()]
    assert found == direct
    assert network.training
    return found
"""


FAILS = """
from slide import FullSampler
from slide.distributed import ShardedNetwork
from slide.distributed.asking import asked_by_first

def work(group):
    try:
        with asked_by_first(ShardedNetwork(40, [8], 30, FullSampler, group), group) as asked:
            if asked is not None:
                raise ValueError("no such rows")
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
"""


@several
def test_the_others_do_not_wait_after_an_error(tmp_path):
    others = "RuntimeError: the first process failed: no such rows"
    assert run_ranks(FAILS, tmp_path, 2) == {
        1: ["ValueError: no such rows"],
        2: ["ValueError: no such rows", others],
    }


FAILS_WITHIN = """
import time
import numpy as np
from slide import FullSampler
from slide.distributed import ShardedNetwork
from slide.distributed.asking import asked_by_first
from slide.distributed.launch import patient_group
from helpers.matrices import make_csr

def work(group):
    if group.size == 1:
        return None
    network = ShardedNetwork(40, [8], 30, FullSampler, group)
    rows, patient = make_csr(np.random.default_rng(0), [3, 1], 40), patient_group()
    begin = time.time()
    try:
        with asked_by_first(network, patient) as asked:
            hidden = asked.embed(rows)
            network.output.local.top_k = None  # Not to be called: before the ranks exchange.
            asked.output.top_k(hidden, 3)
    except (TypeError, RuntimeError) as error:
        return [type(error).__name__, time.time() - begin]
"""


@several
def test_the_others_do_not_wait_for_an_answer_after_an_error(tmp_path):
    """They would wait in one group, and the first process in the other, for the whole time-out."""
    (first, _), (other, seconds) = run_ranks(FAILS_WITHIN, tmp_path, 2)[2]
    assert (first, other) == ("TypeError", "LostProcessError")
    assert seconds < 30


@several
def test_the_first_one_gets_the_answers_of_all(tmp_path):
    found = run_ranks(WORK, tmp_path, 2, 3)
    (alone,) = found[1]
    for size in (2, 3):
        for best, scores in found[size]:
            assert best == alone[0]
            assert torch.tensor(scores).allclose(torch.tensor(alone[1]), atol=1e-6)
            assert scores[0][1] == 0


def test_one_process_is_not_in_the_way():
    network = object()
    with asked_by_first(network, Group.alone()) as asked:
        assert asked is network


def test_only_the_last_hidden_layer_is_known_to_all():
    group = Group.alone()
    asked = AskedNetwork(ShardedNetwork(9, [4], 5, FullSampler, group), group)
    hidden = asked.embed(torch.ones(1, 9))
    assert asked.output.top_k(hidden, 2)[1].shape == (1, 2)
    with pytest.raises(ValueError, match="x must be what embed has returned last"):
        asked.output.top_k(hidden.clone(), 2)
