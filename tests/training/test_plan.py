"""The plan of a run of unknown length: when the rate falls, how far, and what it says."""

import math

import pytest
import torch

from slide.training import TrainingOptions
from slide.training.lr_schedules import (
    DECAY_SHARE,
    LEAST_GAIN,
    WARMUP,
    Plan,
    evaluation_interval,
    least_steps,
)

EPOCH = 100


def played(scores, most=100_000, epoch=EPOCH):
    """A plan after evaluations at its interval, until the rate falls."""
    plan, interval = Plan(epoch, most), evaluation_interval(epoch)
    for count, score in enumerate(scores, 1):
        step = count * interval
        assert plan.wants_score(step)
        plan.note_score(step, score)
        if plan.decay_from:
            return plan
    return plan


@pytest.mark.parametrize(
    ("scores", "epochs"),
    [
        ([0.5], None),
        ([0.2, 0.3, 0.38, 0.44], None),  # Gains of 0.1, 0.08, 0.06.
        ([0.5, 0.4], 2),
        ([0.5, 0.5], 2),
        ([0.0, 0.0], 2),
        # One more gain as small in relation as that of the second epoch would not pay.
        ([0.5, 0.53], 2),
        ([0.2, 0.3, 0.31], 3),
        ([0.2, 0.3, 0.29, 0.5], 3),
        # Steady gains go on, and end where a gain itself is too small.
        ([0.1, 0.2, 0.3, 0.4], None),
        ([*[0.1 * i for i in range(1, 6)], 0.5 + 0.5 * LEAST_GAIN * 0.9], 6),
        ([0.3, 0.2 + 0.1], 2),
    ],
)
def test_the_rate_falls_when_no_gain_is_expected(scores, epochs):
    plan = played(scores)
    if epochs is None:
        assert (plan.phase, plan.decay_from, plan.total) == ("stable", 0, 0)
    else:
        assert plan.phase == "decay"
        assert plan.decay_from == epochs * EPOCH
        assert plan.total == round(epochs * EPOCH * (1 + DECAY_SHARE))
        assert not plan.wants_score(plan.decay_from + EPOCH)


@pytest.mark.parametrize(
    ("scores", "epochs"),
    [
        ([0.6, 0.7], None),  # Learnt: 0.1 and 0.2, not 0.6 and 0.7.
        ([0.6, 0.61], 2),
        ([0.4, 0.45], None),  # It is still worse than without any learning.
        ([0.4, 0.4], 2),
    ],
)
def test_precision_without_learning_is_no_gain(scores, epochs):
    plan = Plan(EPOCH, 100_000)
    for count, score in enumerate(scores, 1):
        plan.note_score(count * EPOCH, score, baseline=0.5)
    assert plan.decay_from == (0 if epochs is None else epochs * EPOCH)


def test_gains_are_those_of_whole_epochs():
    """Each part of an epoch gains little, and the epochs gain much."""
    assert evaluation_interval(6000) == 2000
    slow = [0.2, 0.3, 0.4, 0.405, 0.41, 0.6, 0.605, 0.61, 0.8]
    assert not played(slow, epoch=6000).decay_from
    plan = played([*slow, 0.606], epoch=6000)
    assert plan.decay_from == 20_000


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
    plan = Plan(EPOCH, 100_000, least_steps=least_steps("graph", EPOCH, 128))
    for count, score in enumerate(scores, 1):
        assert not plan.decay_from
        plan.note_score(count * EPOCH, score)
        assert ("until step 600 at least" in plan.sentence()) == (count < 6)
        if plan.decay_from:
            break
    assert plan.decay_from == 6 * EPOCH


@pytest.mark.parametrize(
    ("kind", "epoch", "batch", "expected"),
    [("graph", 100, 64, 600), ("graph", 15, 64, 512), ("graph", 1, 1000, 33), ("items", 15, 64, 0)],
)
def test_least_steps(kind, epoch, batch, expected):
    assert least_steps(kind, epoch, batch) == expected


def rates(plan, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler, used = plan.schedule(optimizer, 0), []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"] / 2)
        optimizer.step()
        scheduler.step()
    return used


def test_the_rate_rises_stays_and_falls():
    plan = played([0.5, 0.5])
    used = rates(plan, plan.total)
    assert used[0] == pytest.approx(1 / (WARMUP + 1))
    assert used[WARMUP : 2 * EPOCH + 1] == [1.0] * (2 * EPOCH + 1 - WARMUP)
    fall = plan.total - plan.decay_from
    assert used[plan.decay_from :] == pytest.approx([1 - i / fall for i in range(fall)])
    assert used[:WARMUP] == sorted(used[:WARMUP])
    assert rates(played([0.5]), 150) == used[:150], "what comes later does not matter"


@pytest.mark.parametrize("most", [1, 2, 3, 10, 16, 1000, 1001])
def test_the_largest_number_of_steps_is_kept(most):
    plan, step = Plan(EPOCH, most), 0
    while not plan.total or step < plan.total:
        step += 1
        plan.check_limits(step, 0.0)
    assert step == plan.total == most
    assert plan.decay_from == pytest.approx(most / (1 + DECAY_SHARE), abs=1)


def test_the_largest_time_is_kept():
    plan, step = Plan(EPOCH, 10**6, most_seconds=30.0), 0
    while not plan.total or step < plan.total:
        step += 1
        plan.check_limits(step, 0.1 * step)
    assert 0.1 * step == pytest.approx(30, abs=0.2)


def test_a_limit_that_was_passed_ends_the_run():
    """A resumed run may have a smaller one."""
    plan = Plan(EPOCH, 50)
    plan.check_limits(80, 0.0)
    assert plan.total == 80


def test_a_lower_limit_of_time_that_was_passed_ends_the_run():
    plan = Plan(EPOCH, 100_000, most_seconds=600)
    plan.check_limits(36_000, 3600)
    assert plan.total == 36_000
    plan = Plan(EPOCH, 100_000, most_seconds=600)
    plan.check_limits(36_000, 540)
    assert (plan.decay_from, plan.total) == (36_000, 40_000), "at the pace so far"


@pytest.mark.parametrize(
    ("limits", "total"),
    [((2000, 0.0), 1500), ((1200, 0.0), 1200), ((900, 0.0), 1100), ((2000, 120.0), 1200)],
)
def test_lower_limits_hold_while_the_rate_falls(limits, total):
    """A tenth of a second for a step; 1,100 steps are done, and the rate falls from 1,000 on."""
    plan = Plan(EPOCH, *limits, decay_from=1000, total=1500)
    plan.check_limits(1100, 110.0)
    assert plan.total == total
    assert plan.factor(total) == 0


def test_limits_stay_those_of_the_resumed_run():
    plan = played([0.5, 0.5])
    other = Plan(EPOCH, 7)
    other.load_state_dict(plan.state_dict())
    assert other == Plan(EPOCH, 7, 0.0, 0, plan.steps, plan.scores, plan.decay_from, plan.total)


@pytest.mark.parametrize(
    ("limits", "total", "said"),
    [
        ((2000, 150.0), 1500, False),
        ((1200, 150.0), 1200, False),
        ((2000, 145.0), 1318, False),
        ((1400, 150.0), 1400, False),
        ((1400, 145.0), 1318, False),
        ((1400, 160.0), 1400, True),
        ((2001, 150.0), 1500, True),
        ((2000, 160.0), 1500, True),
        ((2000, 0.0), 1500, True),
        ((1200, 160.0), 1200, True),
    ],
)
def test_a_resumed_run_looks_again_at_lower_limits_only(limits, total, said):
    """The pace has changed since the rate began to fall: 1,100 steps took 121 seconds."""
    before = Plan(EPOCH, 2000, 150.0, decay_from=1000, total=1500)
    plan = Plan(EPOCH, *limits)
    plan.load_state_dict(before.state_dict())
    found = plan.apply_lower_limits(1100, 121.0)
    assert plan.total == total
    assert found == (f"the rate falls until step {total}; higher limits come too late" * said)


def test_a_plan_without_limits_in_its_state_looks_again():
    state = Plan(EPOCH, 2000, 150.0, decay_from=1000, total=1500).state_dict()
    del state["most_steps"], state["most_seconds"]
    plan = Plan(EPOCH, 1200)
    plan.load_state_dict(state)
    assert plan.apply_lower_limits(1100, 121.0) == ""
    assert plan.total == 1200


def test_higher_limits_hold_before_the_rate_falls():
    plan = Plan(EPOCH, 3000)
    plan.load_state_dict(Plan(EPOCH, 2000).state_dict())
    assert plan.apply_lower_limits(1500, 0.0) == ""
    assert not plan.decay_from


def test_it_says_what_it_waits_for():
    said = Plan(EPOCH, 9).sentence()
    assert said == "no held-out precision yet; the rate stays up while it rises enough"
    said = played([0.4, 0.7]).sentence()
    assert said == "held-out precision 0.700, best 0.700; the rate stays up while it rises enough"
    said = played([0.7123, 0.7]).sentence()
    assert said == "held-out precision 0.700, best 0.712; the rate falls until step 300"


def test_options():
    options = TrainingOptions()
    assert options.auto
    assert options.most_steps(10) == 10 * 20
    assert options.most_steps(10, least=512) == 1024, "a small graph gets more epochs"
    assert TrainingOptions(max_epochs=2).most_steps(10, least=512) == 20
    assert TrainingOptions(max_steps=7).most_steps(10) == 7
    assert TrainingOptions(epochs=3).most_steps(10) == 30
    assert TrainingOptions(log_every=3, recall_every=0).intervals(1000, 2000) == (3, 0)
    for steps, expected in ((16, (1, 1)), (179, (8, 8)), (1000, (20, 50)), (10**6, (20, 100))):
        assert TrainingOptions(epochs=1).intervals(steps, steps) == expected
    for early in (options, TrainingOptions(epochs=40, patience=1)):
        assert early.intervals(100, 4000) == (10, 10), "two evaluations come before the end"
        assert early.intervals(20, 400) == (6, 6), "they are 60 steps apart"
        assert early.intervals(100, 40) == (2, 2)
    for wrong in ({"epochs": "never"}, {"epochs": True}, {"max_minutes": math.inf}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be "):
            TrainingOptions(**wrong)
    for name in ("max_minutes", "max_epochs"):
        with pytest.raises(ValueError, match=f"{name}=1 needs epochs=auto, not 3"):
            TrainingOptions(epochs=3, **{name: 1})
