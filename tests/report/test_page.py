"""The report of a run: what it shows, and when it is not written."""

import base64
import json
import re
from xml.etree import ElementTree

import numpy as np
from helpers import job

from slide.report import read_run
from slide.report.page import draw_calibration, draw_selection, draw_times, svg


def test_a_run_leaves_a_report(tmp_path):
    more = ["report=true", "trainer.log_every=2", "trainer.eval_every=8", "ranker=none"]
    more += ["sampler.mode=per_sample"]
    job.main(*job.tiny(tmp_path, *more))
    page = (tmp_path / "run/report.html").read_text()
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(pictures) == 5
    assert "border-collapse: collapse;" in page.partition("</style>")[0]
    texts = [
        " ".join(ElementTree.fromstring(base64.b64decode(picture)).itertext())
        for picture in pictures
    ]
    assert "loss" in texts[0]
    assert "P@1, evaluated rows" in texts[0]
    for part in ("recall of the ten best", "by chance", "looked up", "share of the rows looked at"):
        assert part in texts[1]
    assert "first 5" in texts[2]
    assert "probability" not in texts[3]
    assert "mean score" in texts[3]
    assert "training" in texts[4]
    assert "re-ranker" not in texts[4]
    assert "http" not in re.sub(r'src="[^"]+"', "", page), "it asks for something from outside"
    summary = read_run(tmp_path / "run").summary
    for score in ("p_at_1", "recall_at_10", "chance_recall_at_10"):
        assert f"<td>{summary[score]:.4f}</td>" in page
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings[-3:] == ["Hardest labels", "Best labels", "Settings"]
    assert re.search(r"<td>label \d+</td>", page)


def test_a_re_ranker_gives_probabilities_and_takes_time():
    bins = np.array([0.2, 0.7]), np.array([0.25, 0.5]), np.array([4, 2])
    assert "mean probability" in svg(draw_calibration(*bins, True))
    shown = svg(
        draw_times({"network_seconds": 2.0, "ranker_seconds": 3.0, "validation_seconds": 0.0})
    )
    assert "re-ranker" in shown
    assert "3.0 s" in shown
    assert "held-out rows" not in shown


def test_calibration_errors_are_those_of_the_summary(tmp_path):
    job.main(*job.tiny(tmp_path, "report=true"))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    every, first = summary["calibration_error"], summary["calibration_error_at_1"]
    said = f"is {every:.3f} for all answers and {first:.3f} for the first answer to each row."
    assert said in (tmp_path / "run/report.html").read_text()
    assert abs(every - first) > 1e-3


def test_only_what_was_measured_is_shown(tmp_path):
    words = job.tiny(tmp_path, "report=true", "sampler=uniform", "ranker=none")
    job.main(*words)
    page = (tmp_path / "run/report.html").read_text()
    assert "<th>by chance</th>" in page
    assert "<th>looked up</th>" not in page
    assert "looked up" not in svg(draw_selection(read_run(tmp_path / "run")))
    job.main(*words, "trainer.recall_every=0", "optimizer.lr=1e6", f"run_dir={tmp_path}/other")
    page = (tmp_path / "other/report.html").read_text()
    assert "<h2>Choice of outputs</h2>" not in page
    assert "<b>Warning:</b> P@1 is below" in page


def test_no_report_where_none_is_wanted(tmp_path):
    job.main(*job.tiny(tmp_path, "report=false", "trainer.max_steps=1", "ranker=none"))
    assert not (tmp_path / "run/report.html").exists()
