"""Reports of runs as pages with pictures; not loaded by ``import slide``."""

from slide.report.page import Answers, write_report
from slide.report.run_files import RunFiles, read_run

__all__ = ["Answers", "RunFiles", "read_run", "write_report"]
