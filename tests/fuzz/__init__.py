"""Readers under coverage-guided fuzzing: ``python -m fuzz TARGET [OPTION ...]`` in this folder.

A target is a module with ``seeds(folder)``, contents of files to begin with, and
``check(data, folder)``, which writes a file, reads it, says whether it was taken, and raises an
error if the reader does what it must not. Both get the same folder, which is empty at first.
`tests/test_fuzz_targets.py` tries the seeds.
"""

TARGETS = ("xmc", "svmlight", "npz_matrix", "json_lines", "csv_table", "model_folder", "checkpoint")
