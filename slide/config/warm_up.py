"""The command ``slide-warm-up``: compiles kernels ahead of the first run."""

import tempfile
from collections.abc import Sequence

from slide.config.build import build_trainer
from slide.config.compose import read_config, user_errors
from slide.utils.commands import command_parser, ending_errors
from slide.utils.profiling import compile_seconds
from slide.utils.progress_bar import show

ABOUT = """\
Compiles the kernels of a default run, by a short run on generated data that leaves no folder.

Later programs of this user and environment read the kernels from the disk. NUMBA_CACHE_DIR names
another folder for them."""
# Few rows, but as many labels as a run needs to take all of its usual parts.
_TINY = (
    *("dataset=synthetic", "dataset.num_labels=21000", "dataset.train_samples=2000"),
    *("dataset.test_samples=100", "trainer.max_steps=2"),
)


def main(words: Sequence[str] | None = None) -> None:
    """Compile, and print the seconds that it took."""
    command_parser("warm-up", ABOUT).parse_args(words)
    with tempfile.TemporaryDirectory() as folder, ending_errors(), user_errors():
        build_trainer(
            read_config([*_TINY, f"dataset.cache={folder}/cache", f"run_dir={folder}/run"])
        ).fit()
    show(f"compiled the kernels in {compile_seconds():.0f} s")


if __name__ == "__main__":
    main()
