"""What pipes, shells and editors do to the input and output of ``slide-predict``."""

import json
import os
import subprocess
import sys

import pytest
from helpers.commands import slide_predict

from slide import FullSampler, Model, SlideNetwork
from slide.predict import command

pytestmark = pytest.mark.usefixtures("one_thread")
BOM = b"\xef\xbb\xbf"
JSON = b'{"features": {"3": 1}, "labels": [2]}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    network = SlideNetwork(50, [8], 12, FullSampler)
    Model(network).save(folder / "plain")
    names = [f"a\u2028label {n}" for n in range(12)]
    Model(network, label_names=names).save(folder / "named")
    return folder


def answers(folder, file, *more):
    said = slide_predict(folder / "plain", file, *more)
    return [json.loads(line)["labels"] for line in said.splitlines()]


@pytest.fixture
def standard_input(monkeypatch):
    """Puts the reading end of a pipe in the place of standard input; returns the writing end."""
    read, write = os.pipe()
    with os.fdopen(read) as file, os.fdopen(write, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", file)
        yield pipe


@pytest.mark.parametrize(
    "parts",
    [(b"2 5", b"0 12\n2 3:1\n1 4:1\n"), (b'{"fea', b'tures": [3]}\n{"features": [4]}\n')],
    ids=["xmc", "jsonl"],
)
def test_a_first_line_in_two_pieces(folder, standard_input, parts):
    first, second = parts
    sleeping = "import sys, time; time.sleep(0.3); sys.stdout.buffer.write(bytes.fromhex('{}'))"
    standard_input.write(first)
    words = [sys.executable, "-c", sleeping.format(second.hex())]
    writer = subprocess.Popen(words, stdout=standard_input)
    standard_input.close()
    assert len(answers(folder, "-")) == 2
    assert writer.wait(30) == 0


@pytest.mark.parametrize("begin", [BOM, b"\n", b"\r\n \n", BOM + b"\n"])
def test_what_comes_before_the_first_row(folder, tmp_path, begin):
    rows = tmp_path / "rows"  # Its name says nothing.
    rows.write_bytes(JSON)
    expected = answers(folder, rows)
    rows.write_bytes(begin + JSON)
    assert answers(folder, rows) == expected
    rows.write_bytes(begin + JSON + b"{")
    with pytest.raises(SystemExit, match=rf"rows:{begin.count(10) + 2}: "):
        slide_predict(folder / "plain", rows)
    for text in (b"1 50 12\n2 3:1\n", b"2 4:1\n"):
        rows.write_bytes(text)
        expected = answers(folder, rows)
        rows.write_bytes(BOM + text)
        assert answers(folder, rows) == expected


def test_only_some_labels_whatever_ends_a_line_elsewhere(folder, tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(JSON)
    some = tmp_path / "some"
    some.write_bytes(BOM + "a\u2028label 7\r\n\r\na\u2028label 9\n".encode())
    said = slide_predict(folder / "named", tmp_path / "rows.jsonl", "--restrict", some)
    assert set(json.loads(said)["labels"]) == {"a\u2028label 7", "a\u2028label 9"}
    some.write_bytes(BOM + b"7\r\n9")
    assert set(answers(folder, tmp_path / "rows.jsonl", "--restrict", some)[0]) == {7, 9}
    some.write_bytes(b"\xff\n")
    with pytest.raises(SystemExit, match=r"error: .*some is no text in UTF-8: "):
        answers(folder, tmp_path / "rows.jsonl", "--restrict", some)


def test_answers_take_no_more_memory_than_there_are_labels(folder, tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_bytes(JSON)
    (tmp_path / "some").write_text("7\n9\n")
    asked, whole = [], Model.predict_ids
    monkeypatch.setattr(
        Model, "predict_ids", lambda self, x, k, *more: asked.append(k) or whole(self, x, k, *more)
    )
    found = [answers(folder, tmp_path / "rows.jsonl", "-k", k) for k in (12, 10**15)]
    assert found[0] == found[1]
    assert sorted(found[0][0]) == list(range(12))
    more = "--restrict", tmp_path / "some", "--metrics", tmp_path / "metrics.json"
    assert set(answers(folder, tmp_path / "rows.jsonl", "-k", 10**15, *more)[0]) == {7, 9}
    assert asked == [12, 12, 5]
    assert "p_at_5" in json.loads((tmp_path / "metrics.json").read_text())


@pytest.fixture
def standard_output(monkeypatch, tmp_path):
    """Opens a file in the place of standard output."""
    opened = []

    def open_file(mode):
        opened.append((tmp_path / "out").open(mode))
        monkeypatch.setattr(sys, "stdout", opened[-1])
        return opened[-1]

    yield open_file
    for each in opened:
        each.close()


def test_text_between_what_other_commands_write(folder, tmp_path, standard_output):
    (tmp_path / "rows.txt").write_text("2 50 12\n1 3:1\n0 2:1\n")
    words = [str(folder / "plain"), str(tmp_path / "rows.txt"), "--threads", "1", "-k", "1"]
    with standard_output("w") as file:
        file.write("a line before\n")
        file.flush()
        command.main([*words, "--to", "xmc"])
        file.write("a line after\n")
    before, header, *rows, after = (tmp_path / "out").read_text().splitlines()
    assert (before, header.split(), after) == ("a line before", ["2", "12"], "a line after")
    assert len(rows) == 2


@pytest.mark.parametrize("format", ["xmc", "npz"])
def test_a_file_that_is_appended_to_is_refused(folder, tmp_path, standard_output, format):
    (tmp_path / "rows.jsonl").write_bytes(JSON)
    (tmp_path / "out").write_text("a line before\n")
    words = [str(folder / "plain"), str(tmp_path / "rows.jsonl"), "--threads", "1"]
    with standard_output("a"):
        with pytest.raises(SystemExit, match=f"error: {format} cannot be appended to a file: --o"):
            command.main([*words, "--to", format])
        command.main(words)
    first, second = (tmp_path / "out").read_text().splitlines()
    assert first == "a line before"
    assert json.loads(second)["labels"]
