"""The report of a run: what it shows, and when it is not written."""

import base64
import itertools
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from helpers import job
from matplotlib.backends.backend_agg import FigureCanvasAgg

from slide.report import RunFiles, read_run
from slide.report.page import (
    _BINS,
    _PARTS,
    draw_bins,
    draw_calibration,
    draw_loss,
    draw_precision,
    draw_selection,
    draw_times,
    score_table,
    svg,
)


def pictures(page):
    """The texts of each picture, by what it shows."""
    found = re.findall(r'alt="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)"', page)
    return {
        name: " ".join(ElementTree.fromstring(base64.b64decode(code)).itertext())
        for name, code in found
    }


def test_a_run_leaves_a_report(tmp_path):
    more = ["report=true", "trainer.log_every=2", "trainer.eval_every=8", "ranker=ensemble"]
    job.main(*job.tiny(tmp_path, *more, "sampler.mode=per_sample"))
    page, summary = (tmp_path / "run/report.html").read_text(), read_run(tmp_path / "run").summary
    found = pictures(page)
    choice = ["recall of the ten best", "outputs looked up, of a set"]
    choice.append("share of the rows read")
    expected = ["loss over the steps", "precision", *choice, "share of right labels found"]
    expected.append("contribution to P@k")
    expected += ["share of right answers by probability", "number of answers by probability"]
    assert list(found) == [*expected, "seconds of each part of the run"]
    assert "by chance" in found[choice[0]]
    assert "test rows, re-ranked" in found["precision"]
    assert "http" not in re.sub(r'src="[^"]+"', "", page), "it asks for something from outside"
    assert '<meta name="viewport" content="width=device-width">' in page, "phones would shrink it"
    assert page.count("<table>") == page.count('<div class="wide"><table>'), (
        "a table may be too wide"
    )
    scores = ["p_at_1", "recall_at_10", "chance_recall_at_10"]
    assert all(f"<td>{summary[score]:.4f}</td>" in page for score in scores)
    names = "calibration_error", "calibration_error_at_1", "chance_calibration_error_at_1"
    every, first, chance = (f"{summary[name]:.3f}" for name in names)
    assert f"{every} for all answers and {first} for the first answer to each row" in page
    assert f"each row (by chance {chance})" in page
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings[-3:] == ["Hardest labels", "Best labels", "Settings"]
    table = page.split("<h2>Settings</h2>")[1]
    settings = dict(re.findall("<tr><td>(.*?)</td><td>(.*?)</td></tr>", table))
    assert settings["sampler"] == "lsh"
    assert settings["recipe"] == "null"
    assert not any("_target_" in key or key.startswith("command") for key in settings)
    assert re.search(r"<td>label \d+</td>", page)
    assert re.search(r"<td colspan=5><small>row \d+: feature \d+", page)


def test_points_of_precision_are_on_one_scale(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0")
    lines = [{"step": 2, "held/precision": 0.25}]
    lines += [{"step": 3, "eval/p_at_1": 0.9}]  # Without the others it is no point.
    lines += [{"step": 4, **{f"eval/p_at_{k}": x for k, x in ((1, 0.5), (3, 0.25), (5, 0.15))}}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    held, test = draw_precision(read_run(tmp_path))["precision"].axes[0].lines
    points = [np.asarray(line.get_xydata()).tolist() for line in (held, test)]
    assert points == [[[2, 0.25]], [[4, 0.3]]]


def boxes(figure):
    """Where the texts that can be seen are, legends as a whole, in pixels."""
    FigureCanvasAgg(figure).draw()
    found = list(figure.legends)
    for axes in figure.axes:
        found += [axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            least, most = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if least <= tick.get_loc() <= most]
            found += [tick.label1 for tick in ticks]
    extents = [each.get_window_extent() for each in found]
    return [box for box in extents if box.width]


def figures():
    """Each kind of figure of a report, with large numbers."""
    precisions = [f"{each}/p_at_{k}" for each in ("eval", "reranked") for k in (1, 3, 5)]
    selection = ["selection/recall_without_labels", "selection/chance", "selection/candidates"]
    names = ["train/loss", "held/precision", *precisions, *selection]
    log = [dict.fromkeys(names, 12_345.67 / n) | {"step": 9_999.0 * n} for n in (1, 30)]
    run = RunFiles(Path("a"), {"evaluated_on": "test"}, {}, log)
    yield draw_loss(run)
    yield from draw_precision(run).values()
    yield from draw_selection(run).values()
    bars = [[1e-5, 0.5, 1.0]] * len(_BINS)
    yield draw_bins("share of right labels found", list(_BINS), bars, "first {}")
    tenths = np.linspace(0.05, 0.95, 10)
    yield from draw_calibration(tenths, tenths, np.full(10, 10**7)).values()
    yield draw_times(dict.fromkeys(_PARTS.values(), 123_456.7))


def test_texts_in_pictures_neither_collide_nor_leave_them():
    for figure in figures():
        found = boxes(figure)
        assert len(found) > 5
        assert not any(one.overlaps(other) for one, other in itertools.combinations(found, 2))
        width, height = figure.bbox.size
        assert all(-1 <= box.x0 < box.x1 <= width + 1 for box in found)
        assert all(-1 <= box.y0 < box.y1 <= height + 1 for box in found)
        panels = [axes.bbox for axes in figure.axes]
        above = [legend.get_window_extent() for legend in figure.legends]
        assert not any(one.overlaps(panel) for one in above for panel in panels)


def test_shares_of_few_answers_are_not_drawn():
    means = np.array([0.1, 0.5])
    shares, _ = draw_calibration(means, means, np.array([20, 19])).values()
    assert list(shares.axes[0].lines[1].get_xdata()) == [0.1]


def test_only_parts_that_took_time_are_shown():
    seconds = {"network_seconds": 2.0, "ranker_seconds": 3.0, "validation_seconds": 0.0}
    shown = svg(draw_times(seconds))
    assert "3.0 s" in shown
    assert "held-out rows" not in shown


def test_only_what_was_measured_is_shown(tmp_path):
    words = job.tiny(tmp_path, "report=true", "sampler=uniform", "ranker=none")
    job.main(*words)
    page = (tmp_path / "run/report.html").read_text()
    assert "<td>by chance</td>" in page
    assert "looked up" not in page
    assert "<h2>Calibration</h2>" not in page, "there are no probabilities"
    assert "precision" not in pictures(page), "a single point is in the table"
    job.main(*words, "trainer.recall_every=0", "optimizer.lr=1e6", f"run_dir={tmp_path}/other")
    page = (tmp_path / "other/report.html").read_text()
    assert "<h2>Choice of outputs</h2>" not in page
    assert "<b>Warning:</b> the answers are no better than always" in page


def test_a_recommender_shows_its_own_scores(tmp_path):
    summary = {"recall_at_20": 0.2338, "ndcg_at_20": 0.1234}
    shown = score_table(RunFiles(tmp_path, summary, {}, []))
    assert re.findall(r"<td>([^<]+)</td>", shown) == [
        *("Recall@20, answers", "0.2338"),
        *("nDCG@20, answers", "0.1234"),
    ]
    assert "<th>score</th></tr>\n<tr><td>Recall@20" in shown  # Not in a column of precisions.
