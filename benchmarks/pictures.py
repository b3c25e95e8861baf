"""Runs the notebooks of examples/, and saves their pictures for docs/notebooks.md.

    python benchmarks/pictures.py
    python benchmarks/pictures.py idea tags

Writes docs/pictures/<notebook>_<number>.png.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PICTURES = ROOT / "docs" / "pictures"


def run(notebook: Path) -> dict[str, Figure]:
    """Execute the cells of a notebook; returns its pictures by the names of their files."""
    names: dict[str, Any] = {}
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
    return {f"{notebook.stem}_{n}.png": pyplot.figure(n) for n in pyplot.get_fignums()}


def main() -> None:
    parser = argparse.ArgumentParser(description="The pictures of the notebooks.")
    parser.add_argument("names", nargs="*", default=[path.stem for path in NOTEBOOKS])
    for name in parser.parse_args().names:
        for file, figure in run(ROOT / "examples" / f"{name}.ipynb").items():
            figure.savefig(PICTURES / file, dpi=80)
        pyplot.close("all")


if __name__ == "__main__":
    main()
