"""``python -m slide.check``: what it says of the machine."""

import pytest
import torch

from slide.backend import backend
from slide.check import main


@pytest.mark.kernels
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["kernels", "torch"])
def test_it_says_what_the_machine_has(capsys, name):
    with backend(name):
        main([])
    found = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert found["threads"].startswith("1 of ")
    assert f"torch {torch.__version__}" in found["versions"]
    assert "GiB" in found["memory"]
    assert found["backend"] == name
    assert "compiled" in found["kernels"]
