"""Learning-rate schedules against their definitions, and the one that chooses its length."""

import math
from functools import partial

import pytest
import torch
from helpers import job
from torch.optim.lr_scheduler import PolynomialLR

from slide.training import TrainingOptions, constant, linear
from slide.training.lr_schedules import (
    DECAY_SHARE,
    LEAST_GAIN,
    WARMUP,
    AutoSchedule,
    evaluation_interval,
    least_steps,
    scheduler_at,
)
from slide.utils.sizes import mean_name

STEPS, EPOCH = 20, 100


def optimizer(*rates):
    """An optimizer of one group for each rate."""
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups)


def rates(schedule, steps, total=STEPS):
    """The rates of so many steps of an optimizer whose rate is 1."""
    used = optimizer(1.0)
    scheduler, found = schedule(used, total), []
    for _ in range(steps):
        found.append(used.param_groups[0]["lr"])
        used.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [
        (partial(constant), 0.0, 1.0),
        *((partial(constant, warmup=0.2), x, y) for x, y in ((0, 0), (0.1, 0.5), (0.2, 1), (1, 1))),
        *((partial(linear), x, 1 - x) for x in (0.0, 0.25, 1.0)),
        (partial(linear, floor=0.1), 1.0, 0.1),
        (partial(linear, warmup=0.2, floor=0.1), 0.1, 0.5),
        (partial(linear, warmup=0.2, floor=0.1), 0.2, 1.0),
        (partial(linear, warmup=0.2), 0.6, 0.5),
        (partial(linear, warmup=0.2, floor=0.1), 0.6, 0.55),
        (partial(linear, warmup=0.2, floor=0.1), 1.5, 0.1),
    ],
)
def test_rates_by_hand(schedule, progress, expected):
    assert rates(schedule, round(progress * STEPS) + 1)[-1] == pytest.approx(expected)


@pytest.mark.parametrize("wrong", [{"warmup": 1.0}, {"warmup": -0.1}, {"floor": 2}])
def test_numbers_out_of_range(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be "):
        linear(optimizer(1.0), STEPS, **wrong)


@pytest.mark.parametrize("schedule", [partial(linear, warmup=0.3), PolynomialLR, constant])
@pytest.mark.parametrize("step", [0, 7])
def test_a_jump_leads_to_the_rates_of_a_run_without_one(schedule, step):
    steady, jumped = optimizer(0.5, 1.5), optimizer(9.0, 9.0)
    scheduler = schedule(steady, STEPS)
    for _ in range(step):
        steady.step()
        scheduler.step()
    other = scheduler_at(schedule, jumped, [0.5, 1.5], STEPS, step)
    for _ in range(3):
        one, two = ([group["lr"] for group in each.param_groups] for each in (steady, jumped))
        assert one == two
        for each in (scheduler, other):
            each.optimizer.step()
            each.step()


def test_a_scheduler_of_pytorch_is_a_schedule(tmp_path):
    options = {"lr_schedule": PolynomialLR, "log_every": 1}
    job.make_trainer(tmp_path, job.make_data(tmp_path), **options).fit()
    used = [line["train/learning_rate"] for line in job.lines(tmp_path / "run", "train/loss")]
    assert used == pytest.approx([0.01 * (1 - step / 16) for step in range(16)])


def played(scores, epoch=EPOCH, baseline=0.0, least=0):
    """A schedule after validation steps with these scores, until the rate falls."""
    found, interval = AutoSchedule(epoch, 100_000, least_steps=least), evaluation_interval(epoch)
    for count, score in enumerate(scores, 1):
        step = count * interval
        assert found.is_validation_step(step)
        assert not found.is_validation_step(step + 1)
        found.add_score(step, score, baseline)
        if found.decay_from:
            break
    return found


@pytest.mark.parametrize(
    ("scores", "baseline", "epochs"),
    [
        ([0.5], 0, None),
        ([0.2, 0.3, 0.38, 0.44], 0, None),  # Gains of 0.1, 0.08, 0.06.
        ([0.5, 0.4], 0, 2),
        # One more gain as small in relation as that of the second epoch would not pay.
        ([0.5, 0.53], 0, 2),
        ([0.2, 0.3, 0.29, 0.5], 0, 3),
        # Steady gains go on, and end where a gain itself is too small.
        ([0.1, 0.2, 0.3, 0.4], 0, None),
        ([*[0.1 * i for i in range(1, 6)], 0.5 + 0.5 * LEAST_GAIN * 0.9], 0, 6),
        # Precision without learning is no gain.
        ([0.6, 0.7], 0.5, None),  # Learnt: 0.1 and 0.2, not 0.6 and 0.7.
        ([0.4, 0.45], 0.5, None),  # It is still worse than without any learning.
        ([0.4, 0.4], 0.5, 2),
    ],
)
def test_the_rate_falls_when_no_gain_is_expected(scores, baseline, epochs):
    found = played(scores, baseline=baseline)
    if epochs is None:
        assert (found.decay_from, found.total) == (0, 0)
    else:
        assert found.decay_from == epochs * EPOCH
        assert found.total == round(epochs * EPOCH * (1 + DECAY_SHARE))
        assert not found.is_validation_step(found.decay_from + EPOCH)


def test_gains_are_those_of_whole_epochs():
    """Each part of an epoch gains little, and the epochs gain much."""
    slow = [0.2, 0.3, 0.4, 0.405, 0.41, 0.6, 0.605, 0.61, 0.8]
    assert not played(slow, epoch=6000).decay_from
    assert played([*slow, 0.606], epoch=6000).decay_from == 20_000


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(1, 50), (8, 56), (49, 98), (50, 50), (145, 145), (2000, 2000), (2001, 1001), (9000, 1800)],
)
def test_steps_between_evaluations(epoch, expected):
    assert evaluation_interval(epoch) == expected


def test_a_graph_is_learnt_for_some_epochs_first():
    """Precision may stand still at first: here it rises in the fifth epoch."""
    scores = [0.01, 0.01, 0.01, 0.01, 0.2, 0.21, 0.21]
    assert played(scores).decay_from == 2 * EPOCH
    least = least_steps("graph", EPOCH, 128)
    assert played(scores[:5], least=least).waiting().endswith(", at least 600")
    assert played(scores, least=least).decay_from == 6 * EPOCH


@pytest.mark.parametrize(
    ("kind", "epoch", "batch", "expected"),
    [("graph", 100, 64, 600), ("graph", 15, 64, 512), ("graph", 1, 1000, 33), ("items", 15, 64, 0)],
)
def test_least_steps(kind, epoch, batch, expected):
    assert least_steps(kind, epoch, batch) == expected


def test_the_rate_rises_stays_and_falls():
    found = played([0.5, 0.5])
    used = rates(found, found.total)
    assert used[0] == pytest.approx(1 / (WARMUP + 1))
    assert used[:WARMUP] == sorted(used[:WARMUP])
    assert used[WARMUP : 2 * EPOCH + 1] == [1.0] * (2 * EPOCH + 1 - WARMUP)
    fall = found.total - found.decay_from
    assert used[found.decay_from :] == pytest.approx([1 - i / fall for i in range(fall)])
    assert rates(played([0.5]), 150) == used[:150], "what comes later does not matter"


@pytest.mark.parametrize("most", [1, 10, 16, 1001])
def test_the_largest_number_of_steps_is_kept(most):
    found, step = AutoSchedule(EPOCH, most), 0
    while not found.total or step < found.total:
        step += 1
        found.check_limits(step, 0.0)
    assert step == found.total == most
    assert found.decay_from == pytest.approx(most / (1 + DECAY_SHARE), abs=1)


def test_the_largest_time_is_kept():
    found, step = AutoSchedule(EPOCH, 10**6, most_seconds=30.0), 0
    while not found.total or step < found.total:
        step += 1
        found.check_limits(step, 0.1 * step)
    assert 0.1 * step == pytest.approx(30, abs=0.2)


@pytest.mark.parametrize(
    ("limits", "now", "total"),
    [
        ((50,), (80, 0.0), 80),
        ((100_000, 600), (36_000, 3600), 36_000),
        ((100_000, 600), (36_000, 540), 40_000),  # At the pace so far.
    ],
)
def test_a_lower_limit_that_was_passed_ends_the_run(limits, now, total):
    found = AutoSchedule(EPOCH, *limits)
    found.check_limits(*now)
    assert found.total == total


@pytest.mark.parametrize(
    ("limits", "total"),
    [((2000, 0.0), 1500), ((1200, 0.0), 1200), ((900, 0.0), 1100), ((2000, 120.0), 1200)],
)
def test_lower_limits_hold_while_the_rate_falls(limits, total):
    """A tenth of a second for a step; 1,100 steps are done, and the rate falls from 1,000 on."""
    found = AutoSchedule(EPOCH, *limits, decay_from=1000, total=1500)
    found.check_limits(1100, 110.0)
    assert found.total == total
    assert found.factor(total) == 0


def loaded(state, *limits):
    found = AutoSchedule(EPOCH, *limits)
    found.load_state_dict(state)
    return found


def test_limits_stay_those_of_the_resumed_run():
    before = played([0.5, 0.5])
    known = before.steps, before.scores, before.decay_from, before.total
    assert loaded(before.state_dict(), 7) == AutoSchedule(EPOCH, 7, 0.0, 0, *known)
    higher = loaded(AutoSchedule(EPOCH, 2000).state_dict(), 3000)
    assert higher.apply_lower_limits(1500, 0.0) == ""
    assert not higher.decay_from


@pytest.mark.parametrize(
    ("limits", "total", "said"),
    [
        ((2000, 150.0), 1500, False),
        ((1200, 150.0), 1200, False),
        ((1400, 145.0), 1318, False),
        ((2001, 150.0), 1500, True),
        ((2000, 160.0), 1500, True),
        ((1200, 160.0), 1200, True),
    ],
)
def test_a_resumed_run_looks_again_at_lower_limits_only(limits, total, said):
    """The pace has changed since the rate began to fall: 1,100 steps took 121 seconds."""
    before = AutoSchedule(EPOCH, 2000, 150.0, decay_from=1000, total=1500)
    found = loaded(before.state_dict(), *limits)
    sentence = f"the rate falls until step {total}; higher limits come too late" * said
    assert found.apply_lower_limits(1100, 121.0) == sentence
    assert found.total == total


def test_it_says_what_it_waits_for():
    shown = AutoSchedule(EPOCH, 9000, 90.0).waiting()
    shown = shown.format(n=1234, elapsed="00:09", rate_noinv_fmt="137.1 steps/s")
    said = "step 1,234, at most 9,000 or 1.5 min [00:09, 137.1 steps/s] until precision levels off"
    assert shown == said
    assert played([0.4, 0.7]).waiting().endswith(" until precision 0.700 levels off")
    assert played([0.4, 0.7]).waiting("P@1").endswith(" until P@1 0.700 levels off")
    said = played([0.7123, 0.7]).falling(mean_name([1, 3, 5]))
    what = "mean of P@1, P@3 and P@5 of held-out rows"
    assert said == f"{what} 0.700, best 0.712; the rate falls until step 300"
    assert AutoSchedule(EPOCH, 9, total=9).falling() == "the rate falls until step 9"


def test_options():
    options = TrainingOptions()
    assert options.auto
    assert options.most_steps(10) == 10 * 20
    assert options.most_steps(10, least=512) == 1024, "a small graph gets more epochs"
    assert TrainingOptions(max_epochs=2).most_steps(10, least=512) == 20
    assert TrainingOptions(max_steps=7).most_steps(10) == 7
    assert TrainingOptions(epochs=3).most_steps(10) == 30
    assert TrainingOptions(log_every=3, recall_every=0).intervals(2000) == (3, 0)
    for steps, expected in ((16, (1, 1)), (179, (8, 8)), (1000, (20, 50)), (10**6, (20, 100))):
        assert TrainingOptions(epochs=1).intervals(steps) == expected
    for early in (options, TrainingOptions(epochs=40, patience=1)):
        assert early.fewest_steps(100, 4000) == 200, "two evaluations come before the end"
        assert early.fewest_steps(20, 400) == 120, "they are 60 steps apart"
        assert early.fewest_steps(100, 40) == 40


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(
            ({name: value}, f"{name} must be ")
            for name, value in (("epochs", "never"), ("epochs", True), ("max_minutes", math.inf))
        ),
        ({"epochs": 3, "max_minutes": 1}, "max_minutes=1 needs epochs=auto, not 3"),
        ({"epochs": 3, "max_epochs": 1}, "max_epochs=1 needs epochs=auto, not 3"),
        ({"patience": 2}, "patience=2 needs a number of epochs"),
        ({"epochs": 2, "patience": -1}, "patience must be a whole number of at least 0, not -1"),
    ],
)
def test_wrong_options(wrong, message):
    with pytest.raises(ValueError, match=message):
        TrainingOptions(**wrong)
