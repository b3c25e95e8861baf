"""Runs of train.py whose networks and answers a benchmark looks at."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from slide.config import build_trainer, read_config, resumed, user_errors
from slide.files import read_tensors
from slide.training import Trainer
from slide.training.summary import RANKER


def trained(overrides: list[str]) -> tuple[Trainer, dict[str, Any]]:
    """A run of train.py within this process: its trainer and its summary; no folder stays."""
    with tempfile.TemporaryDirectory() as scratch, user_errors():
        trainer = build_trainer(read_config([*overrides, f"run_dir={scratch}/run"]))
        return trainer, trainer.fit()


@contextmanager
def reopened(folder: Path) -> Iterator[Trainer]:
    """The trainer of a finished run with a ranker, both as they were at its end."""
    overrides = [f"resume={folder}"]
    with user_errors():
        trainer = build_trainer(resumed(read_config(overrides), overrides))
    assert trainer.ranker is not None
    assert trainer.every_split is not None
    trainer.ranker.load_state_dict(read_tensors(folder / RANKER), trainer.every_split)
    with closing(trainer.monitor):
        yield trainer
