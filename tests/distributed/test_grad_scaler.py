"""A GradScaler on several processes: an infinity of one of them is one of all."""

from helpers.ranks import run_ranks, several

WORK = """
import numpy as np, torch
from helpers.matrices import make_csr, make_pattern
from slide import ActiveLoss, FullSampler, RowSparseAdam
from slide.distributed import ShardedNetwork
from slide.row_gradients import take_row_gradients

def work(group):
    rng = np.random.default_rng(0)
    features, labels = make_csr(rng, [4] * 8, 30), make_pattern(rng, [2] * 8, 20)
    network = ShardedNetwork(30, [6, 5], 20, FullSampler, group, seed=3)
    optimizers = [RowSparseAdam(part.parameters()) for part in (network.output, network.hidden)]
    optimizers.append(RowSparseAdam(network.first.parameters()))
    scaler, found = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    for infinite in (None, 0, group.size - 1, None):
        loss, _ = network.output.loss(network.encode(features), labels, ActiveLoss("bce"))
        scaler.scale(loss).backward()
        weight, before = network.output.weight, network.output.weight.detach().clone()
        if group.rank == infinite:  # As when the product of gradient and hidden values overflows.
            weight.row_gradients = [take_row_gradients(weight).scaled(torch.inf)]
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        found.append([scaler.get_scale(), not torch.equal(weight, before), weight.grad is None])
        found[-1].append(bool(weight.isfinite().all()))
    return found
"""


@several
def test_all_ranks_leave_a_step_out_together(tmp_path):
    wanted = [[1024, True], [512, False], [256, False], [256, True]]
    for ranks in run_ranks(WORK, tmp_path, 2, 3).values():
        for rank in ranks:
            assert rank == [[*each, True, True] for each in wanted]
