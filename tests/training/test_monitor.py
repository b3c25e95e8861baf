"""Counters and the log: JSON lines and TensorBoard events, also over the gap of a crash."""

import json
import shutil
from dataclasses import replace

import pytest
from helpers import job
from helpers.limits import limited
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from slide.training import trainer
from slide.training.monitor import Counters, Monitor, log_scalars
from slide.training.stopping import HELD, HeldOutSamples


def events(folder, tag):
    found = EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


def write(folder, steps, begin=0):
    monitor = Monitor(folder, begin)
    for step in steps:
        monitor.write(step, {"train/loss": step / 4, "eval/p_at_1": 0.5})
    return monitor


def test_both_files_hold_all_at_once(tmp_path):
    monitor = write(tmp_path, [1, 2, 3])
    expected = [{"step": s, "train/loss": s / 4, "eval/p_at_1": 0.5} for s in (1, 2, 3)]
    assert job.lines(tmp_path) == monitor.scalars() == expected
    assert events(tmp_path, "train/loss") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert events(tmp_path, "eval/p_at_1") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    monitor.close()


def test_one_process_writes():
    monitor = write(None, [1])
    monitor.note_settings({"seed": 1})
    assert monitor.scalars() == []
    monitor.close()


@pytest.mark.parametrize("step", [2, 5])
def test_what_a_lost_part_wrote_is_dropped(tmp_path, step):
    write(tmp_path, [1, 2, 3, 4]).close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "train/lo')
    write(tmp_path, [step + 1, step + 2], begin=step).close()
    expected = [*range(1, min(step, 4) + 1), step + 1, step + 2]
    assert job.steps(tmp_path, "train/loss") == expected
    assert events(tmp_path, "train/loss") == [(s, s / 4) for s in expected]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_clock_that_was_set_back_changes_no_curve(tmp_path, monkeypatch):
    for begin, now in ((0, 2e9), (2, 1e9), (3, 1.0)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        write(tmp_path, [begin + 1, begin + 2], begin).close()
    assert events(tmp_path, "train/loss") == [(s, s / 4) for s in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("change", ["removed", "renamed", "another run's"])
def test_a_folder_that_is_gone_is_noticed_at_the_next_line(tmp_path, change):
    folder = tmp_path / "run"
    folder.mkdir()
    monitor = write(folder, [1])
    folder.rename(tmp_path / "away")
    if change == "removed":
        shutil.rmtree(tmp_path / "away")
    elif change == "another run's":
        folder.mkdir()
        write(folder, [1]).close()
    with pytest.raises(OSError, match=f"^{folder} was removed or renamed while the run wrote"):
        monitor.write(2, {"train/loss": 0.5})
    monitor.close()
    assert not folder.exists() or job.steps(folder, "train/loss") == [1]


def test_an_evaluation_that_is_made_again_replaces_that_of_before(tmp_path):
    """A run that was killed after its last evaluation; the values may differ in the last bits."""
    for begin, scores in ((0, [(1, "train/loss", 0.25), (2, "train/loss", 0.5)]), (2, [])):
        again = begin / 8  # 0, then a quarter.
        monitor = Monitor(tmp_path, begin)
        last = [(3, "train/loss", 0.75), (3, "eval/p_at_1", 0.625)] if begin else []
        both = [(2, "eval/p_at_1", 0.25 + again), (2, "reranked/p_at_1", 0.5 + again)]
        for step, name, value in (*scores, *both, *last):
            monitor.write(step, {name: value})
        monitor.close()
    assert job.lines(tmp_path, "eval/p_at_1") == [
        {"step": 2, "eval/p_at_1": 0.5},
        {"step": 3, "eval/p_at_1": 0.625},
    ]
    assert events(tmp_path, "train/loss") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert events(tmp_path, "eval/p_at_1") == [(2, 0.5), (3, 0.625)]
    assert events(tmp_path, "reranked/p_at_1") == [(2, 0.75)]
    assert job.steps(tmp_path, "train/loss") == [1, 2, 3]


def test_lines_that_are_no_log_are_left_out(tmp_path):
    line = b'{"step": 1, "train/loss": 0.25}\n'
    damaged = [
        b"\0\0",
        b'{"a": 1}',
        b'{"step": 1, "train/l\xff\xfe',
        b'{"step": "x", "train/loss": 1}',
        b"[1]",
        b'"step"',
    ]
    damaged += [b'{"step": %s}' % step for step in (b"[" * 9999, b"1" + b"0" * 400, b"[1]", b'"1"')]
    damaged += [
        b'{"step": 1, %s}' % part for part in (b'"a": {}', rb'"\ud800": 1', rb'"\u0000": 1')
    ]
    (tmp_path / "metrics.jsonl").write_bytes(line + b"\n".join(damaged))
    Monitor(tmp_path, 5).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == line


def test_millions_of_empty_lines_are_not_parsed(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text("\n" * 10**6 + '{"step": 1}\n')
    parsed = []
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or {"step": 1})
    Monitor(tmp_path, 1).close()
    assert parsed == ['{"step": 1}\n']


def test_a_full_disk_is_said(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "train/loss": 0.25}\n' * 1000)  # More than the events take.
    said = rf"cannot write the log {path}: .*; checkpoints are kept"
    with limited(100), pytest.raises(OSError, match=said):
        Monitor(tmp_path, 1)
    monitor = Monitor(tmp_path, 1)
    with limited(path.stat().st_size + 10), pytest.raises(OSError, match=said):
        monitor.write(2, {"train/loss": 0.5})
    monitor.close()
    write(tmp_path, [2], begin=1).close()
    assert job.steps(tmp_path, "train/loss") == [1] * 1000 + [2], "it cannot go on"


def test_scalars_are_about_the_steps_since_the_last_log():
    before = Counters(step=10, samples=100, active_total=50, loss_total=20, network_seconds=4)
    now = replace(before, step=14, samples=160, active_total=90, loss_total=22)
    now = replace(now, network_seconds=6.0, rebuild_seconds=0.5)
    assert log_scalars(now, before, rate=0.25, steps_per_epoch=7) == {
        "train/loss": 0.5,
        "train/learning_rate": 0.25,
        "train/epoch": 2,
        "train/seconds": 6,
        "speed/samples_per_second": 30,
        "speed/rebuild_share": 0.25,
        "selection/active_mean": 10,
    }


def test_curves_of_a_short_run_have_twenty_points(tmp_path):
    job.make_trainer(tmp_path, job.make_data(tmp_path), epochs="auto", max_steps=100).fit()
    for name in ("train/loss", "selection/recall", "held/precision"):
        assert 20 <= len(job.steps(tmp_path / "run", name)) <= 40


def test_measurements_take_a_small_part_of_the_work(tmp_path, monkeypatch):
    data, options = job.make_data(tmp_path), {"epochs": "auto", "max_steps": 100}
    for free, expected in ((trainer._FREE, (5, 16)), (0, (25, 4))):
        monkeypatch.setattr(trainer, "_FREE", free)
        made = job.make_trainer(tmp_path, data, **options)
        assert (made.held_every, made.loop.inspected) == expected
        made.checkpoint.close()
        made.monitor.close()
    work = 0.05 * 100 * 3 * 16 * 32  # Of the steps, forward and to both sides backward.
    assert 100 / made.held_every * 24 * 80 <= work
    assert 100 / made.recall_every * made.loop.inspected * 80 <= work


def test_points_of_few_rows_are_moved_to_the_last_point_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "_FEWEST_ROWS", 5)
    monkeypatch.setattr(trainer, "_FREE", 5 * 80 * 8 * 20)
    scores = {5: 0.25, 24: 0.5}
    monkeypatch.setattr(HeldOutSamples, "precision", lambda self, _: scores[len(self.split)])
    made = job.make_trainer(tmp_path, job.make_data(tmp_path), epochs="auto", max_steps=120)
    made.fit()
    held = {line["step"]: line["held/precision"] for line in job.lines(tmp_path / "run", HELD)}
    assert [held[step] for step in (5, 50, 54, 55, 85)] == [0.25, 0.25, 0.5, 0.5, 0.5]
    assert json.loads((tmp_path / "run/summary.json").read_text())["measuring_seconds"] > 0
