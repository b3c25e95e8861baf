"""The README's examples run as they stand."""

import re
from pathlib import Path

import torch

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_library_example():
    torch.manual_seed(0)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["ids"].shape == (2, 5)
    assert all(label in names["scores"].active.ids for label in (17, 99_123, 5))
    # The step moved the scores of the labels towards their targets.
    output, x = names["output"], names["encoder"](names["x"])
    after = output(x, names["labels"])
    assert names["loss"](after.values, after.active) < names["loss"](*names["scores"][:2])


def test_commands_name_existing_files():
    for command in ("main", "tests"):
        (block,) = re.findall(rf"<!-- {command} -->\n```bash\n(.*?)```", README, re.DOTALL)
        assert "-c constraints.txt" in block
