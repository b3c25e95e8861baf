"""The command slide-predict, with files, pipes and devices."""

import io
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from helpers import job
from helpers.commands import slide_predict

from slide import FullSampler, SlideNetwork
from slide.model import Model, load
from slide.predict import command, rows
from slide.training.evaluation import ndcg_at_k, precision_at_k

pytestmark = pytest.mark.usefixtures("one_thread")
LABELS = [f"label {n}" for n in range(80)]
FEATURES = [f"word {n}" for n in range(60)]


@pytest.fixture(scope="module")
def folder(data, network, files):
    """A model whose labels and features have names, and all files of its rows."""
    Model(network, label_names=LABELS, feature_names=FEATURES).save(files / "named")
    Model(network).save(files / "plain")
    Model(network).restricted(range(80)).save(files / "bare")
    x, y = data.test.features, data.test.labels
    matrix = scipy.sparse.csr_array((x.values, x.indices, x.indptr), (40, 60))
    scipy.sparse.save_npz(files / "rows.npz", matrix)
    ones = np.ones(len(y.indices))
    labels = scipy.sparse.csr_array((ones, y.indices, y.indptr), (40, 80))
    scipy.sparse.save_npz(files / "labels.npz", labels)
    for name, of_features, of_labels in (("named", FEATURES, LABELS), ("plain", None, None)):
        lines = []
        for row in range(40):
            features = slice(*x.indptr[row : row + 2])
            columns = x.indices[features].tolist()
            keys = [of_features[c] if of_features else str(c) for c in columns]
            found = y.indices[slice(*y.indptr[row : row + 2])].tolist()
            line = {"features": dict(zip(keys, x.values[features].tolist(), strict=True))}
            lines.append(line | {"labels": [of_labels[n] if of_labels else n for n in found]})
        text = "\n".join(map(json.dumps, lines)) + "\n\n"
        (files / f"{name}.jsonl").write_text(text)
    return files


def failure(*words):
    with pytest.raises(SystemExit) as stopped:
        command.main([*map(str, words), "--threads", "1"])
    assert isinstance(stopped.value.code, str), "the exit has no message"
    return stopped.value.code


def expected(folder, data, model="plain", k=5):
    return load(folder / model).predict(data.test.features, k)


@pytest.mark.parametrize("file", ["rows.txt", "rows.svm", "rows.npz", "plain.jsonl"])
def test_all_formats_of_rows(folder, data, file, capsys, monkeypatch):
    """In small pieces."""
    monkeypatch.setattr(rows, "_CHUNK", 200)
    monkeypatch.setattr(rows, "_LINES", 7)
    said = slide_predict(folder / "plain", folder / file)
    labels, scores = expected(folder, data)
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["labels"] for line in lines] == labels.tolist()
    np.testing.assert_allclose([line["scores"] for line in lines], scores, rtol=1e-5)
    metrics = capsys.readouterr().err
    if file == "rows.npz":
        assert metrics == ""
        return
    values = [
        f"{name}@{k} {metric(labels, data.test.labels, k):.4f}"
        for name, metric in (("P", precision_at_k), ("nDCG", ndcg_at_k))
        for k in (1, 3, 5)
    ]
    assert metrics == "  ".join(values) + "\n"


def assert_same_answers(one, other):
    """But for the rounding of other batches."""
    for mine, theirs in zip(one.splitlines(), other.splitlines(), strict=True):
        found, wanted = json.loads(mine), json.loads(theirs)
        assert found["labels"] == wanted["labels"]
        assert found["scores"] == pytest.approx(wanted["scores"], rel=1e-4)


@pytest.mark.parametrize("told", ["rows.txt", "rows.svm --format svmlight", "plain.jsonl"])
def test_standard_input(folder, told, monkeypatch):
    """The first line tells the format if the call does not."""
    monkeypatch.setattr(rows, "_CHUNK", 300)
    file, *more = told.split()
    whole = io.BufferedReader(io.BytesIO((folder / file).read_bytes()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(whole))
    said = slide_predict(folder / "plain", "-", *more)
    assert_same_answers(said, slide_predict(folder / "plain", folder / file))


def test_names(folder, data):
    said = slide_predict(folder / "named", folder / "named.jsonl", "-k", 3)
    labels, _ = expected(folder, data, "named", 3)
    assert [json.loads(line)["labels"] for line in said.splitlines()] == labels.tolist()
    assert labels[0, 0].startswith("label ")
    numbers = slide_predict(folder / "named", folder / "named.jsonl", "-k", 3, "--ids")
    assert numbers == slide_predict(folder / "plain", folder / "rows.txt", "-k", 3)


def test_text_with_scores(folder, data, tmp_path):
    slide_predict(folder / "plain", folder / "rows.txt", "--k", 2, "-o", tmp_path / "out.txt")
    header, *lines = (tmp_path / "out.txt").read_text().splitlines()
    assert header.split() == ["40", "80"]
    labels, scores = expected(folder, data, k=2)
    for line, ids, values in zip(lines, labels, scores, strict=True):
        pairs = [pair.split(":") for pair in line.split()]
        assert [int(i) for i, _ in pairs] == ids.tolist()
        assert [float(s) for _, s in pairs] == pytest.approx(values.tolist(), rel=1e-5)


def test_a_matrix_of_scores(folder, data, tmp_path):
    threshold = float(np.median(expected(folder, data, k=6).scores))
    slide_predict(folder / "plain", folder / "rows.txt", "-k", 6, "-o", tmp_path / "a.npz")
    few = ["--threshold", threshold, "--to", "npz", "-o", tmp_path / "few"]
    slide_predict(folder / "plain", folder / "rows.txt", "-k", 6, *few)
    whole, few = scipy.sparse.load_npz(tmp_path / "a.npz"), scipy.sparse.load_npz(tmp_path / "few")
    assert whole.shape == few.shape == (40, 80)
    labels, scores = expected(folder, data, k=6)
    np.testing.assert_array_equal(whole[np.arange(40)[:, None], labels].toarray(), scores)
    assert few.nnz == (scores >= threshold).sum() < whole.nnz == 240
    assert few.data.min() >= threshold


def test_metrics_in_a_file_and_rows_of_a_matrix(folder, data, tmp_path, capsys):
    more = ["--labels", folder / "labels.npz", "--metrics", tmp_path / "m.json", "-k", 3]
    slide_predict(folder / "plain", folder / "rows.npz", *more)
    found = json.loads((tmp_path / "m.json").read_text())
    assert list(found) == ["p_at_1", "p_at_3", "ndcg_at_1", "ndcg_at_3"]
    labels, _ = expected(folder, data, k=3)
    assert found["p_at_3"] == pytest.approx(precision_at_k(labels, data.test.labels, 3), abs=1e-6)
    assert capsys.readouterr().err.startswith("P@1 0.")


def test_a_file_of_answers_stays_if_the_new_one_fails(folder, tmp_path):
    rows, answers = tmp_path / "rows.txt", tmp_path / "answers.jsonl"
    shutil.copy(folder / "rows.txt", rows)
    before = rows.read_bytes()
    answers.write_text("mine")
    for source in (tmp_path / "typo.txt", folder / "bad.txt"):
        (folder / "bad.txt").write_text("1 60 80\n0 3:x\n")
        assert source.name in failure(folder / "plain", source, "-o", answers)
        assert answers.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["answers.jsonl", "rows.txt"]
    command.main([str(folder / "plain"), str(rows), "-o", str(rows), "--threads", "1"])
    assert rows.read_text().startswith("40 80\n"), "it answers the rows that were there"
    assert rows.read_bytes() != before
    command.main([str(folder / "plain"), str(folder / "rows.txt"), "-o", "/dev/null"])
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
@pytest.mark.parametrize("format", ["jsonl", "xmc", "npz"])
def test_a_full_disk_is_named(folder, format):
    said = failure(folder / "plain", folder / "rows.txt", "-o", "/dev/full", "--to", format)
    assert said.startswith("error: /dev/full")
    assert said.endswith(": No space left on device")


def test_two_programs_that_write_one_file_leave_the_whole_file_of_one(folder, tmp_path):
    """Their lines were mixed, and a file of the user by the name of the temporary one was lost."""
    (tmp_path / "same.jsonl.tmp").write_text("mine")
    begun = [tmp_path / f"begun{n}" for n in range(2)]
    code = (
        "import os, pathlib, sys, time\n"
        "from slide.predict import command\n"
        "read = command.read_rows\n"
        "def slow(*given):\n"
        "    pathlib.Path(sys.argv.pop()).touch()\n"
        "    while len([*pathlib.Path('.').glob('begun?')]) < 2: time.sleep(0.01)\n"
        "    return read(*given)\n"
        "command.read_rows = slow\n"
        "command.main(sys.argv[1:-1])\n"
    )
    words = [folder / "plain", folder / "rows.txt", "-o", "same.jsonl", "--metrics", "m.json"]
    together = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, words), "-k", str(2 + n), str(begun[n])],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(job.ROOT)},
        )
        for n in range(2)
    ]
    assert [each.wait(120) for each in together] == [0, 0]
    lines = [json.loads(line) for line in (tmp_path / "same.jsonl").read_text().splitlines()]
    assert len(lines) == 40
    assert len({len(line["labels"]) for line in lines}) == 1
    assert json.loads((tmp_path / "m.json").read_text())
    left = sorted(each.name for each in tmp_path.iterdir() if "begun" not in each.name)
    assert left == ["m.json", "same.jsonl", "same.jsonl.tmp"]
    assert (tmp_path / "same.jsonl.tmp").read_text() == "mine"


@pytest.mark.parametrize("option", ["-o", "--metrics"])
@pytest.mark.parametrize("name", ["model.json", "network.safetensors", "best/model.json", "link"])
def test_files_of_the_model_are_not_replaced(folder, tmp_path, option, name):
    """The answers took their place, and the model was gone."""
    place = tmp_path / "m"
    shutil.copytree(folder / "plain", place)
    (place / "link").symlink_to("model.json")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    said = failure(place, folder / "rows.txt", option, place / name, "--to", "jsonl")
    option = {"-o": "--output"}.get(option, option)
    assert (
        said
        == f"error: {option} {place / name} would replace a file of the model: name another one"
    )
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    for _ in range(2):  # Answers may be kept beside the model.
        command.main([str(place), str(folder / "rows.txt"), option, str(place / "a.jsonl")])
    load(place)


def test_unknown_labels_count_as_misses_and_unknown_words_are_left_out(folder, tmp_path, capsys):
    row = {"features": {"word 3": 1, "strange": 5}, "labels": ["label 1", "new", "newer"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    known = {"features": ["word 3"], "labels": []}
    (tmp_path / "b.jsonl").write_text(json.dumps(known))
    assert slide_predict(folder / "named", tmp_path / "a.jsonl", "-k", 80) == slide_predict(
        folder / "named", tmp_path / "b.jsonl", "-k", 80
    )
    assert "P@5 " in capsys.readouterr().err
    (tmp_path / "c.svm").write_text("500 4:1\n")
    slide_predict(folder / "plain", tmp_path / "c.svm", "-k", 1)
    assert capsys.readouterr().err == "P@1 0.0000  nDCG@1 0.0000\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"features": {"0": 1}}\n[]', r'a.jsonl:2: a line must be {"features"'),
        ("a.jsonl", "{", "a.jsonl:1: Expecting property name"),
        ("a.jsonl", '{"features": {"60": 1}}', "a.jsonl:1: feature 60 is not in [0, 60)"),
        ("a.jsonl", '{"features": {"x": 1}}', "a.jsonl:1: 'x' is no number; the model has no"),
        ("a.jsonl", '{"features": {"1": NaN}}', "a.jsonl:1: value nan of feature '1' is not a fi"),
        ("a.jsonl", '{"features": [1], "labels": [[2]]}', "a.jsonl:1: [2] is no number"),
        ("a.txt", "1 61 80\n1 3:1\n", "a.txt: rows of 61 features, but the model has 60"),
        ("a.npz", "", "a.npz: cannot be read as a SciPy sparse matrix"),
    ],
)
def test_rows_that_cannot_be_read(folder, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    said = failure(folder / "plain", tmp_path / name)
    assert said.startswith("error: ")
    assert message in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{m}/none", "{m}/rows.txt"], "there is no model in "),
        (["{m}/plain", "{m}/none"], "there is no file "),
        (["{m}/plain", "{m}/rows.txt", "-k", "0"], "-k must be at least 1, not 0"),
        (["{m}/plain", "-", "--format", "npz"], "npz is read from a file, not from standard"),
        (["{m}/plain", "{m}/rows.txt", "--labels", "x"], "--labels is for npz"),
        (["{m}/plain", "{m}/rows.npz", "--labels", "{m}/rows.npz"],
         "a matrix of 60 columns does not fit 80 labels"),
        (["{m}/plain", "{m}/rows.txt", "--restrict", "{m}/rows.txt"], "is no number of a label"),
        (["{m}/named", "{m}/rows.txt", "--restrict", "{m}/rows.txt"], "the model has no label "),
        (["{m}/bare", "{m}/rows.txt", "--search", "sampler"], "needs a sampler with an index"),
        (["{m}/plain", "{m}/rows.txt", "-o", "a.csv"], "a.csv: answers are jsonl, xmc, npz, which"),
        (["{m}/plain", "{m}/rows.txt", "-o", "{m}/no/a"], "/no/a: No such file or directory"),
        (["{m}/plain", "{m}/rows.txt", "-o", "{m}/x", "--metrics", "{m}/./x"],
         "/x would replace the file of --metrics: name another"),
        (["{m}/plain", "{m}/rows.npz", "--labels", "{m}/labels.npz", "-o", "{m}/labels.npz"],
         "would replace the file of --labels"),
        (["{m}/plain", "{m}/rows.txt", "--metrics", "{m}/rows.txt"], "the file of INPUT"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(folder, words, message):
    said = failure(*(word.format(m=folder) for word in words))
    assert said.startswith("error: ")
    assert message in said


def test_a_file_without_rows_is_said(folder, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_bytes(b"")
    slide_predict(folder / "plain", tmp_path / "rows.jsonl")
    assert capsys.readouterr() == ("", f"warning   no rows in {tmp_path}/rows.jsonl\n")


@pytest.mark.parametrize("format", ["xmc", "npz"])
def test_a_pipe_gets_what_a_file_gets(folder, tmp_path, monkeypatch, format):
    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *_):
            raise OSError("Illegal seek")

        tell = seek

    pipe, words = Pipe(), [folder / "plain", folder / "rows.txt", "--to", format]
    slide_predict(*words, "-o", tmp_path / "out")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
    command.main([*map(str, words), "--threads", "1"])
    found, expected = pipe.getvalue(), (tmp_path / "out").read_bytes()
    assert found == expected


def test_a_changed_byte_of_the_model_ends_it_unless_told_not_to_look(folder, tmp_path):
    shutil.copytree(folder / "plain", tmp_path / "m")
    path = tmp_path / "m" / "network.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 64]))
    said = failure(tmp_path / "m", folder / "rows.txt")
    assert said == f"error: {path} has changed since it was written: its SHA-256 is another one"
    assert len(slide_predict(tmp_path / "m", folder / "rows.txt", "--no-verify").splitlines()) == 40


def test_the_reader_of_a_pipe_may_stop_reading(folder):
    command = f"{sys.executable} -m slide.predict {folder / 'plain'} - < {folder / 'rows.txt'}"
    call = f"{command} | head -n 1"
    done = subprocess.run(call, shell=True, capture_output=True, text=True, cwd=job.ROOT)
    line = slide_predict(folder / "plain", folder / "rows.txt").splitlines()[0]
    assert done.stdout == line + "\n"
    assert "Traceback" not in done.stderr


def test_an_interrupt(folder, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "read_rows", stop)
    with pytest.raises(SystemExit) as stopped:
        slide_predict(folder / "plain", folder / "rows.txt")
    assert (stopped.value.code, capsys.readouterr().err) == (130, "interrupted\n")


# What pipes, shells and editors do to the input and output of ``slide-predict``.


BOM = b"\xef\xbb\xbf"
JSON = b'{"features": {"3": 1}, "labels": [2]}\n'


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    model_folder = tmp_path_factory.mktemp("model")
    network = SlideNetwork(50, [8], 12, FullSampler)
    Model(network).save(model_folder / "plain")
    names = [f"a\u2028label {n}" for n in range(12)]
    Model(network, label_names=names).save(model_folder / "named")
    return model_folder


def answers(model_folder, file, *more):
    said = slide_predict(model_folder / "plain", file, *more)
    return [json.loads(line)["labels"] for line in said.splitlines()]


@pytest.fixture
def standard_input(monkeypatch):
    """Puts the reading end of a pipe in the place of standard input; returns the writing end."""
    read, write = os.pipe()
    with os.fdopen(read) as file, os.fdopen(write, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", file)
        yield pipe


def test_a_first_line_in_two_pieces(model_folder, standard_input):
    standard_input.write(b"2 5")

    def write_more():
        standard_input.write(b"0 12\n2 3:1\n1 4:1\n")
        standard_input.close()

    writer = threading.Timer(0.3, write_more)
    writer.start()
    assert len(answers(model_folder, "-")) == 2
    writer.join()


@pytest.mark.parametrize("begin", [b"\r\n \n", BOM + b"\n"])
def test_what_comes_before_the_first_row(model_folder, tmp_path, begin):
    rows = tmp_path / "rows"  # Its name says nothing.
    rows.write_bytes(JSON)
    expected = answers(model_folder, rows)
    rows.write_bytes(begin + JSON)
    assert answers(model_folder, rows) == expected
    rows.write_bytes(begin + JSON + b"{")
    with pytest.raises(SystemExit, match=rf"rows:{begin.count(10) + 2}: "):
        slide_predict(model_folder / "plain", rows)
    for text in (b"1 50 12\n2 3:1\n", b"2 4:1\n"):
        rows.write_bytes(text)
        expected = answers(model_folder, rows)
        rows.write_bytes(BOM + text)
        assert answers(model_folder, rows) == expected


def test_only_some_labels_whatever_ends_a_line_elsewhere(model_folder, tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(JSON)
    some = tmp_path / "some"
    some.write_bytes(BOM + "a\u2028label 7\r\n\r\na\u2028label 9\n".encode())
    said = slide_predict(model_folder / "named", tmp_path / "rows.jsonl", "--restrict", some)
    assert set(json.loads(said)["labels"]) == {"a\u2028label 7", "a\u2028label 9"}
    some.write_bytes(BOM + b"7\r\n9")
    assert set(answers(model_folder, tmp_path / "rows.jsonl", "--restrict", some)[0]) == {7, 9}
    some.write_bytes(b"\xff\n")
    with pytest.raises(SystemExit, match=r"error: .*some is no text in UTF-8: "):
        answers(model_folder, tmp_path / "rows.jsonl", "--restrict", some)


def test_answers_take_no_more_memory_than_there_are_labels(model_folder, tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_bytes(JSON)
    (tmp_path / "some").write_text("7\n9\n")
    asked, whole = [], Model.predict_ids
    monkeypatch.setattr(
        Model, "predict_ids", lambda self, x, k, *more: asked.append(k) or whole(self, x, k, *more)
    )
    found = [answers(model_folder, tmp_path / "rows.jsonl", "-k", k) for k in (12, 10**15)]
    assert found[0] == found[1]
    assert sorted(found[0][0]) == list(range(12))
    more = "--restrict", tmp_path / "some", "--metrics", tmp_path / "metrics.json"
    assert set(answers(model_folder, tmp_path / "rows.jsonl", "-k", 10**15, *more)[0]) == {7, 9}
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


def test_text_between_what_other_commands_write(model_folder, tmp_path, standard_output):
    (tmp_path / "rows.txt").write_text("2 50 12\n1 3:1\n0 2:1\n")
    words = [str(model_folder / "plain"), str(tmp_path / "rows.txt"), "--threads", "1", "-k", "1"]
    with standard_output("w") as file:
        file.write("a line before\n")
        file.flush()
        command.main([*words, "--to", "xmc"])
        file.write("a line after\n")
    before, header, *rows, after = (tmp_path / "out").read_text().splitlines()
    assert (before, header.split(), after) == ("a line before", ["2", "12"], "a line after")
    assert len(rows) == 2


def test_a_matrix_is_alone_in_its_file(model_folder, tmp_path, standard_output):
    """SciPy finds no matrix behind something else, and an archive is written out of order."""
    (tmp_path / "rows.jsonl").write_bytes(JSON)
    words = [str(model_folder / "plain"), str(tmp_path / "rows.jsonl"), "--threads", "1"]
    for error in (nullcontext(), pytest.raises(SystemExit, match="npz must be alone in a file")):
        with standard_output("a"), error:
            command.main([*words, "--to", "npz"])
        assert scipy.sparse.load_npz(tmp_path / "out").shape == (1, 12)
