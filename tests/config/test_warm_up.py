"""``slide-warm-up`` makes a short run of all usual parts, and leaves nothing."""

import tempfile

import pytest
from helpers import job

from slide.config import warm_up


@pytest.mark.compiled_only
@pytest.mark.usefixtures("one_thread")
def test_a_short_run_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with job.global_state_put_back():
        warm_up.main([])
    assert capsys.readouterr().out.startswith("compiled the kernels in ")
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="2"):
        warm_up.main(["now"])
