"""Reading the folder of a run, finished or not."""

import os
from contextlib import nullcontext

import pytest
import yaml
from helpers.limits import more_memory

from slide.report.run_files import read_run


def test_an_unfinished_run(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 3\ntrainer:\n  epochs: auto\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "train/loss": 0.5}\n{"step": 3, "tr')
    run = read_run(tmp_path)
    assert run.settings == {"seed": 3, "trainer.epochs": "auto"}
    assert run.summary == {}
    assert run.curve("train/loss") == ([2], [0.5])


def test_other_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no folder of a run"):
        read_run(tmp_path)
    (tmp_path / "config.yaml").write_text("a: b: c")
    with pytest.raises(ValueError, match=r"config.yaml cannot be read"):
        read_run(tmp_path)


def test_seconds_lie_between_lines_of_the_log(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    lines = ['{"step": 10, "train/seconds": 4.0}', '{"step": 20, "train/seconds": 10.0}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_run(tmp_path).seconds_at([5, 10, 15, 20, 25]) == [2, 4, 7, 10, 10]


def test_a_summary_of_the_version_before_gets_the_names_of_the_parts_of_training(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    old = '{"steps": 10, "train_seconds": 2.0, "held_seconds": 0.5, "ranker_seconds": 3.0}'
    (tmp_path / "summary.json").write_text(old)
    run = read_run(tmp_path)
    assert run.summary["network_seconds"] == 2
    assert run.summary["validation_seconds"] == 0.5
    assert run.summary["train_seconds"] == 5.5
    assert run.seconds_at([5, 10]) == [1, 2]


FILES = ("config.yaml", "summary.json")
# Eight times as long as a list of four lines; twenty lines would fill the memory.
BOMB = b"a: &a [1, 2]\nb: &b [*a, *a]\nc: [*b, *b]\n"
BAD_SUMMARIES = (b'{"p_at_1": "0.5"}', b'{"dataset": 3}', b'{"warnings": [1]}', b'{"steps": 1e99}')
MALFORMED = [(n, b) for n in FILES for b in (b"", b"- 1", b"seed: \xff", b"[" * 9999)]
MALFORMED += [("config.yaml", text) for text in (BOMB, b'seed: !!int ""', b"#" * (10**6 + 1))]
MALFORMED += [("summary.json", text) for text in BAD_SUMMARIES]


@pytest.mark.parametrize(("name", "text"), MALFORMED)
def test_files_that_are_malformed(tmp_path, name, text):
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    (tmp_path / name).write_bytes(text)
    with pytest.raises(ValueError, match=f"{name} cannot be read: "):
        read_run(tmp_path)


@pytest.mark.parametrize("name", [*FILES, "metrics.jsonl"])
def test_files_of_any_length_take_no_memory(tmp_path, name):
    """A file of zeros, of which none are on the disk."""
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / name).open("a").close()
    os.truncate(tmp_path / name, 1 << (28 if name == "metrics.jsonl" else 36))
    wanted = nullcontext() if name == "metrics.jsonl" else pytest.raises(ValueError, match=name)
    with more_memory(256 << 20), wanted:
        assert read_run(tmp_path).log == [{"step": 1}]


def test_brackets_in_brackets_are_not_read_to_their_end(tmp_path, monkeypatch):
    """PyYAML takes time with the square of their number."""
    tokens = []
    fetch = yaml.SafeLoader.fetch_more_tokens
    monkeypatch.setattr(
        yaml.Loader, "fetch_more_tokens", lambda self: (tokens.append(1), fetch(self))
    )
    (tmp_path / "config.yaml").write_text("[" * 99_999)
    with pytest.raises(ValueError, match="it has more than 50 levels"):
        read_run(tmp_path)
    assert 0 < len(tokens) < 2_000


def test_lines_of_a_log_that_are_none(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    (tmp_path / "summary.json").write_text('{"p_at_1": 0.5}')
    lines = b'5\n[]\n{"loss": 1}\n{"step": "a"}\n\xff\n{"step": 10, "train/seconds": 4.0}\n'
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1e99}\n' + lines)
    run = read_run(tmp_path)
    assert run.log == [{"step": 10, "train/seconds": 4.0}]
    assert run.seconds_at([5, 20]) == [2, 4]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    for name in ("summary.json", "metrics.jsonl"):
        os.mkfifo(tmp_path / name)
    assert read_run(tmp_path)[1:] == ({}, {"seed": 3}, [])
