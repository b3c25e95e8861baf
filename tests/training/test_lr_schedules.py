"""Learning rates against their definitions, with PyTorch's schedulers, and after a jump."""

from functools import partial

import pytest
import torch
from helpers import job
from torch.optim.lr_scheduler import PolynomialLR

from slide.training import constant, linear
from slide.training.lr_schedules import scheduler_at

STEPS = 20


def optimizer(*rates):
    """An optimizer of one group for each rate."""
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups)


def factor(schedule, progress):
    """What is left of a rate of 1 after a share of the steps."""
    used = optimizer(1.0)
    scheduler = schedule(used, STEPS)
    for _ in range(round(progress * STEPS)):
        used.step()
        scheduler.step()
    return used.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("progress", "warmup", "expected"),
    [(0.0, 0.0, 1.0), (0.0, 0.2, 0.0), (0.1, 0.2, 0.5), (0.2, 0.2, 1.0), (1.0, 0.2, 1.0)],
)
def test_constant(progress, warmup, expected):
    assert factor(partial(constant, warmup=warmup), progress) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("progress", "warmup", "floor", "expected"),
    [
        (0.0, 0.0, 0.0, 1.0),
        (0.25, 0.0, 0.0, 0.75),
        (1.0, 0.0, 0.0, 0.0),
        (1.0, 0.0, 0.1, 0.1),
        (0.1, 0.2, 0.1, 0.5),
        (0.2, 0.2, 0.1, 1.0),
        (0.6, 0.2, 0.0, 0.5),
        (0.6, 0.2, 0.1, 0.55),
        (1.5, 0.2, 0.1, 0.1),
    ],
)
def test_linear(progress, warmup, floor, expected):
    schedule = partial(linear, warmup=warmup, floor=floor)
    assert factor(schedule, progress) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        (partial(constant, warmup=1.0), "warmup"),
        (partial(linear, warmup=-0.1), "warmup"),
        (partial(linear, floor=2), "floor"),
    ],
)
def test_numbers_out_of_range(schedule, name):
    with pytest.raises(ValueError, match=f"{name} must be "):
        schedule(optimizer(1.0), STEPS)


@pytest.mark.parametrize("schedule", [partial(linear, warmup=0.3), PolynomialLR, constant])
@pytest.mark.parametrize("step", [0, 1, 7, 20])
def test_a_jump_leads_to_the_rates_of_a_run_without_one(schedule, step):
    steady, jumped = optimizer(0.5, 1.5), optimizer(9.0, 9.0)
    scheduler = schedule(steady, STEPS)
    for _ in range(step):
        steady.step()
        scheduler.step()
    other = scheduler_at(schedule, jumped, [0.5, 1.5], STEPS, step)
    for _ in range(3):
        rates = [[group["lr"] for group in each.param_groups] for each in (steady, jumped)]
        assert rates[0] == rates[1]
        for each in (scheduler, other):
            each.optimizer.step()
            each.step()


def test_a_scheduler_of_pytorch_is_a_schedule(tmp_path):
    trainer = job.make_trainer(
        tmp_path, job.make_data(tmp_path), lr_schedule=PolynomialLR, log_every=1
    )
    trainer.fit()
    rates = [line["train/learning_rate"] for line in job.lines(tmp_path / "run", "train/loss")]
    assert rates == pytest.approx([0.01 * (1 - step / 16) for step in range(16)])
