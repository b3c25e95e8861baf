"""The plain PyTorch twin of a network answers like the network when it is exported."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr

import slide

pytestmark = pytest.mark.usefixtures("one_thread")
PAGE = Path(__file__).parents[1] / "docs" / "export.md"
FEATURES, LABELS, K = 40, 30, 4


def draw_rows(sizes):
    return make_csr(np.random.default_rng(0), sizes, FEATURES)


def tensors(rows):
    return [torch.from_numpy(array) for array in rows]


def assert_same_answers(found, network, rows):
    scores, ids = (torch.as_tensor(each) for each in found)
    expected, expected_ids = network.predict(rows, K)
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ids, expected_ids)


# The exporter uses what PyTorch itself has deprecated.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.compiled_only
def test_torch_export_and_onnx(tmp_path):
    """Any number of rows, and of features in a row; ONNX by the code of the page."""
    network = slide.SlideNetwork(FEATURES, [8, 6], LABELS, slide.FullSampler).eval()
    for parameter in network.parameters():  # Biases, too.
        torch.nn.init.normal_(parameter)
    twin, example = network.to_torch(K), draw_rows([3, 1, 5])
    rows, entries = torch.export.Dim("rows", min=2), torch.export.Dim("entries")
    shapes = {0: rows + 1}, {0: entries}, {0: entries}
    program = torch.export.export(twin, tuple(tensors(example)), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    (code,) = re.findall(r"<!-- onnx: [^\n]*-->\n```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {"torch": torch, "program": program, "folder": tmp_path, "rows": example}
    exec(code, names)
    assert_same_answers((names["scores"], names["ids"]), network, example)
    for sizes in ([2], [0, 5, 0], [3, 1, 20, 8], [0, 0]):
        arrays = draw_rows(sizes)
        if len(sizes) > 1:  # PyTorch's programs are made for one row, or for more.
            assert_same_answers(loaded(*tensors(arrays)), network, arrays)
        named = dict(zip(("indptr", "indices", "values"), arrays, strict=True))
        assert_same_answers(names["session"].run(None, named), network, arrays)
