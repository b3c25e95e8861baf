"""Runs a target until it fails, or as long as libFuzzer's ``-max_total_time=SECONDS`` says.

Options are libFuzzer's. A folder is a corpus that grows; the name of a file tries that file alone.
"""

import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

# Kernels as plain Python: their branches guide the search, and no index is beyond its array.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import atheris  # noqa: E402

from fuzz import TARGETS  # noqa: E402

if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
    sys.exit(f"usage: python -m fuzz {{{','.join(TARGETS)}}} [option of libFuzzer | folder | file]")
with atheris.instrument_imports(include=["slide"]):
    target = import_module(f"fuzz.{sys.argv.pop(1)}")
    import_module("slide.utils.progress_bar").silence()
with tempfile.TemporaryDirectory() as scratch:
    folder, corpus = Path(scratch, "files"), Path(scratch, "seeds")
    folder.mkdir()
    corpus.mkdir()
    for number, seed in enumerate(target.seeds(folder)):
        (corpus / f"{number}").write_bytes(seed)
    files = any(Path(word).is_file() for word in sys.argv[1:])
    words = [] if files else ["-max_len=8192", "-len_control=0", "-keep_seed=1", str(corpus)]
    atheris.Setup([*sys.argv, *words], lambda data: target.check(data, folder))
    atheris.Fuzz()
