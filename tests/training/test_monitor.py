"""JSON lines and TensorBoard events, also over the gap of a crash."""

import pytest
from helpers import job
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from slide.training.monitor import Monitor


def events(folder, tag):
    found = EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


def write(folder, steps, begin=0):
    monitor = Monitor(folder, begin)
    for step in steps:
        monitor.write(step, {"train/loss": step / 4, "eval/p_at_1": 0.5})
    return monitor


def test_both_files_hold_all(tmp_path):
    write(tmp_path, [1, 2, 3]).close()
    assert job.lines(tmp_path) == [
        {"step": s, "train/loss": s / 4, "eval/p_at_1": 0.5} for s in (1, 2, 3)
    ]
    assert events(tmp_path, "train/loss") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert events(tmp_path, "eval/p_at_1") == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_lines_are_on_disk_at_once(tmp_path):
    monitor = write(tmp_path, [1])
    assert len(job.lines(tmp_path)) == 1
    assert events(tmp_path, "train/loss") == [(1, 0.25)]
    monitor.close()


@pytest.mark.parametrize("step", [0, 2, 5])
def test_what_a_lost_part_wrote_is_dropped(tmp_path, step):
    write(tmp_path, [1, 2, 3, 4]).close()
    write(tmp_path, [step + 1, step + 2], begin=step).close()
    expected = [*range(1, min(step, 4) + 1), step + 1, step + 2]
    assert job.steps(tmp_path, "train/loss") == expected
    assert events(tmp_path, "train/loss") == [(s, s / 4) for s in expected]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("torn", ['{"step": 2, "train/lo', "", "[1, 2]", '{"a": 1}', "\x00\x00"])
def test_a_torn_line_is_dropped(tmp_path, torn):
    write(tmp_path, [1]).close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torn)
    write(tmp_path, [3], begin=2).close()
    assert job.steps(tmp_path, "train/loss") == [1, 3]
