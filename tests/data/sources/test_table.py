"""Tables of texts, numbers and labels, in all forms that people have them."""

import csv
import html
import io
import json
import math
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import datafiles, job
from helpers.damage import REPEAT, SEED
from helpers.matrices import to_dense
from helpers.naive_rows import to_lists
from helpers.serving import serving_model
from helpers.splits import assert_same_rows
from sklearn.feature_extraction.text import TfidfVectorizer

import slide
from slide.data import documents, errors, table, transform, xmc
from slide.data.columns import Columns, labels_of, likely_separator, number_of, understood
from slide.data.describe import describe
from slide.data.errors import DataError
from slide.data.table_files import read_lines, read_table
from slide.predict.command import main

WORDS = ("red", "old", "fast", "cheap")
ROWS = [
    {
        "id": f"r{n}",
        "title": f"a {WORDS[n % 4]} car; it is, {WORDS[n // 2 % 4]}",
        "body": "" if n % 9 == 0 else f'the "{WORDS[n // 3 % 4]}" one\nélan',
        "price": None if n % 7 == 0 else 10.0 * (n % 5),
        "tags": sorted({WORDS[n % 4], WORDS[n // 2 % 4]}),
        "part": "test" if n % 5 == 0 else "train",
    }
    for n in range(60)
]


def flat(rows=ROWS, separator=";"):
    return [{**row, "tags": separator.join(row["tags"])} for row in rows]


def write_csv(path, rows, delimiter=",", encoding="utf-8"):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(text.getvalue().encode(encoding))
    return path


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return path


def write_list(path, rows):
    path.write_text(json.dumps(rows, indent=1))
    return path


def write_parquet(path, rows):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), path)
    return path


def frame(path, rows):
    return pytest.importorskip("pandas").DataFrame(rows)


def hugging_face(path, rows, kind=None):
    """Labels are numbers of names; ``kind`` is what cells are given as, such as numpy arrays."""
    pytest.importorskip("datasets.arrow_dataset")  # The checkout has a folder of that name.
    hub = pytest.importorskip("datasets")
    found = hub.Dataset.from_list([{**row, "tags": list(row["tags"])} for row in rows])
    names = hub.ClassLabel(names=list(WORDS))
    numbered = [[WORDS.index(each) for each in row["tags"]] for row in rows]
    found = found.remove_columns("tags").add_column("tags", numbered)
    return found.cast_column("tags", hub.Sequence(names)).with_format(kind)


FORMS = {
    "csv": lambda path, rows: write_csv(path, flat(rows)),
    "mark": lambda path, rows: write_csv(path, flat(rows), encoding="utf-8-sig"),
    "tabs": lambda path, rows: write_csv(path, flat(rows, "|"), "\t"),
    "semicolons": lambda path, rows: write_csv(path, flat(rows, ","), ";"),
    "lists in csv": write_csv,
    "lines": write_lines,
    "list": write_list,
    "parquet": write_parquet,
    "dicts": lambda path, rows: rows,
    "frame": frame,
    "polars": lambda path, rows: pytest.importorskip("polars").DataFrame(rows),
    "pyarrow": lambda path, rows: pytest.importorskip("pyarrow").Table.from_pylist(rows),
    "hugging face": hugging_face,
    "hugging face, numpy": lambda path, rows: hugging_face(path, rows, "numpy"),
}
OPTIONS = {"split": "part", "min_rows": 1}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_are_the_same_rows(form, tmp_path):
    expected = table(path=ROWS, **OPTIONS)
    source = FORMS[form](tmp_path / "rows", ROWS)
    for _ in range(2):  # Read, and from the cache.
        data = table(path=source, cache=tmp_path / "c", **OPTIONS)
        assert list(data.label_names) == sorted(WORDS)
        assert list(data.feature_names) == list(expected.feature_names)
        assert_same_rows(data, expected)
        assert data.columns.text == ("title", "body")
        assert data.columns.numbers == ("price",)


def test_features_are_words_and_bins_of_numbers():
    data = table(path=ROWS, **OPTIONS)
    train = [row for row in ROWS if row["part"] == "train"]
    test = [row for row in ROWS if row["part"] == "test"]
    peer = TfidfVectorizer(sublinear_tf=True)
    texts = [[f"{row['title']}\n{row['body']}" for row in part] for part in (train, test)]
    words = peer.fit_transform(texts[0]), peer.transform(texts[1])
    width = words[0].shape[1]
    for split, part, own in zip((data.train, data.test), (train, test), words, strict=True):
        dense = to_dense(split.features, split.num_features).numpy()
        np.testing.assert_allclose(dense[:, :width], own.toarray(), rtol=1e-6)
        given = np.array([[np.nan if row["price"] is None else row["price"]] for row in part])
        assert data.columns is not None
        bins = data.columns.number_features(given).toarray()
        np.testing.assert_array_equal(dense[:, width:], bins)
        np.testing.assert_array_equal(bins.any(1), ~np.isnan(given[:, 0]))


def test_a_share_is_set_aside_and_said(tmp_path):
    path = write_csv(tmp_path / "rows.csv", flat())
    data, again = (table(path=path, cache=tmp_path / f"c{n}", min_rows=1) for n in range(2))
    assert (len(data.train), len(data.test)) == (54, 6)
    assert_same_rows(data, again)
    told = describe(transform(data, min_label_count=2))
    for said in (
        "tags (separated by ';')",
        "title, body, part",
        "price (in bins by quantiles)",
        "left out: id",
        "no test file: 6 of 60 rows, drawn with seed 0, are set aside as test rows",
    ):
        assert said in told
    other = table(path=path, seed=1, min_rows=1)
    assert other.train.features.values.tolist() != data.train.features.values.tolist()


def test_a_file_of_test_rows_and_numbers_alone(tmp_path):
    both = [write_csv(tmp_path / f"{n}.csv", flat(part)) for n, part in enumerate((ROWS, ROWS[:9]))]
    data = table(path=both[0], test_path=both[1], cache=tmp_path, min_rows=1)
    assert (len(data.train), len(data.test)) == (60, 9)
    assert "test file" not in describe(data)
    rows = [{"a": n, "b": 7, "label": "odd" if n % 2 else "even"} for n in range(20)]
    data = table(path=rows, test_share=0.5)
    assert data.vectorizer is None
    first, *_, last = list(data.feature_names)
    assert (first[:15], last) == ("column:a up to ", "column:b any")


@pytest.mark.parametrize(
    ("name", "message"), [("", "is a folder, not a file"), ("rows.csv", "rows.csv is missing")]
)
def test_what_is_no_file(name, message, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{message}. dataset.path and dataset.test_path"):
        table(path=tmp_path / name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "tag"}, "there is no column 'tag'; the columns are id, title, body, price, ta"),
        ({"numbers": ["title"]}, r"row 0: the column title must hold numbers, not 'a red car"),
        ({"text": [], "numbers": []}, "no column of texts or numbers is left"),
        ({"test_share": 1.5}, "test_share must be in"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"min_rows": 99}, "no word is in 99 training rows"),
        ({"split": "part", "test_value": "train", "path": ROWS[1:5]}, "the table: there are no ro"),
        ({"path": [{"a": 1, "b": 2}]}, "labels must name the column of labels, one of a, b"),
        ({"path": None}, "path must name the file of the table"),
        ({"encoding": "zlib"}, "encoding must name an encoding of texts, such as cp1252 or"),
        ({"encoding": "nosuch"}, "encoding must name an encoding of texts.* not .nosuch."),
        ({"separator": ""}, "separator must be auto, null or text that parts labels, not empty"),
        ({"test_path": [{"title": "a red car"}]}, "no test row has the column body, part, pri"),
        ({"path": [{"a": n, "tags": ""} for n in range(9)]}, "the table: no row has a label in"),
    ],
)
def test_arguments_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        table(**{"path": ROWS, **options})


class Query:
    """As a frame of polars that is not computed yet."""

    def collect(self):
        raise AssertionError


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Query(), r"a query of polars that was not run yet: give its \.collect\(\)"),
        ({"train": ROWS, "test": ROWS}, "not a dict of train, test: of several tables give one as"),
        (["a red car"], "a row of a table must be a dict of cells, not 'a red car'; a frame of"),
    ],
)
def test_what_is_no_table(source, message):
    with pytest.raises(TypeError, match=message):
        table(path=source)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text,label\na,b,c\n", ":2: 3 cells, but the first line has 2 columns"),
        (b'text,label\n"a,b\n', ":[23]: unexpected end of data"),
        (b"text,text\na,b\n", ":1: two columns are called 'text'"),
        ("text,label\né,b\n".encode("latin-1"), ":2: byte 0xe9 is no utf-8: dataset.encoding"),
        (b'{"text": "a", "label": "b"}\n{"text": \n', ":2: Expecting value"),
        (b'{"text": "a", "label": "b"}\n3\n', ":2: a line must be an object"),
        (b'{"text": "a", "label": "b", "text": "c"}\n', ":1: 'text' stands twice in an object"),
        (b'{"text": "a", "label": {"b": 1}}\n', ":1: {'b': 1} is no name of a label"),
        (b'{"text": "a\\ud800", "label": "b"}\n', ":1: .* can't encode"),
        (b"[1]", "item 0 must be an object"),
        (b"PK\x03\x04", " is a zip archive: save a workbook of Excel as CSV"),
        (b"text,label\n", "the table has no rows"),
    ],
)
def test_malformed_files_are_named(content, message, tmp_path):
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        table(path=tmp_path / "rows", labels="label", text=["text"], min_rows=1)
    assert str(caught.value).startswith(str(tmp_path / "rows")) or "the table" in message


def test_a_name_that_stands_twice_among_very_many_is_found_at_once():
    """It took the square of their number."""
    names = [*map(str, range(30_000)), "29999"]
    with pytest.raises(DataError, match=":1: two columns are called '29999'"):
        next(read_lines([",".join(names).encode()], "a.csv"))
    line = json.dumps(dict.fromkeys(names[:-1])).replace("}", ', "29999": 0}').encode()
    with pytest.raises(DataError, match=":1: '29999' stands twice in an object"):
        next(read_lines([line], "a.jsonl"))


def test_very_many_columns_take_time_in_proportion_and_a_short_sentence():
    """Each was looked for in a list of the others, and all of them were named."""
    cells = {f"{kind}{number}": kind for number in range(5000) for kind in "1a"}
    cells |= {f"{number}_id": "1" for number in range(5000)}
    with pytest.raises(ValueError, match=r"one of 10, a0, 11, .* and 14,900 more$") as caught:
        understood([cells])
    assert len(str(caught.value)) < 1000
    columns, count = understood([{**cells, "label": "x"}])
    assert (len(columns.numbers), len(columns.text), count) == (5000, 5000, 1)
    assert re.fullmatch(r"left out: 0_id, .* and 4,900 more", columns.notes[0])
    assert columns.found_in(cells) is cells


def test_a_quotation_without_an_end_is_a_line_that_is_too_long(monkeypatch):
    monkeypatch.setattr(errors, "LONGEST_LINE", 1000)
    lines = [b"text,label\n", *[b'"a\nb",c\n'] * 900]
    assert len(list(read_lines(lines, "a.csv"))) == 900  # In all they may be more.
    rows = read_lines([b'text,label\n"', *[b"a\n"] * 900], "a.csv")
    with pytest.raises(DataError, match=r"a\.csv: a line has more than 1,000 bytes"):
        next(rows)


def test_characters_that_hold_the_byte_of_a_line_end():
    """In UTF-16, of many lines that are none; each was looked at again with all before it."""
    text = "text,label\n" + "\u0a0a" * 60_000 + ",a\n"
    pieces = text.encode("utf-16-le").splitlines(keepends=True)
    ((_, row),) = read_lines(pieces, "a.csv", "utf-16-le")
    assert row == {"text": "\u0a0a" * 60_000, "label": "a"}


@pytest.mark.parametrize("cell", [1, "a text"])
def test_names_of_columns_can_be_written(cell):
    rows = [{"\udfff": cell, "label": "a"}, {"\udfff": cell, "label": "b"}]
    with pytest.raises(ValueError, match=r"names of columns must be text in Unicode; '\\udfff'"):
        table(path=rows)


def test_parquet_that_lies_about_its_lengths(tmp_path):
    """A file that is cut, whose footer is elsewhere, and bytes of the footer that are others."""
    path = write_parquet(tmp_path / "rows", ROWS)
    whole = path.read_bytes()
    ends = [size.to_bytes(4, "little") + b"PAR1" for size in (0, len(whole), 2**31, 2**32 - 1)]
    rng, footer = random.Random(SEED), len(whole) - int.from_bytes(whole[-8:-4], "little")
    edits = [whole[:n] for n in (4, 8, len(whole) // 2, -1)] + [whole[:-8] + end for end in ends]
    edits.append(whole.replace(b"title", b"titl\xff"))
    for _ in range(max(20, int(150 * REPEAT))):
        at = rng.randrange(footer - 8, len(whole))
        edits.append(whole[:at] + rng.randbytes(1) + whole[at + 1 :])
    errors = []
    for edited in edits:
        path.write_bytes(edited)
        try:
            table(path=path, **OPTIONS)  # A name or a type that another file could have.
        except ValueError as error:
            errors.append(error)
    assert len(errors) > len(edits) / 4
    assert not [said for said in map(str, errors) if "\n" in said]
    assert not [error for error in errors if isinstance(error, UnicodeDecodeError)]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le"])
def test_other_encodings(tmp_path, encoding):
    path = write_csv(tmp_path / "rows.csv", flat(), encoding=encoding)
    found, expected = table(path=path, encoding=encoding, **OPTIONS), table(path=ROWS, **OPTIONS)
    assert "élan" in list(found.vectorizer.terms)
    assert_same_rows(found, expected)


def test_dates_of_parquet_that_python_does_not_have(tmp_path):
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    dates = arrow.array([2**62] * 20, arrow.timestamp("ms"))
    parquet.write_table(arrow.table({"date": dates, "label": ["a", "b"] * 10}), tmp_path / "a")
    with pytest.raises(DataError, match="a: Python int too large"):
        table(path=tmp_path / "a")


@pytest.mark.parametrize("size", [100_000, 1000])
def test_parquet_that_expands(tmp_path, monkeypatch, size):
    """A text that stands once in the file, and in each row a thousand times if it is short."""
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    count, times = 5000, 100_000 // size
    texts = arrow.DictionaryArray.from_arrays(arrow.array([0] * count * times), ["a" * size])
    ends = arrow.array(range(0, count * times + 1, times), arrow.int32())
    lists = arrow.ListArray.from_arrays(ends, texts)
    path = tmp_path / "rows"
    parquet.write_table(arrow.table({"text": lists}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    rows, before = read_table(path), arrow.total_allocated_bytes()
    assert next(rows) == (f"{path}: row 0", {"text": ["a" * size] * times})
    assert arrow.total_allocated_bytes() - before < 100_000_000
    monkeypatch.setattr("slide.data.table_files.LONGEST_LINE", 99_999)
    with pytest.raises(DataError, match="rows: row 0 has more than 99,999 bytes"):
        next(read_table(path))


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "rows").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="rows is Parquet, which pyarrow reads: pip install"):
        table(path=tmp_path / "rows")


@pytest.mark.parametrize(
    ("cell", "separator", "names"),
    [
        ("a; b;;a", ";", ["a", "b"]),
        ("a; b", None, ["a; b"]),
        ("['a', 'b, c']", None, ["a", "b, c"]),
        ('["a"]', ",", ["a"]),
        ("[draft]", None, ["[draft]"]),
        (3.0, None, ["3"]),
        (np.array(["x", "y"]), None, ["x", "y"]),
        ((1, None, float("nan")), None, ["1"]),
        (" ", None, []),
        (None, ";", []),
    ],
)
def test_labels_of_a_cell(cell, separator, names):
    assert labels_of(cell, separator) == names


def test_separators_are_guessed_where_parts_repeat():
    assert likely_separator(["a,b", "b,c", "c,a", "a,b,c"]) == ","
    assert likely_separator(["Paris, France", "Rome, Italy", "Bern, Switzerland"]) is None
    assert likely_separator(["a", "b", "a,b"]) is None
    numbers = [number_of(each) for each in (" 3e2", "x", "inf", True, 10**400)]
    assert numbers == [300, None, math.inf, 1, math.inf]


def answered_as_in_python(model):
    """Cells, and a text in place of all columns of texts, get the same answers over HTTP."""
    cells = {"title": "a red car", "body": None, "price": 20}
    rows = [cells, {"text": "a red car", "price": 20.0}, {"text": "a red car"}]
    labels, scores = model.predict(rows, k=2)
    assert labels[0].tolist() == labels[1].tolist()
    with serving_model(model) as client:
        found = client.post(json={"rows": rows, "k": 2}).json()["answers"]
        assert [each["labels"] for each in found] == labels.tolist()
        np.testing.assert_allclose([each["scores"] for each in found], scores, rtol=1e-5)
        for wrong, said in (
            (
                {"prise": 1},
                "rows[0].prise: there is no such key; a row has indices, values, "
                "features, text, title, body, price",
            ),
            (
                "a red car",
                'rows[0]: a row is an object with the columns title, body, price, not "a red car"',
            ),
            ({"price": "dear"}, "rows[0].price: Input should be a valid number"),
            (
                {**cells, "indices": [1]},
                "row 0: give it either indices (and values), or features, or a text and columns",
            ),
        ):
            assert client.post(json={"rows": [wrong]}).json() == {"error": said}
        assert '"body": "a text", "price": ' in html.unescape(client.get("/docs").text)


def test_from_a_table_to_answers(tmp_path, capsys):
    """A run, then the same table as CSV, JSON and Parquet through `slide-predict`."""
    path = write_csv(tmp_path / "rows.csv", flat(), encoding="utf-8-sig")
    words = [f"dataset.path={path}", f"dataset.cache={tmp_path}/c", "dataset.min_rows=1"]
    sizes = [word for word in job.tiny(tmp_path) if not word.startswith("dataset.")]
    job.main("dataset=table", *words, "dataset.split=part", *sizes, "report=true")
    report = (tmp_path / "run" / "report.html").read_text()
    # A row of a CSV file is named by its last line: texts may have several.
    assert re.search(r"<small>rows\.csv:\d+ \(id r\d*[05]\): ", report)
    answers = []
    sources = {"a.jsonl": path, "b.jsonl": write_lines(tmp_path / "rows.jsonl", ROWS)}
    if "pyarrow" in sys.modules:
        sources["c.jsonl"] = write_parquet(tmp_path / "rows.parquet", ROWS)
    for name, source in sources.items():
        main([str(tmp_path / "run"), str(source), "-k", "2", "-o", str(tmp_path / name)])
        answers.append((tmp_path / name).read_text())
        assert "P@1" in capsys.readouterr().err
    assert len(set(answers)) == 1
    model = slide.load(tmp_path / "run")
    assert list(model.feature_names)[-1].startswith("column:price above ")
    assert Columns.restored(model.settings["columns"]).names == ("title", "body", "price")
    found = [json.loads(line)["labels"] for line in answers[0].splitlines()]
    assert len(found) == len(ROWS)
    write_lines(tmp_path / "texts.jsonl", [{"text": "an old car"}, {"other": 1}])
    reads = "the model reads the columns title, body, price; "
    with pytest.raises(SystemExit, match=rf"texts\.jsonl:3: {reads}.* are not among other"):
        main([str(tmp_path / "run"), str(tmp_path / "texts.jsonl"), "-o", str(tmp_path / "x")])
    for name, write in {"near.csv": write_csv, "near.jsonl": write_lines}.items():
        write(tmp_path / name, [{"title": "a red car", "body": "", "prise": 1}])
        said = r"price is not among .*\(for prise did you mean price"
        with pytest.raises(SystemExit, match=said):
            main([str(tmp_path / "run"), str(tmp_path / name), "-o", str(tmp_path / "x")])
    answered_as_in_python(model)
    with pytest.raises(ValueError, match="a model of a table with numbers takes no new features"):
        model.add_features(["new"])


@pytest.mark.parametrize("format", ["xmc", "svmlight", "documents"])
def test_byte_order_marks_are_no_content(format, tmp_path):
    lines = {"xmc": "1 3 4\n1,3 0:0.5 2:1\n", "svmlight": "1,3 1:0.5 3:1\n"}
    lines["documents"] = '{"text": "one two", "labels": ["b"]}\n'
    for part in ("train", "test"):
        suffix = "jsonl" if format == "documents" else "txt"
        (tmp_path / f"{part}.{suffix}").write_text(lines[format], encoding="utf-8-sig")
    options = {"name": "m", "root": tmp_path, "cache": tmp_path / "c"}
    if format == "documents":
        assert documents(**options, min_rows=1).num_features == 2
    else:
        assert xmc(**options, format=format).train.labels.indices.tolist() == [1, 3]


def test_a_path_that_the_locale_lacks_is_named(tmp_path):
    code = (
        "from slide.data import table, xmc\n"
        "from slide.predict.rows import read_rows\n"
        "calls = [lambda p: xmc(name='x', root=p, cache='c'), lambda p: table(path=p)]\n"
        "for call in (*calls, lambda p: next(read_rows(p, None))):\n"
        "    try: call('/tmp/\\u6f22')\n"
        "    except ValueError as error: print(error)\n"
    )
    bare = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    options = {"cwd": job.ROOT, "capture_output": True, "text": True, "check": True}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **bare}, **options)
    said = r"'/tmp/\u6f22' has characters that ascii lacks, the encoding of names of files in this"
    assert done.stdout.count(said) == 3


@pytest.mark.parametrize("format", ["xmc", "svmlight", "npz"])
def test_without_a_test_file_rows_are_set_aside(format, tmp_path, capsys):
    whole = job.make_data(tmp_path / "made", train_samples=60)
    labels = ["labels", "none"] if format == "npz" else [None, None]
    config = {"format": format, "train_file": "train", "train_labels_file": labels[0]}
    datafiles.write_rows(tmp_path, whole, {**config, "test_file": "x", "test_labels_file": "y"})
    config |= {"name": "x", "root": tmp_path, "cache": tmp_path / "c"}
    one, other = (xmc(**config, test_file=None) for _ in range(2))
    assert "no test file: " in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=r"none is missing. dataset.test_file=null sets"):
        xmc(**config, test_file="none", test_labels_file=labels[1])
    assert len(one.train) + len(one.test) == 60
    assert 0 < len(one.test) < 20
    assert_same_rows(one, other)
    rows = [str(each) for s in (one.train, one.test) for each in to_lists(s.features, s.labels)]
    assert sorted(rows) == sorted(map(str, to_lists(whole.train.features, whole.train.labels)))
