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


def assert_same_answers(found, network, rows):
    scores, ids = (torch.as_tensor(each) for each in found)
    expected, expected_ids = network.predict(rows, K)
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ids, expected_ids)


# The exporter uses what PyTorch itself has deprecated.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.compiled_only
def test_torch_export_and_onnx(tmp_path):
    """By the code of the page; any number of rows, and of features in a row."""
    network = slide.SlideNetwork(FEATURES, [8, 6], LABELS, slide.FullSampler).eval()
    for parameter in network.parameters():  # Biases, too.
        torch.nn.init.normal_(parameter)
    example = draw_rows([3, 1, 5])
    names = {"torch": torch, "twin": network.to_torch(K), "rows": example, "folder": tmp_path}
    blocks = re.findall(r"<!-- export: [^\n]*-->\n```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
        assert_same_answers((names["scores"], names["ids"]), network, example)
    torch.export.save(names["program"], tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    for sizes in ([2], [0, 5, 0], [3, 1, 20, 8], [0, 0]):
        arrays = draw_rows(sizes)
        if len(sizes) > 1:  # PyTorch's programs are made for one row, or for more.
            assert_same_answers(loaded(*map(torch.from_numpy, arrays)), network, arrays)
        named = dict(zip(("indptr", "indices", "values"), arrays, strict=True))
        assert_same_answers(names["session"].run(None, named), network, arrays)
