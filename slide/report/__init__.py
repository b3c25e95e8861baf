"""Reports of runs as pages with pictures; not loaded by ``import slide``."""

from slide.report.answers import Answers
from slide.report.page import write_report
from slide.report.run_files import RunFiles, read_run

__all__ = ["Answers", "RunFiles", "read_run", "write_report"]
