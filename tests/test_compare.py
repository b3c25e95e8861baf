"""``slide-compare`` on folders of runs."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from slide import compare
from slide.report.page import draw_comparison
from slide.utils.figures import text_table


@pytest.fixture
def runs(tmp_path):
    """Two finished runs and one that is not."""
    for name, rate, score in (("one", 0.1, 0.5), ("two", 0.2, 0.25), ("three", 0.2, None)):
        folder = tmp_path / name
        folder.mkdir()
        settings = f"seed: 1\nrun_dir: {folder}\noptimizer:\n  lr: {rate}\n"
        (folder / "config.yaml").write_text(settings)
        lines = [
            {"step": 2, "train/loss": 0.5, "train/seconds": 1.5},
            {"step": 4, "train/loss": 0.25, "train/seconds": 3.0},
            {"step": 4, "eval/p_at_1": score or 0.0},
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if score:
            summary = {"p_at_1": score, "train_seconds": 3.0, "peak_rss_mb": 1200, "steps": 4}
            (folder / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_settings_that_differ_and_what_came_of_them(runs, capsys):
    compare.main([str(runs / name) for name in ("one", "two", "three")])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["run", "optimizer.lr", "P@1"]
    assert [line.split() for line in lines[:2]] == [
        ["one", "0.1", "0.5000", "4", "3.0", "1,200"],
        ["two", "0.2", "0.2500", "4", "3.0", "1,200"],
    ]
    assert lines[2].split() == ["three", "0.2"]
    assert "seed" not in head
    assert "run_dir" not in head


def test_a_folder_of_runs_and_wide_tables(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    for name in ("one", "two"):
        more = "".join(f"a_key_of_some_length_{i}: {name}\n" for i in range(9))
        with (runs / name / "config.yaml").open("a") as file:
            file.write(more)
    (runs / "tries").mkdir()
    (runs / "two").rename(runs / "tries/two")
    compare.main([str(runs)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "one", "three", "two"]
    assert "a_key_of_some_length_3  one     -      two" in lines, "a pipe has no end"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    compare.main([str(runs)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 30


def settings(run, words, **changed):
    """What a run notes of these words: the choices of groups, and values of keys."""
    tree = {"seed": 0, "optimizer": {"lr": 0.1}, "sampler": {"best": 8, "seed": 0}}
    tree["schedule"] = {"first": 9, "rebuild": {"_target_": "slide.sampling.backoff", "first": 9}}
    tree |= changed
    choices = {"sampler": "sketch", "hash": "simhash"}
    choices |= {k: v for k, _, v in (word.partition("=") for word in words) if k in choices}
    tree["command"] = {"words": words, "choices": choices}
    (run / "config.yaml").write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("words", "changed", "expected"),
    [
        (
            ["schedule.first=3"],
            {"schedule": {"first": 3, "rebuild": {"first": 3}}},
            {"schedule.first"},
        ),
        (["sampler=lsh"], {"sampler": {"best": 16, "probes": 15}}, {"sampler"}),
        (
            ["sampler=lsh", "sampler.best=4"],
            {"sampler": {"best": 4, "_target_": "x"}},
            {"sampler", "sampler.best"},
        ),
        (["hash.K=4"], {"hash": {"hashes_per_table": 4}}, {"hash.K"}),
        (["seed=1"], {"seed": 1, "sampler": {"best": 8, "seed": 1}}, {"seed"}),
        ([], {"optimizer": {"lr": 0.2}}, {"optimizer.lr"}),
    ],
)
def test_keys_are_those_that_a_user_types(runs, words, changed, expected):
    settings(runs / "one", [])
    settings(runs / "two", words, **changed)
    found = compare.differing([compare.read_run(runs / name) for name in ("one", "two")])
    assert set(found) == expected


@pytest.mark.parametrize("words", [3, [3, ["seed=1"]]])
def test_words_that_no_command_line_has(runs, words):
    for name, seed in (("one", 0), ("two", 1)):
        tree = {"seed": seed, "command": {"words": words}}
        (runs / name / "config.yaml").write_text(json.dumps(tree))
    found = compare.differing([compare.read_run(runs / name) for name in ("one", "two")])
    assert set(found) == {"seed"}


def test_many_runs_are_lines(runs, capsys):
    for i in range(12):
        folder = runs / f"many/a_run_with_a_long_name_{i}"
        folder.mkdir(parents=True)
        settings(folder, [], rows=i)
        summary = dict.fromkeys(compare._FACTS.values(), 0.5 + i)
        (folder / "summary.json").write_text(json.dumps(summary))
    compare.main([str(runs / "many"), "--plot", str(runs / "many.png")])
    assert (runs / "many.png").read_bytes().startswith(b"\x89PNG")
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["run", "rows", "P@1"]
    assert "looked up  recall" in head
    assert len(lines) == 12


@pytest.fixture
def seeds(tmp_path):
    """Two seeds of each of two rates, a third one of the second that goes on, and curves."""
    for rate in (0.1, 0.2):
        for seed in range(3):
            folder = tmp_path / f"lr={rate},seed={seed}"
            folder.mkdir()
            settings(folder, [f"optimizer.lr={rate}"], optimizer={"lr": rate}, seed=seed)
            score = rate + 0.01 * seed
            lines = [
                {"step": step, "held/precision": score * step, "train/seconds": step * (1 + seed)}
                for step in (1, 2, 3)
            ]
            log = "".join(json.dumps({**line, "train/loss": rate}) + "\n" for line in lines)
            (folder / "metrics.jsonl").write_text(log)
            if seed < 2:
                summary = {"p_at_1": score, "steps": 3, "train_seconds": 3.0 * (1 + seed)}
                (folder / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_seeds_of_the_same_settings_are_one_line(seeds, capsys):
    compare.main([str(seeds)])
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    found = [[cell.strip() for cell in line if cell] for line in lines]
    assert found == [
        ["run", "seed", "optimizer.lr", "P@1", "steps", "training, s"],
        *(
            [
                *(f"lr={rate},seed=0 and 1 other seed", "0, 1", str(rate)),
                *(f"{rate + 0.005:.4f} ± 0.0071", "3", "4.5 ± 2.1"),
            ]
            if seed == 0
            else [f"lr={rate},seed=2", "2", str(rate)]
            for rate in (0.1, 0.2)
            for seed in (0, 2)
        ),
    ]
    again = seeds / "again"
    (seeds / "lr=0.1,seed=1").rename(again)
    settings(again, [], optimizer={"lr": 0.1}, seed=0)  # Not another seed.
    compare.main([str(again), str(seeds / "lr=0.1,seed=0")])
    assert "other seed" not in capsys.readouterr().out


def test_tables_for_other_programs(seeds):
    """Mean and deviation over seeds; what a spreadsheet or LaTeX would take for code is text."""
    (seeds / "lr=0.1,seed=2").rename(seeds / "=1+1_#2")
    (seeds / "lr=0.2,seed=2").rename(seeds / "[a] b\\c")
    (seeds / "table").mkdir()
    files = [str(seeds / "table" / each) for each in ("a.csv", "a.tex")]
    compare.main([str(seeds), "--csv", files[0], "--latex", files[1]])
    with open(files[0], newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["run"] for line in lines] == [
        *("'=1+1_#2", "[a] b\\c"),
        *(f"lr={rate},seed=0 and 1 other seed" for rate in (0.1, 0.2)),
    ]
    assert [line["P@1"] for line in lines[:2]] == ["", ""]
    found = [float(lines[2][key]) for key in ("P@1", "P@1 deviation", "training, s", "steps")]
    np.testing.assert_allclose(found, [0.105, 0.01 / 2**0.5, 4.5, 3])
    text = Path(files[1]).read_text().splitlines()
    assert text[1:4] == [
        r"\begin{tabular}{lllrrr}",
        r"\toprule",
        r"run & seed & optimizer.lr & P@1 & steps & training, s \\",
    ]
    assert text[5].startswith(r"=1+1\_\#2 & 2 & 0.1")
    assert text[6].startswith(r"{[}a] b\textbackslash{}c & 2")
    assert text[7].endswith(r"& 0.1050 $\pm$ 0.0071 & 3 & 4.5 $\pm$ 2.1 \\")


def test_the_plot_has_precision_over_seconds_and_loss_where_it_can_be_compared(seeds):
    groups = compare.by_seeds([compare.read_run(each) for each in compare.find_runs([seeds])])
    names = compare.names_of(groups)
    figure = draw_comparison(groups, names)
    assert [axes.get_xlabel() for axes in figure.axes] == ["seconds", "step"] * 2
    what = "mean of P@1, P@3, P@5, held-out rows"
    assert [axes.get_ylabel() for axes in figure.axes] == [what, "", "loss", ""]
    over_seconds, over_steps = figure.axes[:2]
    assert [line.get_label().strip() for line in over_seconds.lines] == names
    assert len(over_seconds.collections) == 2, "a band for each of two seeds"
    mean = over_steps.lines[0].get_xydata()
    np.testing.assert_allclose(mean, [[step, 0.105 * step] for step in (1, 2, 3)])
    assert over_seconds.lines[0].get_xdata().tolist() == [2, 3], "both seeds have been there"
    settings(seeds / "lr=0.1,seed=0", [], loss={"name": "softmax"})
    groups = compare.by_seeds([compare.read_run(each) for each in compare.find_runs([seeds])])
    figure = draw_comparison(groups, compare.names_of(groups))
    assert [axes.get_ylabel() for axes in figure.axes] == [what, ""]


def test_mistakes_are_sentences(runs):
    with pytest.raises(SystemExit, match=r"error: .*nothing is no folder of a run"):
        compare.main([str(runs / "nothing")])
    with pytest.raises(SystemExit, match="error: Format 'foo' is not supported"):
        compare.main([str(runs / "one"), "--plot", str(runs / "a.foo")])


def test_names_from_elsewhere_are_no_commands_to_a_terminal_or_a_picture(runs, tmp_path, capsys):
    """Escape sequences, formulas of matplotlib, and the names that it leaves out of legends."""
    one, two = (runs / name for name in ("one", "two"))
    with (one / "config.yaml").open("a") as file:
        file.write('note: "\\e[2Jred"\n')
    folders = [str(two.rename(runs / r"_$\frac$")), str(one)]
    compare.main([*folders, "--plot", str(tmp_path / "plot.svg")])
    out = capsys.readouterr().out
    assert r"\x1b[2Jred" in out
    assert "\x1b" not in out
    assert (tmp_path / "plot.svg").stat().st_size


def test_a_table_that_is_wider_than_the_terminal_goes_on_below():
    columns = [["run", "one", "two"], ["P@1", "0.5", "0.25"], ["P@3", "0.25", "0.5"]]
    whole = ["run  P@1   P@3", "one  0.5   0.25", "two  0.25  0.5"]
    assert text_table(columns, 15).splitlines() == whole
    parts = ["run  P@1", "one  0.5", "two  0.25", "", "run  P@3", "one  0.25", "two  0.5"]
    for narrow in (14, 9, 1):
        assert text_table(columns, narrow).splitlines() == parts
    assert text_table(columns, 9, repeated=2).splitlines() == whole
