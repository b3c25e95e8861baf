"""JSON lines and TensorBoard events, also over the gap of a crash."""

import pytest
from helpers import job
from helpers.limits import limited
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


def test_an_evaluation_that_is_made_again_replaces_that_of_before(tmp_path):
    """A run that was killed after its last evaluation; the values may differ in the last bits."""
    first = Monitor(tmp_path)
    for step in (1, 2):
        first.write(step, {"train/loss": step / 4})
    first.write(2, {"eval/p_at_1": 0.25})
    first.write(2, {"reranked/p_at_1": 0.75})
    first.close()
    second = Monitor(tmp_path, 2)
    second.write(2, {"eval/p_at_1": 0.5})
    second.write(2, {"reranked/p_at_1": 0.875})
    second.write(3, {"train/loss": 0.75})
    second.write(3, {"eval/p_at_1": 0.625})
    second.close()
    assert job.lines(tmp_path, "eval/p_at_1") == [
        {"step": 2, "eval/p_at_1": 0.5},
        {"step": 3, "eval/p_at_1": 0.625},
    ]
    assert events(tmp_path, "train/loss") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert events(tmp_path, "eval/p_at_1") == [(2, 0.5), (3, 0.625)]
    assert events(tmp_path, "reranked/p_at_1") == [(2, 0.875)]
    assert job.steps(tmp_path, "train/loss") == [1, 2, 3]


def test_lines_that_are_no_log_are_left_out(tmp_path):
    line = b'{"step": 1, "train/loss": 0.25}\n'
    damaged = b'{"step": 1, "train/l\xff\xfe\n', b'{"step": "x", "train/loss": 1}\n', b"[1]\n"
    (tmp_path / "metrics.jsonl").write_bytes(line + b"".join(damaged))
    Monitor(tmp_path, 5).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == line


def test_a_disk_that_is_full_from_the_start(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 0.25}\n' * 1000)
    said = rf"cannot write the log {tmp_path}/metrics.jsonl: "
    with limited(100), pytest.raises(OSError, match=said):
        Monitor(tmp_path, 1)


def test_a_full_disk_is_said(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/loss": 0.25}\n' * 1000)  # More than the events take.
    monitor = Monitor(tmp_path, 1)
    said = rf"cannot write the log {path}: .*; checkpoints are kept"
    with limited(path.stat().st_size + 10), pytest.raises(OSError, match=said):
        monitor.write(2, {"train/loss": 0.5})
    monitor.close()
    write(tmp_path, [2], begin=1).close()
    assert job.steps(tmp_path, "train/loss") == [1] * 1000 + [2], "it cannot go on"
