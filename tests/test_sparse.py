"""The sparse containers, and what becomes one."""

import re
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from helpers.matrices import make_csr, make_pattern
from helpers.samplers import uniform_sampler

import slide
from slide import as_csr, as_pattern
from slide.functional import sparse_linear
from slide.sparse import CSR, Pattern, check_ids, check_labels, check_pattern, hits
from slide.utils import resources

SIZES = [2, 0, 3, 1, 0, 4]


def lists(rows):
    """The entries of each row, in all arrays."""
    arrays = [array.tolist() for array in rows[1:]]
    bounds = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    return [[array[begin:end] for array in arrays] for begin, end in bounds]


@pytest.mark.parametrize("make", [make_csr, make_pattern])
def test_parts_have_the_rows_and_are_views(make):
    rows = make(np.random.default_rng(0), SIZES, 9)
    for start in range(len(SIZES) + 1):
        for stop in range(start, len(SIZES) + 3):
            part = rows.slice(start, stop)
            assert type(part) is type(rows)
            assert lists(part) == lists(rows)[start:stop]
            assert part.indptr[0] == 0
            assert [array.dtype for array in part] == [array.dtype for array in rows]
    for whole, part in zip(rows[1:], rows.slice(2, 4)[1:], strict=True):
        assert np.shares_memory(whole, part)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (7, 9), (-3, -1)])
def test_parts_that_do_not_exist(start, stop):
    for make in (make_csr, make_pattern):
        rows = make(np.random.default_rng(0), SIZES, 9)
        with pytest.raises(IndexError, match="are none of 6 rows"):
            rows.slice(start, stop)


# Matrices and labels in the forms that users have.


DENSE = np.array([[0, 0.5, 2, 0], [0, 0, 0, 0], [1, 0, 0, -3]], np.float32)
ROWS = [[1, 2], [], [0, 3]]


def with_indices(dtype):
    matrix = scipy.sparse.csr_array(DENSE)
    matrix.indptr, matrix.indices = matrix.indptr.astype(dtype), matrix.indices.astype(dtype)
    return matrix


FORMS = {
    "int32": with_indices(np.int32),
    "int64": with_indices(np.int64),
    "matrix": scipy.sparse.csr_matrix(DENSE),
    "coo": scipy.sparse.coo_array(DENSE),
    "csc": scipy.sparse.csc_array(DENSE.astype(np.float64)),
    "lil": scipy.sparse.lil_array(DENSE),
    "numpy": DENSE.astype(np.float64),
    "fortran": np.asfortranarray(DENSE),
    "lists": DENSE.tolist(),
    "torch": torch.from_numpy(DENSE),
    "float64": torch.from_numpy(DENSE).double(),
    "bfloat16": torch.from_numpy(DENSE).bfloat16(),
    "torch coo": torch.from_numpy(DENSE).to_sparse_coo(),
    "CSR of int32": CSR(*np.array([[0, 2, 2, 4], [1, 2, 0, 3]], np.int32), DENSE[DENSE != 0]),
    "CSR of tensors": CSR(*map(torch.tensor, ([0, 2, 2, 4], [1, 2, 0, 3], [0.5, 2, 1, -3]))),
}


with warnings.catch_warnings():  # PyTorch warns of its first matrix of a kind.
    warnings.simplefilter("ignore")
    FORMS["torch csr"] = torch.from_numpy(DENSE).to_sparse_csr()
    FORMS["torch csc"] = torch.from_numpy(DENSE).to_sparse_csc()


@pytest.mark.parametrize("form", FORMS)
def test_features(form):
    found = as_csr(FORMS[form], 4)
    assert [array.dtype for array in found] == [np.int64, np.int32, np.float32]
    assert found.indptr.tolist() == [0, 2, 2, 4]
    assert found.indices.tolist() == [1, 2, 0, 3]
    assert found.values.tolist() == [0.5, 2, 1, -3]


def test_nothing_is_copied_that_fits():
    x = as_csr(DENSE)
    assert as_csr(x, 4) is x
    labels = Pattern.from_lists(ROWS)
    assert as_pattern(labels, 4) is labels
    matrix = scipy.sparse.csr_array(DENSE)
    assert as_csr(matrix).values is matrix.data
    assert as_csr(matrix).indices is matrix.indices


def test_entries_of_one_place_are_added_up_and_others_keep_their_order():
    parts = np.ones(3), np.array([2, 0, 2]), np.array([0, 3])
    twice = scipy.sparse.csr_array(parts, shape=(1, 3))
    assert as_csr(twice).values.tolist() == [1, 2]
    assert twice.nnz == 3, "the user's matrix has changed"
    parts = np.ones(3), np.array([2, 0, 1]), np.array([0, 3])
    assert as_csr(scipy.sparse.csr_array(parts, shape=(1, 3))).indices.tolist() == [2, 0, 1]
    torch_twice = torch.sparse_coo_tensor(
        [[0, 0], [1, 1]], [1.0, 2.0], (1, 3), check_invariants=True
    )
    assert as_csr(torch_twice).values.tolist() == [3]
    # PyTorch takes the arrays of such matrices as they are.
    for matrix, columns in ((twice, [0, 2]), (scipy.sparse.csr_array(parts), [2, 0, 1])):
        arrays = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
        tensor = torch.sparse_csr_tensor(*arrays, (1, 3), check_invariants=False)
        assert as_csr(tensor).indices.tolist() == columns


MANY = np.zeros(512, int), np.full(512, 4)


@pytest.mark.parametrize(
    ("form", "kind"), [("coo", "bool"), ("csr", "int16"), ("torch", "uint8"), ("torch", "float16")]
)
def test_sums_of_short_types_do_not_wrap_around(form, kind):
    ones = np.ones(512, kind) if kind in ("bool", "uint8") else np.full(512, 100, kind)
    # Wrapped around, some of these sums would be 0 or 1.
    matrix = {
        "coo": lambda: scipy.sparse.coo_array((ones, MANY), (1, 9)),
        "csr": lambda: scipy.sparse.csr_array((ones, MANY[1], [0, 512]), (1, 9)),
        "torch": lambda: torch.sparse_coo_tensor(
            np.array(MANY), torch.from_numpy(ones), (1, 9), check_invariants=True
        ),
    }[form]()
    assert as_csr(matrix).values.tolist() == [512.0 * float(ones[0])]
    with pytest.raises(ValueError, match=rf"row 0 has {512 * int(ones[0])}(\.0)? in column 4"):
        as_pattern(matrix, 9)
    assert str(matrix.dtype).removeprefix("torch.") == kind, "the user's matrix has changed"


@pytest.mark.parametrize("value", [-1, 0.5, 2, 1e-50, 1 + 1e-9])
def test_a_matrix_of_labels_holds_zeros_and_ones_only(value):
    """Every value but 0 was a label. In float32 the last two are 0 and 1."""
    dense = np.array([[0, 0, 1], [1, value, 0]])
    csr = scipy.sparse.csr_array(dense)
    forms = [dense, csr, CSR(csr.indptr, csr.indices, csr.data), csr.tocoo(), torch.tensor(dense)]
    said = rf"labels must hold zeros and ones only, and row 1 has {value}(\.0)? in column 1: give "
    for labels in (*forms, torch.tensor(dense).to_sparse()):
        with pytest.raises(ValueError, match=said):
            as_pattern(labels, 3)
    assert as_pattern(csr != 0, 3).indices.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.ones((2, 5)), ValueError, "a matrix of 5 columns does not fit 4 features"),
        (torch.ones(2, 5).to_sparse(), ValueError, "a matrix of 5 columns does not fit 4"),
        (np.ones(4), ValueError, r"a matrix of 2 dimensions, not \(4,\)"),
        (torch.ones(4).to_sparse(), ValueError, r"a matrix of 2 dimensions, not \(4,\)"),
        ([[1, 2], [3]], TypeError, "must be a slide.CSR, a SciPy sparse matrix, .* not list"),
        (np.array([["a"]]), TypeError, "must be a slide.CSR"),
        (scipy.sparse.csr_array(DENSE + 1j), TypeError, "must be real numbers, not complex"),
        (DENSE * np.nan, ValueError, "features must be finite float32 values, not nan"),
        (
            scipy.sparse.csr_array(DENSE.astype(float) * 1e300),
            ValueError,
            r"must be finite float32 values, not .* \(row 0, column \d; at most 3.4028235e",
        ),
        (torch.ones(2, 4, requires_grad=True), ValueError, "features get no gradient: detach"),
        (torch.ones(2, 4, device="meta"), ValueError, "features are on meta, so they have"),
        (CSR(np.zeros((2, 3)), np.zeros(2), np.zeros(2)), ValueError, r"shape \(2, 3\), not \(n"),
        (CSR(np.array([0, 1]), np.array([0.5]), np.ones(1)), TypeError, "must be whole numbers"),
    ],
)
def test_features_that_cannot_be_cast(x, error, message):
    with pytest.raises(error, match=message):
        as_csr(x, 4)


LABELS = {
    "lists": ROWS,
    "tuples": tuple(map(tuple, ROWS)),
    "sets": [set(row) for row in ROWS],
    "arrays": [np.array(row, int) for row in ROWS],
    "tensors": [torch.tensor(row, dtype=torch.int64) for row in ROWS],
    "objects": np.array([np.array(row, int) for row in ROWS], dtype=object),
    "matrix": scipy.sparse.csr_array(DENSE != 0).astype(float),
    "coo": scipy.sparse.coo_matrix(DENSE != 0),
    "indicator": (DENSE != 0).astype(int),
    "bool tensor": torch.from_numpy(DENSE != 0),
    "torch coo": torch.from_numpy(DENSE != 0).to_sparse_coo().double(),
    "CSR": as_csr(DENSE != 0),
    "Pattern of int64": Pattern(np.array([0, 2, 2, 4]), np.array([1, 2, 0, 3])),
}


@pytest.mark.parametrize("form", LABELS)
def test_labels(form):
    found = as_pattern(LABELS[form], 4)
    assert [array.dtype for array in found] == [np.int64, np.int32]
    assert found.indptr.tolist() == [0, 2, 2, 4]
    assert found.indices.tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize("one", [[3, 0], np.array([3, 0]), torch.tensor([3, 0]), (3, np.int8(0))])
def test_one_label_for_each_row(one):
    found = as_pattern(one, 4)
    assert (found.indptr.tolist(), found.indices.tolist()) == ([0, 1, 2], [3, 0])


def test_stored_zeros_are_no_labels():
    matrix = scipy.sparse.csr_array((DENSE != 0).astype(int))
    matrix.data[1] = 0
    assert as_pattern(matrix, 4).indptr.tolist() == [0, 1, 1, 3]
    assert as_pattern(matrix, 4).indices.tolist() == [1, 0, 3]
    assert as_pattern([], 4).num_rows == 0


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.tensor([[1, 2], [0, 3]]), ValueError, r"\(2, 2\) are neither one number .* lists"),
        (torch.tensor([0.5]), TypeError, "labels must be whole numbers, not float32"),
        ([[0.5]], TypeError, "labels of row 0 must be whole numbers, not float64"),
        ([[1], "ab"], TypeError, "labels of row 1 must be a list of numbers, not 'ab'"),
        ([[[1]]], ValueError, r"labels of row 0 must be a list, not of shape \(1, 1\)"),
        ([[2**40]], ValueError, f"labels of row 0 must be numbers below 2147483647, not {2**40}"),
        ("ab", TypeError, "labels must be lists of label numbers, .* not str"),
        (scipy.sparse.eye_array(5), ValueError, "a matrix of 5 columns does not fit 4 labels"),
    ],
)
def test_labels_that_cannot_be_cast(labels, error, message):
    with pytest.raises(error, match=message):
        as_pattern(labels, 4)


def test_layers_take_them():
    """Also in training, where features may be dropped."""
    network = slide.SlideNetwork(
        *(4, [6], 4), lambda i, o: uniform_sampler(i, o, active=3), input_dropout=0.5
    )
    x, labels = FORMS["csc"], LABELS["indicator"]
    assert torch.equal(network.predict(x, k=2)[0], network.predict(as_csr(DENSE), k=2)[0])
    assert network.train()(x, labels).num_samples == 3
    assert sparse_linear(x, network.first.weight, None).shape == (3, 6)
    assert network.first(x).values.shape == (3, 6)
    hidden = torch.randn(3, 6)
    mean, active = network.output.loss(hidden, labels, slide.ActiveLoss("bce"))
    assert mean.isfinite()
    assert active.targets.indptr.tolist() == [0, 2, 2, 4]
    assert network.output(hidden, labels).active.targets.num_rows == 3
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 4\)"):
        network.output(hidden, [[1], [4], []])
    with pytest.raises(ValueError, match="2 rows of labels do not fit 3 inputs"):
        network.output(hidden, torch.tensor([1, 2]))


def int32s(*values):
    return np.array(values, np.int32)


BOUNDS = np.array([0, 1, 2])
ONES = np.ones(2, np.float32)
META = torch.ones(2, device="meta")
MALFORMED = {
    "two dimensions": (Pattern(BOUNDS, int32s([1], [2])), r"has the shape \(2, 1\), not \(n,\)"),
    "bounds of two": (Pattern(BOUNDS[None], int32s(1, 2)), r"has the shape \(1, 3\), not \(n,\)"),
    "a number": (Pattern(np.int64(0), np.int32(3)), r"has the shape \(\), not \(n,\)"),
    "nothing": (Pattern(None, None), r"has the shape \(\), not \(n,\)"),
    "floats": (Pattern(BOUNDS, ONES), "must be whole numbers, not float32"),
    "objects": (Pattern(BOUNDS, np.array([1, "a"], object)), "must be whole numbers, not object"),
    "elsewhere": (Pattern(META.long(), META.int()), "are on meta, so they have no values"),
    "matrix of two": (CSR(BOUNDS, int32s([1], [2]), ONES[:, None]), r"the shape \(2, 1\), not"),
    "values of two": (CSR(BOUNDS, int32s(1, 2), ONES[:, None]), r"\(n,\), not of the shape \(2, 1"),
    "complex": (CSR(BOUNDS, int32s(1, 2), ONES.astype(complex)), "real numbers, not complex128"),
    "no values": (CSR(BOUNDS, int32s(1, 2), None), r"of the shape \(\)"),
    "values elsewhere": (CSR(BOUNDS, int32s(1, 2), META), "are on meta, so they have no values"),
    "gradients": (
        CSR(BOUNDS, int32s(1, 2), META.new_ones(2, device="cpu").requires_grad_()),
        "det",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_containers_are_a_sentence(name):
    """As labels and as features: kernels would not know these arrays."""
    rows, message = MALFORMED[name]
    for convert in (as_pattern, *([as_csr] if isinstance(rows, CSR) else [])):
        with pytest.raises((ValueError, TypeError), match=message):
            convert(rows, 10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_pattern("ids", [[1]], 1, 9), "a slide.Pattern or slide.CSR, not list"),
        (lambda: check_pattern("ids", Pattern([0, 1], [2]), None, 9), "arrays, .* not list and li"),
        (
            lambda: check_pattern("ids", Pattern(BOUNDS, BOUNDS[1:]), 2, 9),
            "int64 indptr and int32 indices, not int64 and int64",
        ),
        (
            lambda: check_pattern("ids", MALFORMED["two dimensions"][0], 2, 9),
            "1 dimension, not the",
        ),
        (lambda: check_labels("ids", MALFORMED["bounds of two"][0], 2, 9), "1 dimension, not the"),
        (lambda: check_pattern("x", MALFORMED["no values"][0], 2, 9), r"\(\) values do not fit"),
        (lambda: Pattern.from_lists([1, 2]), "rows of row 0 must be a list of numbers, not 1"),
        (lambda: Pattern.from_lists(None), "rows must be a list of lists, not NoneType"),
        (lambda: Pattern.from_padded(np.array([1, 2])), r"\(n, k\), not the shape \(2,\)"),
        (lambda: Pattern.from_padded(np.ones((2, 2))), "ids must be whole numbers, not float64"),
        (lambda: Pattern.from_padded(np.array([[2**40]])), "ids must be at most 2147483647, not 1"),
        (lambda: hits(np.array([1]), Pattern.from_lists([[1]])), r"predictions must have 2 dim"),
        (lambda: hits(np.ones((1, 1)), Pattern.from_lists([[1]])), "must be whole numbers, not fl"),
        (lambda: hits(int32s([1]), MALFORMED["two dimensions"][0]), r"not \(n,\)"),
        (lambda: check_ids(np.ones((1, 2)), 1, 3), "ids must be whole numbers, not float64"),
        (lambda: Pattern(BOUNDS, int32s(1, 2)).keep([1, 0]), r"\(2,\) bools, not \(2,\) int64"),
        (lambda: Pattern(BOUNDS, int32s(1, 2)).keep([True]), r"\(2,\) bools, not \(1,\) bool"),
    ],
)
def test_functions_refuse_other_shapes_and_types(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_other_forms_that_are_taken():
    assert Pattern.from_lists(row for row in [(1,), [2, 3]]).indptr.tolist() == [0, 1, 3]
    assert Pattern.from_padded(torch.tensor([[4, -1]])).indices.tolist() == [4]
    assert hits(torch.tensor([[1], [2]]), [[1], [3]]).tolist() == [[True], [False]]
    assert Pattern(BOUNDS, int32s(1, 2)).keep(torch.tensor([True, False])).indices.tolist() == [1]


def outside(layout):
    """A matrix of two rows and 2,000 columns whose numbers lie outside of it, as a file may say."""
    ones, numbers, bounds = np.ones(2000), np.full(2000, 10**7), np.arange(2001)
    if isinstance(layout, torch.layout):
        parts = [torch.from_numpy(part) for part in (bounds, numbers, ones)]
        if layout == torch.sparse_coo:
            places = torch.stack([parts[1], torch.arange(2000)])
            return torch.sparse_coo_tensor(places, parts[2], (2, 2000), check_invariants=False)
        options = {"layout": layout, "check_invariants": False}
        return torch.sparse_compressed_tensor(*parts, (2, 2000), **options)
    if layout == "coo":
        matrix = scipy.sparse.coo_array((2, 2000))
        matrix.data, matrix.coords = ones, (numbers, np.arange(2000))
    elif layout == "lil":
        matrix = scipy.sparse.lil_array((2, 2000))
        matrix.rows[0], matrix.data[0] = [10**7], [1.0]
    elif layout == "lists":
        matrix = scipy.sparse.lil_array((2, 2000))
        matrix.rows[0], matrix.data[0] = [1], [1.0] * 10**5
    elif layout == "bsr":
        matrix = scipy.sparse.bsr_array(np.ones((2, 2000)), blocksize=(2, 2))
        matrix.indptr = np.array([0, 10**8, 1000])[:2]
    else:
        matrix = scipy.sparse.csc_array(np.ones((2, 2000))[:1].repeat(2, 0))
        if layout == "csr":
            matrix = matrix.tocsr()
        if layout == "falls":
            matrix.indptr[-1] = 0
            return matrix
        matrix.indices = matrix.indices + 10**7
    return matrix


LAYOUTS = ["csr", "csc", "falls", "bsr", "coo", "lil", "lists"]
LAYOUTS += [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_numbers_outside_of_a_matrix_are_refused_before_it_is_converted(layout):
    """The conversions of SciPy and PyTorch write where these numbers say."""
    matrix = outside(layout)
    with pytest.raises(ValueError, match="features are no sparse matrix: "):
        slide.as_csr(matrix)
    with pytest.raises(ValueError, match="labels are no sparse matrix: "):
        slide.as_pattern(matrix, matrix.shape[1])
    if isinstance(layout, str):
        with pytest.raises(ValueError, match="the entries are no sparse matrix: "):
            slide.CSRMatrix(matrix)


@pytest.mark.parametrize("layout", [torch.sparse_bsr, torch.sparse_bsc], ids=str)
@pytest.mark.parametrize(
    ("bounds", "numbers", "shape"),
    [
        ([0, 1, 2], [0, -(10**8)], (4, 4)),
        ([0, 10**8, 2], [0, 1], (4, 4)),
        ([0, 1, 2], [0, 1], (5, 5)),
    ],
)
def test_blocks_outside_of_a_tensor_are_refused(layout, bounds, numbers, shape):
    """SciPy transposes and converts blocks without a look at their numbers."""
    parts = torch.tensor(bounds), torch.tensor(numbers), torch.ones(2, 2, 2)
    options = {"layout": layout, "check_invariants": False}
    matrix = torch.sparse_compressed_tensor(*parts, shape, **options)
    for convert in (slide.as_csr, lambda x: slide.as_pattern(x, shape[1])):
        with pytest.raises(ValueError, match=r"^(features|labels) are no sparse matrix: [^:]*$"):
            convert(matrix)


def test_a_shape_beyond_memory_is_refused_by_name():
    """A file of few bytes may say any number of rows."""
    places, values = torch.zeros(2, 0).long(), torch.zeros(0)
    huge = torch.sparse_coo_tensor(places, values, (2**50, 5), check_invariants=False)
    said = r" of 1,125,899,906,842,624 rows take 8,388,608.0 GiB at least, and .* are free"
    with pytest.raises(ValueError, match="^features" + said):
        slide.as_csr(huge)
    with pytest.raises(ValueError, match="^labels" + said):
        slide.as_pattern(huge, 5)


def test_numbers_that_are_repeated_are_not_written_out():
    wide = torch.ones(1, 1).expand(10**6, 10**6)
    with pytest.raises(ValueError, match=r"^features of shape \(1000000, 1000000\) take 3,7"):
        slide.as_csr(wide)
    with pytest.raises(ValueError, match=r"^labels of 1,000,000,000,000 rows take 7,4"):
        slide.as_pattern(np.broadcast_to(np.int32(1), 10**12), 5)
    small = slide.as_csr(torch.ones(1, 1).expand(3, 4))
    assert (small.indptr.tolist(), small.values.tolist()) == ([0, 4, 8, 12], [1] * 12)


def test_entries_beyond_memory_are_refused_before_they_are_listed(monkeypatch):
    """An array of one number may stand for a billion of them, as a file of few bytes may say."""
    monkeypatch.setattr(resources, "free_memory", lambda: 1 << 30)
    many = np.broadcast_to(np.True_, (10**4, 10**4))
    for convert in (slide.as_csr, lambda x: slide.as_pattern(x, 10**4)):
        with pytest.raises(ValueError, match=r"of shape \(10000, 10000\) take 1.5 GiB at least"):
            convert(many)
    assert not slide.as_csr(np.broadcast_to(np.False_, (10**4, 10**4))).indptr[-1]


@pytest.mark.parametrize("column", [2**31, -(2**40), 1.5, np.int64(2**31)])
def test_columns_that_do_not_fit(column):
    said = re.escape(f"columns must be whole numbers in [0, 2147483648), not {column!r}")
    with pytest.raises(ValueError, match=said):
        Pattern.from_lists([[3], [1, column]])
