"""The examples run, briefly, on a few random images, and reach what they say in outline."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
from test_mnist import write

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["mnist", "mixer"])
@pytest.mark.parametrize("options", [["--sampler", "lsh"], ["--sampler", "uniform", "--validate"]])
def test_example(name, options, tmp_path, monkeypatch, capsys):
    write(tmp_path, rows=(300, 40))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    example = import_module(name)
    assert Path(example.__file__).parent == ROOT / "examples"
    example.main(["--data", str(tmp_path), "--epochs", "1", "--limit", "200", *options])
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "%"
    sampler = options[1]
    assert [row.split()[:3] for row in rows] == [
        ["dense", "all", "all"],
        [sampler, "20%", "all"],
        [sampler, "20%", "20%"],
    ]
    assert all(0 <= float(row.split()[-1]) <= 100 for row in rows)
