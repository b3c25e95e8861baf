"""The notebooks run from the first cell to the last; what they assert holds."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
pytestmark = [pytest.mark.compiled_only, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(notebook, bench):
    """It is stored without outputs, and the site has its pictures."""
    assert not any(cell.get("outputs") for cell in json.loads(notebook.read_text())["cells"])
    pictures = bench("pictures")
    try:
        found = {f"pictures/{name}" for name in pictures.run(notebook)}
    finally:
        pictures.pyplot.close("all")
    page = (ROOT / "docs/notebooks.md").read_text()
    assert {name for name in found if f"]({name})" in page} == found
    assert page.count(f"](pictures/{notebook.stem}_") == len(found) > 0
