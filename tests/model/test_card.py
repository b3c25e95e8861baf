"""The README.md of a model folder."""

import json
import re

import numpy as np
import pytest
import yaml
from helpers import job

import slide
from slide.model import Model

EVIL = '"\n---\n# owned | <script>alert(1)</script> [x](http://a.b) `c` *d* \\'


def card_of(folder):
    """The front matter, the text below it, and the cells of its table by their heads."""
    text = (folder / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    cells = dict(re.findall(r"^\| (.+?) \| (.*) \|$", body, re.MULTILINE))
    return yaml.safe_load(front), body, cells


@pytest.mark.compiled_only
def test_the_card_of_a_run(tmp_path):
    job.main(*job.tiny(tmp_path, "ranker=none", "trainer.log_every=2"))
    front, body, cells = card_of(tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert front["library_name"] == "slide"
    (result,) = front["model-index"][0]["results"]
    assert {each["name"]: each["value"] for each in result["metrics"]} == {
        f"P@{k}": summary[f"p_at_{k}"] for k in (1, 3, 5)
    }
    rows = summary["eval_rows"]
    assert cells[f"P@1, {rows} rows of the test set"] == f"{summary['p_at_1']:.4f}"
    assert cells["training rows"] == f"{summary['train_rows']:,}"
    assert "    trainer.log_every=2\n" in body
    assert f"{tmp_path}" not in body, "a folder of this machine"
    model = slide.load(tmp_path / "run")
    model.save(tmp_path / "copy")
    assert card_of(tmp_path / "copy")[0] == front
    model.add_labels(2)
    model.save(tmp_path / "copy")
    assert "metrics" not in card_of(tmp_path / "copy")[0], "scores of another model"


def test_text_of_strangers_stays_text(tmp_path):
    network = slide.SlideNetwork(6, [4], 3, slide.FullSampler)
    words = {"command": {"words": ["a=1", "b=\n```\n# owned"]}}
    Model(network, name=EVIL, settings=words).save(tmp_path)
    front, body, cells = card_of(tmp_path)
    assert set(front) == {"library_name", "tags"}
    assert not re.findall(r"(?<!\\)<(?!!--)", body), "HTML"
    assert r"\[x\]\(http\:\/\/a\.b\)" in cells["data set"]
    assert re.findall("^#.*", body, re.MULTILINE)[1:] == ["## Settings", "## Use"]
    assert "    a=1\n    b= ``` # owned\n" in body
    assert slide.load(tmp_path).name == EVIL


def test_a_readme_of_somebody_stays(tmp_path):
    model = Model(slide.SlideNetwork(6, [4], 3, slide.FullSampler), name="one")
    model.save(tmp_path)
    model.name = "two"
    model.save(tmp_path)
    assert card_of(tmp_path)[2]["data set"] == "two"
    (tmp_path / "README.md").write_text("mine")
    model.save(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    (tmp_path / "README.md").unlink()  # As of folders of former versions.
    assert slide.load(tmp_path).predict(np.eye(6), k=1).labels.shape == (6, 1)
    (tmp_path / "new").mkdir()
    (tmp_path / "new/README.md").write_text("mine")
    with pytest.raises(ValueError, match="holds something else than a model"):
        model.save(tmp_path / "new")


def test_the_card_of_a_classifier(tmp_path):
    classifier = slide.SlideClassifier(ranker=None, epochs=2, random_state=0, run_dir=None)
    classifier.fit(np.eye(8), list("abababab")).save(tmp_path / "model")
    body = card_of(tmp_path / "model")[1]
    settings = body.partition("## Settings")[2].partition("## Use")[0]
    assert re.findall("    (.+)", settings) == ["ranker=None", "epochs=2", "random_state=0"]
