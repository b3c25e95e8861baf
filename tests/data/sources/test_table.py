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
from slide.data.cells import labels_of, likely_separator, number_of
from slide.data.columns import Columns, understood
from slide.data.dataset import draw_rows
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
        (
            {"path": [{"a": 1, "b": 2}]},
            "labels must name the column of labels, or, .* the columns are a, b",
        ),
        ({"path": None}, "path must name the file of the table"),
        ({"encoding": None}, "encoding must name an encoding of texts.* not None"),
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
        (b"[1]", "item 0: an item must be an object"),
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
    with pytest.raises(ValueError, match=r"columns are 10, a0, 11, .* and 14,900 more$") as caught:
        understood([("row 0", cells)])
    assert len(str(caught.value)) < 1000
    columns, count = understood([("row 0", {**cells, "label": "x"})])
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


def test_a_lost_mark_of_the_byte_order_is_a_sentence(tmp_path):
    (tmp_path / "rows").write_bytes("text,label\na,b\n".encode("utf-16-le"))
    with pytest.raises(DataError, match=r"rows:1: UTF-16 stream does not start with BOM: .*-le$"):
        table(path=tmp_path / "rows", encoding="utf-16")


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
        ("['a' 'b c']", None, ["a", "b c"]),
        ("['a'\n 'b']", ",", ["a", "b"]),
        ("array(['a', 'b'],\n      dtype='<U1')", None, ["a", "b"]),
        ("[np.str_('a'), np.int64(3)]", None, ["a", "3"]),
        ("('a', 'b')", ",", ["a", "b"]),
        ("('a',)", None, ["a"]),
        ("{'a', 'b'}", None, ["a", "b"]),
        ("frozenset({'a'})", None, ["a"]),
        ("set()", None, []),
        ("Index(['a', 'b'], dtype='object')", None, ["a", "b"]),
        ('c("a", "b")', None, ["a", "b"]),
        ("{a,b}", None, ["a", "b"]),
        ('{a,"b c",NULL}', None, ["a", "b c"]),
        ("{a}", None, ["a"]),
        ("[a, b]", None, ["a", "b"]),
        ("[1 2. nan]", None, ["1", "2"]),
        ("(1, 2)", None, ["1", "2"]),
        ("['a', nan]", None, ["a"]),
        ('["it\'s" None]', None, ["it's"]),
        ("['\\u00e9']", None, ["é"]),
        ("(draft)", None, ["(draft)"]),
        ("(Paris, France)", None, ["(Paris, France)"]),
        ("('a') or ('b')", None, ["('a') or ('b')"]),
        ("[a] and [b]", None, ["[a] and [b]"]),
        ("f(a)", None, ["f(a)"]),
        ({"b", "a"}, None, ["a", "b"]),
        ({"b": 1, "a": 2}.keys(), None, ["a", "b"]),
        (3.0, None, ["3"]),
        (np.array(["x", "y"]), None, ["x", "y"]),
        ((1, None, float("nan")), None, ["1"]),
        (" ", None, []),
        (None, ";", []),
    ],
)
def test_labels_of_a_cell(cell, separator, names):
    assert labels_of(cell, separator) == names


CUT = "a list of labels is cut, .* write array.tolist"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("['a' 'b' ... 'z']", CUT),
        ("[1 2 ... 9]", CUT),
        ("['a', 'b", "the list of labels .* cannot be read: write"),
        ("['a''b']", "the list of labels .* cannot be read: write"),
        ("['a', 'b'] and ['c']", "the list of labels .* cannot be read: write"),
        ("['a', ['b']]", r"\['b'\] is no name of a label"),
        ("[('a', 1)]", r"\('a', 1\) is no name of a label"),
        ("{'a': 1}", "{'a': 1} is no name of a label"),
        ("[b'a']", "b'a' is no name of a label"),
        ({"a": 1}, "{'a': 1} is no name of a label"),
    ],
)
@pytest.mark.parametrize("separator", [None, ","])
def test_lists_of_labels_that_cannot_be_read(cell, separator, message, tmp_path):
    """Each was one label, or labels that nobody has written."""
    with pytest.raises(ValueError, match=message):
        labels_of(cell, separator)
    rows = [{"n": n % 2, "label": cell if n == 7 else "a"} for n in range(9)]
    with pytest.raises(DataError, match=f"row 7: {message}"):
        table(path=rows, separator=separator)
    if isinstance(cell, str):
        write_csv(tmp_path / "rows.csv", rows)
        with pytest.raises(DataError, match=rf"rows\.csv:9: {message}"):
            table(path=tmp_path / "rows.csv", separator=separator)


@pytest.mark.parametrize("form", ["['{0}' 'x']", "('{0}', 'x')", "{{{0},x}}", "['{0}'\n 'x']"])
def test_a_column_of_lists_as_other_programs_write_them(form, tmp_path):
    """Their labels were one, or the whole cell was."""
    rows = [{"n": n % 3, "labels": form.format(WORDS[n % 4])} for n in range(40)]
    data = table(path=write_csv(tmp_path / "rows.csv", rows))
    assert list(data.label_names) == [*sorted(WORDS), "x"]
    assert set(np.diff(data.train.labels.indptr)) == {2}


def test_lists_of_one_word_among_lists_of_several():
    cells = ["[a]", "[b]", "[a, b]", "[c]"] * 3
    data = table(path=[{"n": n % 2, "label": cell} for n, cell in enumerate(cells)])
    assert list(data.label_names) == ["a", "b", "c"]
    data = table(path=[{"n": n % 2, "label": cell} for n, cell in enumerate([*cells, "d"])])
    assert list(data.label_names) == ["[a]", "[b]", "[c]", "a", "b", "d"]


@pytest.mark.parametrize("named", [None, "user"])
@pytest.mark.parametrize("kind", ["file", "pyarrow"])
def test_the_index_of_a_frame_is_no_feature(kind, named, tmp_path, capsys):
    """Sorted by label, it told the label; and rows to come were refused without it."""
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    rows = sorted(flat(), key=lambda row: row["tags"])
    index = pandas.Index(range(100, 160), name=named)
    frame = pandas.DataFrame(rows, index=index).sample(frac=1, random_state=0)
    if kind == "file":
        frame.to_parquet(source := tmp_path / "rows.parquet")
    else:
        source = arrow.Table.from_pandas(frame)
    column = named or "__index_level_0__"
    data = table(path=source, cache=tmp_path / "c", **OPTIONS)
    expected = table(path=frame.reset_index(drop=True), **OPTIONS)
    assert_same_rows(data, expected)
    assert data.columns is not None
    assert data.columns.names == ("title", "body", "price")
    assert f"left out, as the index of a frame: {column}" in capsys.readouterr().err
    assert data.test_row_names is not None
    assert re.search(rf"row \d+ \({column} 1\d\d, id r\d+\)$", data.test_row_names[0])
    asked = table(path=source, numbers=[column, "price"], **OPTIONS).columns
    assert asked is not None
    assert asked.numbers == (column, "price")
    model = slide.Model(
        slide.SlideNetwork(data.num_features, [4], data.num_labels, slide.FullSampler),
        vectorizer=data.vectorizer,
        feature_names=data.feature_names,
        settings={"columns": data.columns.settings()},
    )
    assert model.predict(rows[:3], k=1).labels.shape == (3, 1)


def test_names_of_the_index_are_known_without_notes_of_pandas():
    rows = [{"__index_level_0__": n, "n": n % 3, "label": "ab"[n % 2]} for n in range(9)]
    columns = table(path=rows).columns
    assert columns is not None
    assert columns.numbers == ("n",)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([(n % 3, n % 2, "a") for n in range(9)], columns=["n", "n", "label"])
    with pytest.raises(ValueError, match="two columns are called 'n'"):  # The last one was read.
        table(path=frame)


def test_notes_of_pandas_that_are_none(tmp_path):
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    rows = arrow.Table.from_pylist([{"n": n % 3, "label": "ab"[n % 2]} for n in range(9)])
    for notes in (b"", b"{", b"[" * 9999, b"[1]", b'{"index_columns": [{"a": 1}, 3, "n", "x"]}'):
        parquet.write_table(rows.replace_schema_metadata({b"pandas": notes}), tmp_path / "a")
        if notes.endswith(b"}"):
            with pytest.raises(ValueError, match="no column of texts or numbers is left"):
                table(path=tmp_path / "a")
        else:
            assert table(path=tmp_path / "a").columns.numbers == ("n",)


def prices(cell, text=True):
    """A column of prices in which one is ``cell``."""
    rows = [{"price": f"{n * 7 % 50}.5", "label": "ab"[n % 2]} for n in range(40)]
    rows[3]["price"] = cell
    return [{**row, "text": "a red car"} for row in rows] if text else rows


NUMBERS = {"3,5": 3.5, "1,234": 1234, "1,234.5": 1234.5, "1 234": 1234, "12 %": 0.12}
NUMBERS |= dict.fromkeys(["n/a", "-", "?", "#N/A"], math.nan)


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize(("cell", "number"), NUMBERS.items())
def test_usual_forms_of_numbers_are_no_words(cell, number, text, capsys):
    """One of them made the column one of texts, without a line."""
    data = table(path=prices(cell, text), min_rows=1)
    columns = data.columns
    assert columns is not None
    assert (columns.numbers, columns.text) == (("price",), ("text",) if text else ())
    meant = "no number" if math.isnan(number) else f"{number:.10g}"
    said = f"price: {cell!r} (row 3) is {meant} (1 such cell)"
    assert capsys.readouterr().err.count(said) == 1
    row = columns.row({"price": cell, "label": "a", "text": ""})
    np.testing.assert_equal(row.numbers, [number])


def test_the_decimal_sign_is_that_of_the_column(tmp_path):
    """Of 1,234 alone nobody knows it; a model keeps what its column has said."""
    rows = [{**row, "price": row["price"].replace(".", ",")} for row in prices("1.234")]
    path = write_csv(tmp_path / "rows.csv", rows)
    for _ in range(2):  # Read, and from the cache.
        data = table(path=path, cache=tmp_path / "c", min_rows=1)
        assert data.columns is not None
        columns = Columns.restored(json.loads(json.dumps(data.columns.settings())))
        assert columns == data.columns
        assert columns.commas == ("price",)
        for cell, number in (("1.234", 1234), ("1,234", 1.234), ("2.5", 2.5), (7, 7)):
            assert columns.row({"price": cell, "text": ""}).numbers == [number]
    assert "with decimal commas: price" in describe(data)
    earlier = {n: v for n, v in columns.settings().items() if n not in ("commas", "row_names")}
    assert Columns.restored(earlier).commas == ()


def test_the_cell_that_makes_numbers_a_text_is_named(tmp_path, capsys):
    path = write_csv(tmp_path / "rows.csv", prices("cheap"))
    data = table(path=path, min_rows=1)
    assert data.columns is not None
    assert data.columns.text == ("price", "text")
    said = (
        "price is text, not numbers: rows.csv:5 has 'cheap', no number (1 such cell, 39 others; "
        "dataset.numbers=[price] makes it an error)"
    )
    assert said in capsys.readouterr().err
    assert said in describe(data)
    with pytest.raises(
        DataError, match=r"rows\.csv:5: the column price must hold numbers, not 'che"
    ):
        table(path=path, numbers="price", min_rows=1)
    rows = [{"size": "SML"[n % 3], "label": "ab"[n % 2]} for n in range(9)]
    with pytest.raises(ValueError, match="no training row has a word of two characters or more"):
        table(path=rows, min_rows=1)
    assert "texts     size" in capsys.readouterr().err
    # Without a number, words for none are words.
    words = table(path=[{"grade": "na", "label": "ab"[n % 2]} for n in range(9)], min_rows=1)
    assert list(words.feature_names) == ["na"]


@pytest.mark.parametrize(
    ("cell", "sign", "number"),
    [
        ("1.234", ",", 1234),
        ("0.125", ",", 0.125),
        ("1.234.567,5", ".", 1234567.5),
        ("\N{MINUS SIGN}5", ".", -5),
        ("1'234.5", ".", 1234.5),
        ("-1,5e3", ".", -1500),
        (",5", ".", 0.5),
        ("1_000", ".", 1000),
        ("1,23,456", ".", None),
        ("1.2.3", ",", None),
        ("12 red", ".", None),
        ("9" * 500, ",", math.inf),
        ("1," * 500, ".", None),
    ],
)
def test_numbers_of_a_cell(cell, sign, number):
    assert number_of(cell, sign == ",") == number


@pytest.mark.parametrize("form", [list, lambda rows: frame(None, rows)])
def test_names_of_columns_that_are_numbers_are_read_as_texts(form):
    rows = [{0: f"a {WORDS[n % 4]} car", 1: "ab"[n % 2]} for n in range(9)]
    data = table(path=form(rows), labels=1, text=[0])
    assert (data.columns.labels, data.columns.text) == ("1", ("0",))
    network = slide.SlideNetwork(data.num_features, [2], data.num_labels, slide.FullSampler)
    settings = {"columns": data.columns.settings()}
    model = slide.Model(network, vectorizer=data.vectorizer, settings=settings)
    assert model.predict(form(rows), 1)[0].shape == (9, 1)
    for wrong in ({"labels": 1.5}, {"labels": [1, None]}, {"split": True}, {"text": {}}):
        with pytest.raises(ValueError, match=r"must name a column, or be a list of names, not"):
            table(path=form(rows), **wrong)
    with pytest.raises(ValueError, match="two columns are called '1'"):
        table(path=[{1: "a", "1": "b"}])


def test_columns_of_zeros_and_ones_are_labels(tmp_path):
    marks = ("0", "1"), ("False", "TRUE"), (0, 1.0), (None, True)
    rows = [
        {"text": f"a {WORDS[n % 4]} car", **{w: marks[n % 4][w == WORDS[n % 4]] for w in WORDS}}
        for n in range(40)
    ]
    data = table(path=rows, labels=[*WORDS, "red"])
    assert list(data.label_names) == sorted(WORDS)
    lists = to_lists(data.train.features, data.train.labels)
    words = [[list(data.label_names)[label] for label in labels] for labels, _ in lists]
    kept = [row for row, test in zip(rows, draw_rows(40, 0.1, 0), strict=True) if not test]
    assert words == [[row["text"].split()[1]] for row in kept]
    assert Columns.restored(json.loads(json.dumps(data.columns.settings()))) == data.columns
    assert "red, old, fast, cheap (4 columns of zeros and ones, each a label)" in describe(data)
    with pytest.raises(DataError, match="row 3: the column old, a label, is neither 0 nor 1, but"):
        table(path=[*rows[:3], {**rows[3], "old": "yes"}, *rows[4:]], labels=WORDS)


CSV_ROWS = [{"a text": f"one, two; {n}", "price": str(n), "label": "xy"[n % 2]} for n in range(30)]
CSV_CELLS = [tuple(row.values()) for row in CSV_ROWS]


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ('"a text", price, label\n', '"{}", {}, {}\n'),
        ("a text ; price;label\n", '"{}";{}; {}\n'),
        ("sep=;\r\na text;price;label\r\n", '"{}";{};{}\r\n'),
        ('"SEP=\t"\na text\tprice\tlabel\n', "{}\t{}\t{}\n"),
        ("a text|price|label\n", "{}|{}|{}\n"),
    ],
)
def test_csv_as_people_and_spreadsheets_write_it(header, line):
    lines = [header, *(line.format(*cells) for cells in CSV_CELLS)]
    pieces = "".join(lines).encode().splitlines(keepends=True)
    found = list(read_lines(pieces, "a.csv"))
    assert [{k: v.strip() for k, v in row.items()} for _, row in found] == CSV_ROWS
    assert found[0][0] == f"a.csv:{1 + len(header.splitlines())}"


def test_names_with_commas_in_a_header_of_semicolons():
    pieces = [b"a, b, c, d;label\n", b"one;x\n", b"two, three;y\n"]
    rows = [row for _, row in read_lines(pieces, "a.csv")]
    assert rows == [{"a, b, c, d": "one", "label": "x"}, {"a, b, c, d": "two, three", "label": "y"}]


def test_blanks_around_the_name_of_a_column_do_not_count():
    """As models of before have them."""
    columns = Columns("label", text=(" title",), numbers=("price ",))
    assert columns.found_in({"title": "a", "price": 3, "x": 1}) == {
        " title": "a",
        "price ": 3,
        "x": 1,
    }


@pytest.mark.parametrize("orient", ["columns", "index", "split", "table", "values", "list"])
def test_other_forms_of_json_say_how_to_write_rows(orient, tmp_path):
    rows = frame(None, flat())
    if orient == "list":
        (tmp_path / "a.json").write_text(json.dumps({"data": rows.to_dict("records")}))
    else:
        rows.to_json(tmp_path / "a.json", orient=orient)
    with pytest.raises(DataError, match=r"to_json\(path, orient='records', lines=True\)"):
        table(path=tmp_path / "a.json")
    rows.to_json(tmp_path / "a.json", orient=orient, indent=1) if orient != "list" else None
    with pytest.raises(DataError, match=r"to_json\(path, orient='records', lines=True\)"):
        table(path=tmp_path / "a.json")


@pytest.mark.parametrize("width", [3, 40])
def test_numbers_beyond_float32_are_named(width):
    rows = [{**{f"c{i}": n + i for i in range(width)}, "label": "ab"[n % 2]} for n in range(20)]
    rows[7]["c2"] = 1e300
    with pytest.raises(DataError, match=r"row 7: the column c2 must .* 1e\+300 \(at most 3.40282"):
        table(path=rows)
    rows[7]["c2"] = 3e38
    assert np.isfinite(table(path=rows).train.features.values).all()


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
