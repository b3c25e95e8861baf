"""Quantized rows are read as the floats that they stand for, block by block or some."""

import numpy as np
import pytest
import torch

from slide.utils.quantized import QuantizedRows, TensorRows, weight_rows


def draw(dtype, num_rows=37, width=6):
    weight = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    return weight, QuantizedRows.of(weight, dtype)


def naive(weight, dtype):
    """Number by number, by the definition of the types."""
    if dtype == "bfloat16":
        bits = weight.numpy().view(np.uint32).astype(np.int64)
        down = bits & 0xFFFF0000
        up = down + 0x10000
        values = [part.astype(np.uint32).view(np.float32) for part in (down, up)]
        near = np.abs(values[0].astype(float) - weight.numpy()) <= np.abs(
            values[1].astype(float) - weight.numpy()
        )
        return np.where(near, *values)
    out = weight.numpy().copy()
    for row in out:
        unit = np.float32(np.abs(row).max()) / np.float32(127)
        if unit > 0:
            row[:] = np.rint(row / unit).astype(np.float32) * unit
    return out


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rows_are_the_rounded_floats(dtype):
    weight, rows = draw(dtype)
    whole = rows.float().numpy()
    np.testing.assert_array_equal(whole, naive(weight, dtype))
    assert rows.float().dtype == rows.dtype == torch.float32
    assert rows.shape == weight.shape
    np.testing.assert_array_equal(rows.block(5, 9).numpy(), whole[5:9])
    np.testing.assert_array_equal(rows.take(torch.tensor([9, 2, 9])).numpy(), whole[[9, 2, 9]])
    np.testing.assert_array_equal(rows.kept(torch.tensor([9, 2])).float(), whole[[9, 2]])
    np.testing.assert_array_equal(rows.lengths(), TensorRows(rows.float()).lengths())


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("ids", [[[9, 2], [2, 30]], [], [[5]]])
def test_some_rows_and_where_they_are(dtype, ids):
    _, rows = draw(dtype)
    ids, bias = np.array(ids, np.int32), torch.arange(37.0)
    weight, some, positions = rows.some(ids, bias)
    assert positions.shape == ids.shape
    assert len(weight) == len(some) == len(np.unique(ids))
    np.testing.assert_array_equal(weight[positions].numpy(), rows.float().numpy()[ids])
    np.testing.assert_array_equal(some.numpy()[positions], ids)
    assert rows.some(ids, None)[1] is None
    own = TensorRows(rows.float())
    assert own.some(ids, bias) == (own.weight, bias, ids)


def test_few_rows_are_converted_at_a_time(monkeypatch):
    _, rows = draw("int8")
    monkeypatch.setattr("slide.utils.quantized._NUMBERS", 30)
    assert (rows.at_once(100), rows.at_once(3)) == (5, 3)
    np.testing.assert_array_equal(rows.lengths(), rows.float().norm(dim=1))
    monkeypatch.setattr("slide.utils.quantized._NUMBERS", 2)
    assert rows.at_once(100) == 1
    assert TensorRows(rows.float()).at_once(100) == 100


def test_who_reads_rows_gets_either_kind():
    weight, rows = draw("int8")
    assert weight_rows(rows) is rows
    assert weight_rows(torch.nn.Parameter(weight)).tensors[0].requires_grad is False
    assert rows.tensors == (rows.codes, rows.scales)


def test_numbers_that_cannot_be_rounded():
    weight, _ = draw("int8")
    weight[2, 1] = torch.inf
    with pytest.raises(ValueError, match="weights that are not finite cannot be saved as int8"):
        QuantizedRows.of(weight, "int8")
    assert QuantizedRows.of(weight, "bfloat16").float()[2, 1] == torch.inf
    with pytest.raises(ValueError, match="dtype must be one of bfloat16, int8, not 'int4'"):
        QuantizedRows.of(weight, "int4")
